from typing import Any

import equinox as eqx
from jaxtyping import Array, PRNGKeyArray

from .._agents import AbstractAgent
from .._interaction.actors import Actors
from .._pytree.tree import described, is_float_shape
from .._types.data import EnvSpec


def check_action(
    agent: AbstractAgent[Any, Any, Any],
    state: Any,
    actors: Actors[Any, Any],
    spec: EnvSpec,
    *,
    key: PRNGKeyArray,
) -> None:
    """Raises a `ValueError` where an agent's actions do not fit the environment."""

    def act(actor: Actors[Any, Any]) -> Array:
        action, _, _ = agent.act(
            state, actor.memory, actor.observation, mode="sample", key=key
        )
        return action

    shape = eqx.filter_eval_shape(eqx.filter_vmap(act), actors).shape[1:]
    if shape != (spec.action_size,):
        raise ValueError(
            f"`act` gives actions of shape {shape}, but `spec.action_size="
            f"{spec.action_size}` asks for {(spec.action_size,)}."
        )


def check_metrics(metrics: dict[str, Any]) -> None:
    """Raises a `ValueError` where an agent's metrics are not scalars of free names."""
    for name, value in metrics.items():
        if name in ("step", "nonfinite"):
            raise ValueError(
                f"The metric `{name}` is the trainer's; name it otherwise."
            )
        if not is_float_shape(value) or value.shape != ():
            raise ValueError(
                f"The metric `{name}` is of {described(value)}; it must be a scalar "
                "array of floats."
            )


def check_sizes(
    *,
    num_envs: int,
    batch_size: int,
    capacity: int,
    warmup_steps: int,
    sequence_length: int,
) -> None:
    """Raises a `ValueError` where the sizes of a trainer cannot work together."""
    rows = capacity // num_envs
    held = rows * num_envs
    if rows < sequence_length:
        raise ValueError(
            f"`capacity={capacity}` gives each of `num_envs={num_envs}` environments "
            f"{rows} transitions, but the agent learns from `sequence_length="
            f"{sequence_length}` in a row; make it at least "
            f"{sequence_length * num_envs}."
        )
    if held < batch_size * sequence_length:
        raise ValueError(
            f"`capacity={capacity}` holds {held} transitions, less than one batch of "
            f"batch_size * sequence_length = {batch_size} * {sequence_length}; raise "
            "`capacity` or lower `batch_size`."
        )
    if warmup_steps < sequence_length * num_envs:
        raise ValueError(
            f"`warmup_steps={warmup_steps}` must be at least "
            f"sequence_length * num_envs = {sequence_length} * {num_envs}, so that "
            "there is something to sample at the first update."
        )
    if warmup_steps > held:
        raise ValueError(
            f"`warmup_steps={warmup_steps}` is more than the {held} transitions that "
            f"`capacity={capacity}` holds: the first of them would be overwritten "
            "before anything is learnt. Raise `capacity` or lower `warmup_steps`."
        )
