import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int

from ..._types.custom_types import CriticFunction, Metrics
from ...losses._taac import histogram
from .policy import TrajectoryPolicy


# Decay of the statistics for each row of new transitions: an average over about a
# thousand rows.
_DECAY = 0.999
# Steps in histograms of repeats; longer trajectories count in the last bin.
_NUM_BINS = 10


class LogTemperatures(eqx.Module):
    """Logarithms of the weights of the two entropies: of the action, of the switch."""

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


RepeatStatistics.__init__.__doc__ = """**Arguments:**

- `steps`: decayed number of environment steps.
- `beginnings`: decayed number of those steps that began a trajectory.
"""


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
