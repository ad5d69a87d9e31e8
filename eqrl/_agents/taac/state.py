from typing import Any

import equinox as eqx
import optax
from jaxtyping import Array, Float

from .policy import TrajectoryPolicy
from .repeats import RepeatStatistics


class LogTemperatures(eqx.Module):
    """Logarithms of the weights of two entropies."""

    action: Float[Array, ""]
    switch: Float[Array, ""]


class TAACState(eqx.Module):
    """What `TAAC` learns."""

    actor: TrajectoryPolicy
    critics: Any
    target_critics: Any
    log_temperatures: LogTemperatures
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    temperature_optimizer: optax.OptState
    repeats: RepeatStatistics


TAACState.__init__.__doc__ = """**Arguments:**

- `actor`: from one observation and one trajectory to a distribution with a density.
- `critics`: a stack, one more leading axis on every array.
- `target_critics`: what the critics' targets are computed with, likewise.
- `log_temperatures`: logarithms of the weights of the entropies of the actor and of the
    switch.
- `actor_optimizer`, `critic_optimizer`, `temperature_optimizer`: the optimizers'
    states.
- `repeats`: how long trajectories were in what was collected lately.
"""
