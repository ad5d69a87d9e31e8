"""Numbers by which the members of a population can be ranked."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._agents import TAAC, AbstractAgent
from .._agents.base import AnyAgent
from .._agents.wrappers.unwrap import parts
from .._types.custom_types import EnvState, Extras, FloatLike, Memory, State
from ..envs import AbstractEnv
from .evaluate import Evaluation
from .evaluate_skills import evaluate_skills


Score = Callable[[Any, State, Evaluation], Float[Array, ""]]
"""From an agent, its state and its evaluation to a number to rank by."""


def mean_return(
    agent: object, state: object, evaluation: Evaluation
) -> Float[Array, ""]:
    """The default score: the mean return over all episodes."""
    del agent, state
    return jnp.mean(evaluation.returns)


def weighted_return(
    agent: AbstractAgent[State, Memory, Extras], state: object, evaluation: Evaluation
) -> Float[Array, ""]:
    """Score for vector rewards: the mean return, weighted as `TAAC` weights rewards.

    **Arguments:**

    - `agent`: a `TAAC`, or any wrapper around one; without `reward_weights` all
        dimensions have the weight 1.
    - `state`: unused.
    - `evaluation`: of the agent; returns of shape `(episodes, reward)`.

    Raises a `ValueError` if there is no `TAAC` or the returns are not vectors.
    """
    del state
    if evaluation.returns.ndim != 2:
        raise ValueError(
            "`weighted_return` is a score of vectors of rewards, but this reward is a "
            "scalar; leave `score` out."
        )
    weights = _reward_weights(agent)
    means = jnp.mean(evaluation.returns, axis=0)
    if weights is None:
        return jnp.sum(means)
    return jnp.dot(jnp.stack([jnp.asarray(weight) for weight in weights]), means)


def _reward_weights(agent: AnyAgent) -> tuple[FloatLike, ...] | None:
    found = parts(agent, TAAC)
    if not found:
        raise ValueError(
            "`weighted_return` weighs rewards as a `TAAC` does, but there is none in "
            f"{type(agent).__name__}; give a `score` of your own."
        )
    return found[0].reward_weights


def diversity_return(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    *,
    num_episodes: int,
    key: PRNGKeyArray,
) -> Float[Array, ""]:
    """Mean of `evaluate_skills`' diversity returns over skills and episodes.

    With its other arguments bound it is a `score` by which `train_population` ranks:
    `lambda agent, state, evaluation: eqrl.diversity_return(agent, state, env,
    num_episodes=4, key=key)`. All members and generations then share one key and are
    compared on equal terms.
    """
    evaluation = evaluate_skills(agent, state, env, num_episodes=num_episodes, key=key)
    return jnp.mean(evaluation.diversity_returns)
