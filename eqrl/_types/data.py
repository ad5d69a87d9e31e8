import dataclasses
import math
from typing import Any, Generic, TypeAlias

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._types.custom_types import Extras


class EnvSpec(eqx.Module):
    """The sizes of an environment, from which an agent is initialized. Hashable.

    Observations and actions are flat vectors of floats, actions in [-1, 1].
    """

    observation_size: int = eqx.field(static=True)
    action_size: int = eqx.field(static=True)
    reward_size: int | None = eqx.field(default=None, static=True)
    state_descriptor_size: int | None = eqx.field(default=None, static=True)
    max_steps: int | None = eqx.field(default=None, static=True)

    def __check_init__(self) -> None:
        for field in dataclasses.fields(self):
            size = getattr(self, field.name)
            is_integer = isinstance(size, (int, np.integer))
            optional = field.default is None
            if (size is None and optional) or (is_integer and type(size) is not bool):
                continue
            allowed = "an integer or None" if optional else "an integer"
            raise ValueError(
                f"`{field.name}` is a {type(size).__name__}; it must be {allowed}."
            )


EnvSpec.__init__.__doc__ = """**Arguments:**

- `observation_size`: length of an observation.
- `action_size`: length of an action.
- `reward_size`: length of a vector of rewards; `None` for a scalar reward.
- `state_descriptor_size`: length of the vector that describes behavior, such as the
    agent's position; `None` if the environment gives none.
- `max_steps`: the environment's time limit in steps; `None` if it has none.
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

- `observation`: of the state before the step.
- `action`: in [-1, 1].
- `reward`: a scalar, or a vector of `EnvSpec.reward_size`.
- `next_observation`: of the state after the step.
- `terminated`: whether the step ended the episode in a state without value.
- `truncated`: whether a time limit ended the episode, which did not terminate.
- `timestep`: number of steps taken in the episode before this one.
- `state_descriptor`: of the state before the step, if the environment describes
    behavior.
- `next_state_descriptor`: of the state after the step, likewise.
- `extras`: data that the agent stores with each transition; `None` for most agents.
"""


AnyTransition: TypeAlias = Transition[Any]
"""A transition, or a stack of them, whatever its extras are."""


def flatten_batch(batch: AnyTransition) -> AnyTransition:
    """The same transitions with one leading axis, whatever leading axes they have."""
    num_axes = batch.timestep.ndim
    return jax.tree.map(
        lambda x: x.reshape(math.prod(x.shape[:num_axes]), *x.shape[num_axes:]), batch
    )
