from typing import Generic

import equinox as eqx
from jaxtyping import Array, Bool, Float, Int

from .._types.custom_types import Extras


class EnvSpec(eqx.Module):
    """What an agent must know of an environment: sizes only, hashable.

    Observations and actions are flat vectors of floats, actions in [-1, 1].
    """

    observation_size: int = eqx.field(static=True)
    action_size: int = eqx.field(static=True)
    reward_size: int | None = eqx.field(default=None, static=True)
    state_descriptor_size: int | None = eqx.field(default=None, static=True)
    max_steps: int | None = eqx.field(default=None, static=True)


EnvSpec.__init__.__doc__ = """**Arguments:**

- `observation_size`: length of an observation.
- `action_size`: length of an action.
- `reward_size`: length of a vector of rewards; `None` for a scalar reward.
- `state_descriptor_size`: length of the vector that describes what the agent's state
    means as behavior, such as a position; `None` where the environment gives none.
- `max_steps`: the environment's time limit in steps; `None` where it has none.
"""


class Transition(eqx.Module, Generic[Extras]):
    """One step of one environment, or any stack of such steps.

    `next_observation` is the true successor, never the first observation after a reset.
    `terminated` and `truncated` are never both true, and only `terminated` stops
    bootstrapping.
    """

    observation: Float[Array, "*batch obs"]
    action: Float[Array, "*batch act"]
    reward: Float[Array, "*batch"] | Float[Array, "*batch reward"]
    next_observation: Float[Array, "*batch obs"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]
    timestep: Int[Array, "*batch"]
    state_descriptor: Float[Array, "*batch descriptor"] | None
    next_state_descriptor: Float[Array, "*batch descriptor"] | None
    extras: Extras


Transition.__init__.__doc__ = """**Arguments:**

- `observation`: of the state left.
- `action`: in [-1, 1].
- `reward`: a scalar, or a vector of `EnvSpec.reward_size`.
- `next_observation`: of the state reached.
- `terminated`: whether the state reached ends the episode and has no value.
- `truncated`: whether a time limit was reached, and the episode not terminated.
- `timestep`: steps between the episode's beginning and the state left.
- `state_descriptor`: of the state left, where the environment describes behavior.
- `next_state_descriptor`: of the state reached, likewise.
- `extras`: what the agent asked to have stored; `None` for most.
"""
