"""What a trainer reads off fresh transitions."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Bool

from .._interaction.actors import Actors
from .._types.custom_types import Metrics
from .._types.data import Transition


def all_finite(transitions: Transition[Any]) -> Bool[Array, ""]:
    """Whether observations, actions and rewards are neither `nan` nor infinite."""
    arrays = (
        transitions.observation,
        transitions.action,
        transitions.reward,
        transitions.next_observation,
    )
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(array)) for array in arrays]))


def episode_metrics(
    actors: Actors[Any, Any], transitions: Transition[Any], going_on: Bool[Array, ""]
) -> Metrics:
    """Of the episodes which end at this step; `actors` are from before it."""
    over = (transitions.terminated | transitions.truncated) & going_on
    returns = actors.episode_return + transitions.reward
    metrics = {"episode_length": _mean_where(over, transitions.timestep + 1)}
    if returns.ndim == 1:
        return metrics | {"episode_return": _mean_where(over, returns)}
    return metrics | {
        f"episode_return_{index}": _mean_where(over, returns[:, index])
        for index in range(returns.shape[1])
    }


def _mean_where(condition: Bool[Array, " envs"], values: Array) -> Array:
    # 0 / 0, so `nan`, where the condition holds nowhere.
    total = jnp.sum(jnp.where(condition, values, 0)).astype(float)
    return total / jnp.sum(condition).astype(float)
