"""The steps of TAAC's parts, each from what they all were before an update."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from ..._pytree.tree import gradient_step
from ..._types.custom_types import FloatLike, Metrics
from ..._types.data import Transition
from ...losses import (
    taac_actor_loss,
    taac_critic_loss,
    taac_next_value,
    taac_temperature_loss,
)
from ...losses._taac import TDLoss
from .policy import Preferences, TAACExtras, TrajectoryPolicy
from .state import LogTemperatures, TAACState
from .target import flat_batch, window_target
from .trajectory import Trajectory


# Of an action among a uniform many, and of a switch, at the default target entropies.
_LEAST_PROBABILITY = 0.1


def critic_step(
    state: TAACState,
    optimizer: optax.GradientTransformation,
    batch: Transition[TAACExtras],
    preferences: Preferences,
    *,
    discount: FloatLike | tuple[FloatLike, ...],
    target: str,
    td_loss: TDLoss,
    sampled: bool,
    faithful: bool,
    key: PRNGKeyArray,
) -> tuple[Any, optax.OptState, Metrics]:
    """One step of the critics towards the target of each transition in windows."""
    flat = flat_batch(batch)
    next_value, switch = taac_next_value(
        state.actor,
        state.critics,
        state.target_critics,
        flat.next_observation,
        flat.extras.trajectory,
        jnp.exp(state.log_temperatures.switch),
        preferences.family,
        **preferences.options(),
        sampled=sampled,
        faithful=faithful,
        key=key,
    )
    targets = window_target(
        batch,
        next_value.reshape(batch.reward.shape),
        switch.reshape(batch.terminated.shape),
        discount=discount,
        target=target,
    )
    (loss, metrics), gradient = eqx.filter_value_and_grad(_critic_loss, has_aux=True)(
        state.critics,
        flat.observation,
        flat.extras.trajectory,
        targets.reshape(flat.reward.shape),
        td_loss,
        _padding_scale(batch) if faithful else 1.0,
    )
    critics, optimizer_state = gradient_step(
        state.critics, gradient, optimizer, state.critic_optimizer
    )
    return critics, optimizer_state, metrics | {"critic_loss": loss}


def _padding_scale(batch: Transition[Any]) -> float:
    """By what the reference scales the critics' loss; it counts states."""
    num_transitions = batch.terminated.shape[1]
    return num_transitions / (num_transitions + 1)


def _critic_loss(
    critics: Any,
    observation: Float[Array, "batch obs"],
    trajectory: Trajectory,
    target: Float[Array, "batch *reward"],
    td_loss: TDLoss,
    scale: float,
) -> tuple[Float[Array, ""], Metrics]:
    loss, metrics = taac_critic_loss(critics, observation, trajectory, target, td_loss)
    return scale * loss, metrics


def actor_step(
    state: TAACState,
    optimizer: optax.GradientTransformation,
    batch: Transition[TAACExtras],
    preferences: Preferences,
    *,
    histograms: bool,
    key: PRNGKeyArray,
) -> tuple[TrajectoryPolicy, optax.OptState, Metrics]:
    """One step of the actor, from a batch of single transitions."""
    (loss, metrics), gradient = eqx.filter_value_and_grad(
        taac_actor_loss, has_aux=True
    )(
        state.actor,
        state.critics,
        batch.observation,
        batch.extras.previous,
        jnp.exp(state.log_temperatures.action),
        jnp.exp(state.log_temperatures.switch),
        preferences.family,
        **preferences.options(),
        histograms=histograms,
        key=key,
    )
    actor, optimizer_state = gradient_step(
        state.actor, gradient, optimizer, state.actor_optimizer
    )
    return actor, optimizer_state, metrics | {"actor_loss": loss}


def temperature_step(
    state: TAACState,
    optimizer: optax.GradientTransformation,
    metrics: Metrics,
    *,
    target_entropy: FloatLike,
    switch_target_entropy: FloatLike,
) -> tuple[LogTemperatures, optax.OptState, Metrics]:
    """One step of both temperatures, from the entropies in the actor's metrics."""
    loss, gradient = eqx.filter_value_and_grad(_temperature_loss)(
        state.log_temperatures,
        metrics["entropy"],
        metrics["switch_entropy"],
        target_entropy,
        switch_target_entropy,
    )
    log_temperatures, optimizer_state = gradient_step(
        state.log_temperatures, gradient, optimizer, state.temperature_optimizer
    )
    return (
        log_temperatures,
        optimizer_state,
        {
            "temperature_loss": loss,
            "temperature": jnp.exp(state.log_temperatures.action),
            "switch_temperature": jnp.exp(state.log_temperatures.switch),
        },
    )


def _temperature_loss(
    log_temperatures: LogTemperatures,
    entropy: Float[Array, ""],
    switch_entropy: Float[Array, ""],
    target_entropy: FloatLike,
    switch_target_entropy: FloatLike,
) -> Float[Array, ""]:
    return taac_temperature_loss(
        log_temperatures.action, entropy, target_entropy
    ) + taac_temperature_loss(
        log_temperatures.switch, switch_entropy, switch_target_entropy
    )


def default_target_entropy(action_size: int) -> float:
    """In nats, of an action uniform over a tenth of its range in each dimension."""
    return action_size * math.log(2 * _LEAST_PROBABILITY)


def default_switch_target_entropy() -> float:
    """In nats, of a switch of which either side has the probability 0.1."""
    return -sum(x * math.log(x) for x in (_LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY))
