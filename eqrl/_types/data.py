import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeAlias, TypeVar, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .custom_types import Extras, Observation, ObservationDtype


Action: TypeAlias = Float[Array, " act"] | Int[Array, ""]
"""A vector in [-1, 1], or the index of a discrete action."""


def check_size(
    name: str, size: object, *, least: int = 1, optional: bool = False
) -> None:
    """Checks that `size` is an integer of at least `least`, or `None` if `optional`."""
    if size is None and optional:
        return
    if not isinstance(size, (int, np.integer)) or isinstance(size, bool):
        allowed = f"an integer, at least {least}" + (", or None" if optional else "")
        raise ValueError(f"`{name}` is a {type(size).__name__}; it must be {allowed}.")
    if size < least:
        raise ValueError(f"`{name}={size}` must be at least {least}.")


# The `n` of a space of Gymnasium is an integer of NumPy, which Equinox would take for
# an array. Other values are left for `check_size` to name.
_as_integer: Callable[[int | np.integer], int] = lambda size: (
    int(size) if isinstance(size, np.integer) else size
)


class AbstractActionSpace(eqx.Module):
    """The actions that an environment takes. Hashable, and compared by value."""

    @property
    @abstractmethod
    def struct(self) -> jax.ShapeDtypeStruct:
        """Shape and type of one action."""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """Number of outputs of a network that determines the action."""

    @abstractmethod
    def sample(self, *, key: PRNGKeyArray) -> Action:
        """Draws one action uniformly from all."""


class Box(AbstractActionSpace):
    """Vectors in [-1, 1]; the environment rescales them to its own bounds."""

    size: int = eqx.field(static=True, converter=_as_integer)

    def __check_init__(self) -> None:
        check_size("size", self.size)

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.size,), jnp.result_type(float))

    @property
    def num_outputs(self) -> int:
        return self.size

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " act"]:
        return jr.uniform(key, (self.size,), minval=-1, maxval=1)


Box.__init__.__doc__ = """**Arguments:**

- `size`: length of the vectors, at least 1.
"""


class Discrete(AbstractActionSpace):
    """A choice among a number of actions, counted from 0."""

    num_actions: int = eqx.field(static=True, converter=_as_integer)

    def __check_init__(self) -> None:
        check_size("num_actions", self.num_actions)

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((), jnp.result_type(int))

    @property
    def num_outputs(self) -> int:
        return self.num_actions

    def sample(self, *, key: PRNGKeyArray) -> Int[Array, ""]:
        return jr.randint(key, (), 0, self.num_actions)


Discrete.__init__.__doc__ = """**Arguments:**

- `num_actions`: the number of actions, at least 1.
"""


class EnvSpec(eqx.Module):
    """The sizes of an environment, used to initialize an agent. Hashable.

    Observations are flat vectors. `action` is the space of the actions.
    """

    observation_size: int = eqx.field(static=True)
    action: AbstractActionSpace
    reward_size: int | None = eqx.field(static=True)
    state_descriptor_size: int | None = eqx.field(static=True)
    max_steps: int | None = eqx.field(static=True)
    observation_shape: tuple[int, ...] | None = eqx.field(static=True)
    observation_dtype: ObservationDtype = eqx.field(static=True)
    critic_observation_size: int | None = eqx.field(static=True)

    def __init__(
        self,
        observation_size: int | np.integer,
        action_size: int | np.integer | None = None,
        reward_size: int | None = None,
        state_descriptor_size: int | None = None,
        max_steps: int | None = None,
        *,
        action: AbstractActionSpace | None = None,
        observation_shape: Sequence[int] | None = None,
        observation_dtype: ObservationDtype = "float32",
        critic_observation_size: int | None = None,
    ) -> None:
        """**Arguments:**

        - `observation_size`: length of an observation.
        - `action_size`: length of an action, for `eqrl.spaces.Box(action_size)`.
        - `reward_size`: length of a vector of rewards; `None` for a scalar reward.
        - `state_descriptor_size`: length of the vector that describes behavior, such as
            the agent's position; `None` if the environment gives none.
        - `max_steps`: the environment's time limit in steps, at least 1; `None` if it
            has none.
        - `action`: the space of the actions, such as `eqrl.spaces.Discrete(2)`, if
            `action_size` is not given.
        - `observation_shape`: the shape that an observation was flattened from, such as
            that of an image, channels last; `None` if it was a vector.
        - `observation_dtype`: the type of its elements, which are also stored in it.
            Networks see "uint8" divided by 255, and "bool" as 0 and 1. With
            `jax_enable_x64`, "float32" stands for 64-bit floats, but observations of
            simulators outside JAX are still rounded to 32 bits.
        - `critic_observation_size`: length of the vector of floats that critics see in
            place of the observation; `None` if they see the observation.
        """
        # `check_env` refuses an observation without elements.
        check_size("observation_size", observation_size, least=0)
        self.observation_size = int(observation_size)
        if (action_size is None) == (action is None):
            raise ValueError(
                f"{'Neither' if action is None else 'Both'} of `action_size` and "
                "`action` is given: give one, as in `EnvSpec(4, 2)` or `EnvSpec(4, "
                "action=eqrl.spaces.Discrete(2))`; in `dataclasses.replace` it is "
                "`action`."
            )
        if action_size is not None:
            check_size("action_size", action_size)
            action = Box(action_size)
        if not isinstance(action, AbstractActionSpace):
            raise ValueError(
                f"`action` is a {type(action).__name__}; it must be a space, such as "
                "`eqrl.spaces.Discrete(2)`."
            )
        self.action = action
        self.reward_size = reward_size
        self.state_descriptor_size = state_descriptor_size
        self.max_steps = max_steps
        self.critic_observation_size = critic_observation_size
        for name, least in (
            ("reward_size", 0),
            ("state_descriptor_size", 0),
            ("max_steps", 1),
        ):
            check_size(name, getattr(self, name), least=least, optional=True)
        check_size("critic_observation_size", critic_observation_size, optional=True)
        if observation_shape is not None:
            observation_shape = tuple(observation_shape)
            for size in observation_shape:
                check_size("observation_shape", size)
            if math.prod(observation_shape) != observation_size:
                raise ValueError(
                    f"`observation_shape={observation_shape}` has "
                    f"{math.prod(observation_shape)} elements, but `observation_size="
                    f"{observation_size}`."
                )
        self.observation_shape = observation_shape
        if observation_dtype not in get_args(ObservationDtype):
            raise ValueError(
                f"`observation_dtype={observation_dtype!r}` must be one of "
                f"{', '.join(map(repr, get_args(ObservationDtype)))}: observations of "
                "another type are cast in the environment."
            )
        self.observation_dtype = observation_dtype

    @property
    def observation_struct(self) -> jax.ShapeDtypeStruct:
        """The shape and type of any observation."""
        is_float = self.observation_dtype == "float32"
        dtype = jnp.result_type(float) if is_float else self.observation_dtype
        return jax.ShapeDtypeStruct((self.observation_size,), dtype)

    @property
    def for_critics(self) -> "EnvSpec":
        """The same environment, with the observations that critics see."""
        if self.critic_observation_size is None:
            return self
        return dataclasses.replace(
            self,
            observation_size=self.critic_observation_size,
            observation_shape=None,
            observation_dtype="float32",
        )

    @property
    def action_size(self) -> int:
        """Length of an action; a `ValueError` unless actions are vectors."""
        if not isinstance(self.action, Box):
            raise ValueError(
                f"`spec.action={self.action}` has no `action_size`: actions are not "
                "vectors. `spec.action.struct` is the shape and type of any action, "
                "and `spec.action.num_outputs` how many outputs a network needs."
            )
        return self.action.size


# Observations or frames, with any axes before the last ones.
_Images = TypeVar("_Images", Array, np.ndarray)


@dataclasses.dataclass(frozen=True)
class Stacking:
    """The axes of an observation that consists of the latest frames of its episode.

    An observation is an array of the shape `(num_pixels, num_frames, num_channels)`,
    flattened, with the oldest frame first. At the beginning of an episode its first
    frame takes the place of earlier ones. An observation that is not stacked is one
    frame.
    """

    num_frames: int
    num_pixels: int
    num_channels: int

    @property
    def frame_size(self) -> int:
        """Elements of a frame."""
        return self.num_pixels * self.num_channels

    def together(self, frames: _Images) -> _Images:
        """Observations, from frames with the axes `(..., num_frames, frame_size)`."""
        batch = frames.shape[:-2]
        axes = (*batch, self.num_frames, self.num_pixels, self.num_channels)
        return frames.reshape(axes).swapaxes(-3, -2).reshape(*batch, -1)

    def newest(self, observations: _Images) -> _Images:
        """The newest frame of each observation."""
        batch = observations.shape[:-1]
        axes = (*batch, self.num_pixels, self.num_frames, self.num_channels)
        return observations.reshape(axes)[..., -1, :].reshape(*batch, -1)


# How many axes each field has in one transition; those before them are the rows.
_NUM_AXES = {
    "terminated": (0,),
    "truncated": (0,),
    "action": (0, 1),
    "reward": (0, 1),
    "observation": (1,),
    "next_observation": (1,),
    "state_descriptor": (1,),
    "next_state_descriptor": (1,),
    "critic_observation": (1,),
    "next_critic_observation": (1,),
    "episode_return": (0, 1),
}


class Transition(eqx.Module, Generic[Extras]):
    """One step of one environment, or any stack of such steps.

    `next_observation` is the true successor, never the first observation after a reset.
    `terminated` and `truncated` are never both true, and only `terminated` stops
    bootstrapping.
    """

    observation: Observation[Array, "*batch obs"]
    action: Float[Array, "*batch act"] | Int[Array, "*batch"]
    reward: Float[Array, "*batch"] | Float[Array, "*batch reward"]
    next_observation: Observation[Array, "*batch obs"]
    terminated: Bool[Array, "*batch"]
    truncated: Bool[Array, "*batch"]
    timestep: Int[Array, "*batch"]
    state_descriptor: Float[Array, "*batch descriptor"] | None
    next_state_descriptor: Float[Array, "*batch descriptor"] | None
    extras: Extras
    critic_observation: Float[Array, "*batch critic_obs"] | None = None
    next_critic_observation: Float[Array, "*batch critic_obs"] | None = None
    episode_return: Float[Array, "*batch"] | Float[Array, "*batch reward"] | None = None

    @property
    def for_critics(self) -> "Transition[Extras]":
        """The same steps, with the observations that critics see."""
        if self.critic_observation is None:
            return self
        return dataclasses.replace(
            self,
            observation=self.critic_observation,
            next_observation=self.next_critic_observation,
        )

    def __check_init__(self) -> None:
        for name in ("terminated", "truncated"):
            flag = getattr(self, name)
            if _is_array(flag) and flag.dtype != np.bool_:
                raise ValueError(
                    f"`{name}` is of type {flag.dtype}; it must be an array of type "
                    "bool, such as `done.astype(bool)`."
                )
        # In a specification, such as the `in_axes` of a `vmap`, fields are not arrays.
        if not _is_array(self.timestep):
            return
        rows = tuple(self.timestep.shape)
        for name, num_axes in _NUM_AXES.items():
            value = getattr(self, name)
            if not _is_array(value):
                continue
            shape = tuple(value.shape)
            if shape[: len(rows)] != rows or len(shape) - len(rows) not in num_axes:
                raise ValueError(
                    f"`{name}` has the shape {shape}, but `timestep` has {rows}: all "
                    "fields of a `Transition` begin with the same axes, those of its "
                    "rows" + (", and have one more." if num_axes == (1,) else ".")
                )


Transition.__init__.__doc__ = """**Arguments:**

- `observation`: the observation before the step.
- `action`: a vector in [-1, 1], or an integer; see `EnvSpec.action`.
- `reward`: a scalar, or a vector of `EnvSpec.reward_size`.
- `next_observation`: the observation after the step.
- `terminated`: whether the step ended the episode in a state without value.
- `truncated`: whether a time limit ended the episode, which did not terminate.
- `timestep`: number of steps taken in the episode before this one.
- `state_descriptor`: describes the state before the step, if the environment describes
    behavior.
- `next_state_descriptor`: describes the state after the step, likewise.
- `extras`: data that the agent stores with each transition; `None` for most agents.
- `critic_observation`: the observation of critics before the step, in place of
    `observation`; `None` if the environment has none.
- `next_critic_observation`: the observation of critics after the step, likewise.
- `episode_return`: the undiscounted sum of the rewards of the whole episode, in batches
    of `eqrl.ReplayBuffer(episode_returns=True)`: nan while the episode runs. `None`
    elsewhere.
"""


def _is_array(value: object) -> bool:
    # A specification may hold a class, which has these as properties.
    if isinstance(value, type):
        return False
    return hasattr(value, "shape") and hasattr(value, "dtype")


AnyTransition: TypeAlias = Transition[Any]
"""A transition, or a stack of them, whatever its extras are."""


def flatten_batch(batch: AnyTransition) -> AnyTransition:
    """Flattens all leading axes of transitions into one."""
    num_axes = batch.timestep.ndim
    return jax.tree.map(
        lambda x: x.reshape(math.prod(x.shape[:num_axes]), *x.shape[num_axes:]), batch
    )
