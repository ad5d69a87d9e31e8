"""One update of TAAC: a step of its critics, of its actor and of its temperatures.

Each step starts from the state before the update, like those of the reference, which
minimizes one sum of losses.
"""

import math

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..._pytree.tree import gradient_step
from ..._types.custom_types import CriticFunction, FloatLike, Metrics
from ..._types.data import Transition
from ...losses import (
    Critic,
    compare_through_target,
    taac_actor_loss,
    taac_critic_loss,
    taac_next_value,
    taac_temperature_loss,
)
from ...losses._taac import TDLoss, histogram
from .policy import Preferences, TAACExtras, TrajectoryPolicy


# Decay of the statistics for each row of new transitions: an average over about a
# thousand rows.
_DECAY = 0.999
# Steps in histograms of repeats; longer trajectories count in the last bin.
_NUM_BINS = 10
# The default target entropies are those of an action uniform over a tenth of its range
# and of a switch with probability 0.1.
_MIN_PROBABILITY = 0.1


class LogTemperatures(eqx.Module):
    """Logarithms of the weights of the two entropies, of the action and the switch."""

    action: Float[Array, ""]
    switch: Float[Array, ""]


class RepeatStatistics(eqx.Module):
    """Exponentially decayed counts of collected steps and of trajectories begun."""

    steps: Float[Array, ""]
    beginnings: Float[Array, ""]

    def update(self, repeats: Int[Array, " batch"]) -> "RepeatStatistics":
        """The counts with a row of new transitions added."""
        return RepeatStatistics(
            steps=_DECAY * self.steps + float(repeats.size),
            beginnings=_DECAY * self.beginnings + _count_beginnings(repeats),
        )

    def mean_length(self) -> Float[Array, ""]:
        """Mean number of steps on a trajectory; zero before anything is collected."""
        return self.steps / jnp.maximum(self.beginnings, 1)


class TAACState(eqx.Module):
    """The learned state of `TAAC`."""

    actor: TrajectoryPolicy
    critics: CriticFunction
    target_critics: CriticFunction
    log_temperatures: LogTemperatures
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    temperature_optimizer: optax.OptState
    repeats: RepeatStatistics


TAACState.__init__.__doc__ = """**Arguments:**

- `actor`: maps one observation and one trajectory to a distribution with a density.
- `critics`: a stack of critics; every array has one more leading axis.
- `target_critics`: the stack that the critics' targets are computed with.
- `log_temperatures`: logarithms of the weights of the entropies of the actor and of the
    switch.
- `actor_optimizer`, `critic_optimizer`, `temperature_optimizer`: the optimizers'
    states.
- `repeats`: how long the recently collected trajectories were.
"""


def repeat_metrics(
    repeats: Int[Array, " batch"], collected: RepeatStatistics, *, histograms: bool
) -> Metrics:
    """Lengths of trajectories, in a batch from the replay and as collected recently.

    The histogram's bin 0 holds the share of steps that are the first on their
    trajectory, bin 1 that of the second ones, and bin 9 that of the tenth and later.
    """
    metrics = {
        "repeat_fraction": jnp.mean((repeats > 1).astype(float)),
        "repeat_length_replayed": (
            repeats.size / jnp.maximum(_count_beginnings(repeats), 1)
        ),
        "repeat_length_collected": collected.mean_length(),
    }
    if histograms:
        bins = jnp.minimum(repeats, _NUM_BINS) - 1
        metrics |= histogram("repeat", bins, _NUM_BINS)
    return metrics


def _count_beginnings(repeats: Int[Array, " batch"]) -> Float[Array, ""]:
    return jnp.sum((repeats == 1).astype(float))


def flatten_windows(
    batch: Transition[TAACExtras],
) -> tuple[Transition[TAACExtras], int]:
    """A batch from the replay as single transitions, and the length of its windows.

    The windows follow one another along the leading axis. A batch of single transitions
    is one of windows of length 1.
    """
    if not isinstance(batch.extras, TAACExtras):
        raise ValueError(
            f"`batch.extras` is a {type(batch.extras).__name__}; it must be the "
            "`eqrl.TAACExtras` that `act` gives with each action. A batch is of "
            "windows, with the axes `(batch, time)`."
        )
    if batch.terminated.ndim == 1:
        return batch, 1
    window_length = batch.terminated.shape[1]
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch), window_length


def critic_step(
    state: TAACState,
    optimizer: optax.GradientTransformation,
    batch: Transition[TAACExtras],
    preferences: Preferences,
    *,
    window_length: int,
    discount: FloatLike | tuple[FloatLike, ...],
    target: str,
    td_loss: TDLoss,
    sampled: bool,
    faithful: bool,
    key: PRNGKeyArray,
) -> tuple[Critic, optax.OptState, Metrics]:
    """One gradient step of the critics on a batch from `flatten_windows`."""
    # The state reached is valued on the trajectory that led there, which the policy may
    # keep.
    next_value, switch = taac_next_value(
        state.actor,
        state.critics,
        state.target_critics,
        batch.next_observation,
        batch.extras.trajectory,
        jnp.exp(state.log_temperatures.switch),
        preferences.family,
        reward_weights=preferences.reward_weights,
        advantage_clip=preferences.advantage_clip,
        sampled=sampled,
        faithful=faithful,
        key=key,
    )
    targets = _window_targets(
        batch,
        next_value,
        switch,
        window_length=window_length,
        discount=discount,
        target=target,
    )
    # The reference pads each window's loss with one zero before it takes the mean.
    scale = window_length / (window_length + 1) if faithful else 1.0

    def loss(critics: Critic) -> tuple[Float[Array, ""], Metrics]:
        error, metrics = taac_critic_loss(
            critics, batch.observation, batch.extras.trajectory, targets, td_loss
        )
        return scale * error, metrics

    (error, metrics), gradient = eqx.filter_value_and_grad(loss, has_aux=True)(
        state.critics
    )
    critics, optimizer_state = gradient_step(
        state.critics, gradient, optimizer, state.critic_optimizer
    )
    return critics, optimizer_state, metrics | {"critic_loss": error}


def _window_targets(
    batch: Transition[TAACExtras],
    next_value: Float[Array, "batch *reward"],
    switch: Bool[Array, " batch"],
    *,
    window_length: int,
    discount: FloatLike | tuple[FloatLike, ...],
    target: str,
) -> Float[Array, "batch *reward"]:
    """The critics' target for each transition, computed along its window.

    The extras of the batch hold the switches of the stored policy; `switch` says
    whether the current policy switches in the state reached, whose value is
    `next_value`.
    """
    windows, next_values, switches = jax.tree.map(
        lambda x: x.reshape(-1, window_length, *x.shape[1:]),
        (batch, next_value, switch),
    )
    # Nothing follows a termination; a time limit ends the sum of rewards, and the
    # target then bootstraps as at any other end of a window.
    not_terminated = (~windows.terminated).astype(next_value.dtype)
    done = windows.terminated | windows.truncated
    if isinstance(discount, tuple):
        # One for each dimension of the reward, of shape (windows, time, reward).
        discounts = not_terminated[:, :, None] * jnp.stack(discount)[None, None]
    else:
        discounts = discount * not_terminated
    if target == "one_step":
        stops = jnp.ones_like(switches)
    elif target == "multi_step":
        stops = done
    else:
        # The compare-through operator. Rewards are summed while the stored policy kept
        # its trajectory and the current one would, too. After a switch by either, they
        # are not those of the current policy.
        #
        # The target of a transition continues only if the next transition keeps its
        # trajectory, so stored switches move one step ahead. The value that `roll`
        # wraps around into the last column has no effect, since a window always
        # bootstraps at its end.
        stored_switches = jnp.roll(windows.extras.switch, -1, axis=1)
        stops = done | stored_switches | switches
    targets = jax.vmap(compare_through_target)(
        windows.reward, discounts, stops, next_values
    )
    return targets.reshape(batch.reward.shape)


def actor_step(
    state: TAACState,
    optimizer: optax.GradientTransformation,
    batch: Transition[TAACExtras],
    preferences: Preferences,
    *,
    histograms: bool,
    key: PRNGKeyArray,
) -> tuple[TrajectoryPolicy, optax.OptState, Metrics]:
    """One gradient step of the actor on a batch from `flatten_windows`."""
    (loss, metrics), gradient = eqx.filter_value_and_grad(
        taac_actor_loss, has_aux=True
    )(
        state.actor,
        state.critics,
        batch.observation,
        # The trajectory that the policy could keep, rather than the one it chose.
        batch.extras.previous,
        jnp.exp(state.log_temperatures.action),
        jnp.exp(state.log_temperatures.switch),
        preferences.family,
        reward_weights=preferences.reward_weights,
        advantage_clip=preferences.advantage_clip,
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
    """One gradient step of both temperatures, with the entropies in `metrics`."""

    # A sum, so that one optimizer moves both; each has a gradient of its own term only.
    def loss(log_temperatures: LogTemperatures) -> Float[Array, ""]:
        return taac_temperature_loss(
            log_temperatures.action, metrics["entropy"], target_entropy
        ) + taac_temperature_loss(
            log_temperatures.switch, metrics["switch_entropy"], switch_target_entropy
        )

    error, gradient = eqx.filter_value_and_grad(loss)(state.log_temperatures)
    log_temperatures, optimizer_state = gradient_step(
        state.log_temperatures, gradient, optimizer, state.temperature_optimizer
    )
    found = {
        "temperature_loss": error,
        # The temperatures before the step, which critics and actor learned with.
        "temperature": jnp.exp(state.log_temperatures.action),
        "switch_temperature": jnp.exp(state.log_temperatures.switch),
    }
    return log_temperatures, optimizer_state, found


def default_target_entropy(action_size: int) -> float:
    """Entropy, in nats, of an action uniform over a tenth of the range [-1, 1]."""
    # The logarithm of the width of the interval, for each element.
    return action_size * math.log(2 * _MIN_PROBABILITY)


def default_switch_target_entropy() -> float:
    """Entropy, in nats, of a switch with probability 0.1."""
    return -sum(x * math.log(x) for x in (_MIN_PROBABILITY, 1 - _MIN_PROBABILITY))


def or_default(value: FloatLike | None, default: float) -> FloatLike:
    """`value`, or `default` if it is `None`."""
    return default if value is None else value
