from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._agents.base import AnyAgent
from .._interaction.evaluate import Descriptor, Evaluation, evaluate
from .._interaction.scores import Score
from .._pytree.stack import stack_size
from .._training.members import Members, map_members
from .._training.mesh import on_each_device
from .._types.custom_types import PyTree
from ..envs._base import AnyEnv


def check_scalar(env: AnyEnv) -> None:
    """Raises a `ValueError` if the reward is a vector: returns cannot be ranked."""
    if env.spec.reward_size is not None:
        raise ValueError(
            "The reward is a vector, so `score` is needed: from an agent, its state "
            "and its `Evaluation` to one number to rank by, such as "
            "`eqrl.weighted_return`."
        )


def _check_score(value: Any) -> None:
    if not eqx.is_array_like(value) or jnp.shape(value) != ():
        raise ValueError(
            "`score` must be one number for each member, such as a mean over its "
            f"episodes, but it is {eqx.tree_pformat(value)}."
        )


@eqx.filter_jit
def evaluate_members(
    agents: AnyAgent,
    states: PyTree,
    failed: Bool[Array, " population"],
    env: AnyEnv,
    key: PRNGKeyArray,
    num_episodes: int,
    descriptor: Descriptor | None,
    score: Score,
    members: Members,
    mesh: Mesh | None,
) -> tuple[Evaluation, Float[Array, " population"]]:
    """The evaluation and the score of each member; the score is `nan` if it failed."""

    def evaluate_share(stacked: PyTree, env: AnyEnv) -> tuple[PyTree, None]:
        def evaluate_one(
            agent: AnyAgent, state: PyTree, failed: Bool[Array, ""], key: PRNGKeyArray
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
            _check_score(value)
            return evaluation, jnp.where(failed, jnp.nan, value)

        return map_members(evaluate_one, members, *stacked), None

    keys = jr.split(key, stack_size(states))
    stacked = (agents, states, failed, keys)
    result, _ = on_each_device(evaluate_share, mesh, stacked, env)
    return result
