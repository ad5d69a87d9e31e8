from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._agents import TAAC, AbstractAgent
from .._interaction.evaluate import Descriptor, Evaluation, evaluate
from .._pytree.stack import stack_size
from .._types.custom_types import FloatLike
from ..envs import AbstractEnv
from .mesh import on_each_device
from .run import Members, map_members


Score = Callable[[Any, Any, Evaluation], Float[Array, ""]]


def check_scalar(env: AbstractEnv[Any]) -> None:
    """Raises a `ValueError` where returns are no numbers to rank by."""
    if env.spec.reward_size is not None:
        raise ValueError(
            "The reward is a vector, so `score` is needed: from an agent, its state "
            "and its `Evaluation` to one number to rank by, such as "
            "`eqrl.weighted_return`."
        )


def mean_return(agent: Any, state: Any, evaluation: Evaluation) -> Float[Array, ""]:
    """What members are ranked by unless something else is given."""
    del agent, state
    return jnp.mean(evaluation.returns)


def weighted_return(
    agent: AbstractAgent[Any, Any, Any], state: Any, evaluation: Evaluation
) -> Float[Array, ""]:
    """A score where rewards are vectors: their mean return, as `TAAC` weighs it.

    **Arguments:**

    - `agent`: a `TAAC`, or any wrapper around one; without `reward_weights` all
        dimensions count alike.
    - `state`: is not looked at.
    - `evaluation`: of the agent; returns `(episodes, reward)`.

    Raises a `ValueError` where there is no `TAAC`, or returns are no vectors.
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


def _reward_weights(
    agent: AbstractAgent[Any, Any, Any],
) -> tuple[FloatLike, ...] | None:
    for node in jax.tree.leaves(agent, is_leaf=lambda node: isinstance(node, TAAC)):
        if isinstance(node, TAAC):
            return node.reward_weights
    raise ValueError(
        f"`weighted_return` weighs rewards as a `TAAC` does, but there is none in "
        f"{type(agent).__name__}; give a `score` of your own."
    )


@eqx.filter_jit
def evaluate_members(
    agents: Any,
    states: Any,
    failed: Bool[Array, " population"],
    env: AbstractEnv[Any],
    key: PRNGKeyArray,
    num_episodes: int,
    descriptor: Descriptor | None,
    score: Score,
    members: Members,
    mesh: Mesh | None,
) -> tuple[Evaluation, Float[Array, " population"]]:
    """The evaluation of each member, and what it is ranked by: `nan` if it failed."""

    def evaluate_share(stacked: Any, env: AbstractEnv[Any]) -> tuple[Any, None]:
        def evaluate_one(
            agent: Any, state: Any, failed: Bool[Array, ""], key: PRNGKeyArray
        ) -> tuple[Evaluation, Float[Array, ""]]:
            evaluation = evaluate(
                agent,
                state,
                env,
                num_episodes=num_episodes,
                key=key,
                descriptor=descriptor,
            )
            value = score(agent, state, evaluation)
            return evaluation, jnp.where(failed, jnp.nan, value)

        return map_members(evaluate_one, members, stacked), None

    keys = jr.split(key, stack_size(states))
    stacked = (agents, states, failed, keys)
    result, _ = on_each_device(evaluate_share, mesh, stacked, env)
    return result
