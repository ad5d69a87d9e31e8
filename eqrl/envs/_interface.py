"""The interface between the spaces of Gymnasium and vectors."""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np
from gymnasium import spaces
from jaxtyping import Float, Shaped

from .._types.custom_types import ObservationDtype
from .._types.data import AbstractActionSpace, Box, Discrete, EnvSpec


Describe = Callable[[dict[str, Any]], Shaped[np.ndarray, " descriptor"]]
"""A function from the infos of a step to a vector that describes the behavior."""

_POSITIONS = {"x": ("x_position",), "xy": ("x_position", "y_position")}


def described_by(
    state_descriptor: str | tuple[str, ...] | Describe | None,
) -> Describe | tuple[str, ...] | None:
    """The names of infos, written out, or the given function of them."""
    if isinstance(state_descriptor, str):
        return _POSITIONS.get(state_descriptor, (state_descriptor,))
    return state_descriptor


@dataclasses.dataclass(frozen=True)
class Interface:
    """Translates between the spaces of a simulator and vectors.

    - `observed`, `acted`: the spaces of its observations and actions.
    - `keys`: the parts to see of an observation that is a dictionary; `None` for all.
    - `describe`: a function from infos to a descriptor; names of infos; or `None`.
    - `critic_keys`: the parts that critics see; `None` if those are `keys`.
    - `is_critic`: whether this is the interface to what critics see, always floats.
    """

    # Instances of Gymnasium's `Space`, whose subclasses share little else.
    observed: Any
    acted: Any
    keys: tuple[str, ...] | None
    describe: Describe | tuple[str, ...] | None
    critic_keys: tuple[str, ...] | None = None
    is_critic: bool = False

    @functools.cached_property
    def critic(self) -> "Interface | None":
        """The interface to what critics see of an observation, if it differs."""
        if self.critic_keys is None:
            return None
        return dataclasses.replace(self, keys=self.critic_keys, is_critic=True)

    @property
    def seen(self) -> list[Any]:
        """The spaces of the parts of an observation that are seen."""
        if self.keys is None:
            return [self.observed]
        return [self.observed[key] for key in self.keys]

    @property
    def dtype(self) -> ObservationDtype:
        """The type of the vectors: that of an image, or else floats."""
        only, *others = self.seen
        is_bytes = not others and not self.is_critic and _is_image(only)
        return "uint8" if is_bytes else "float32"

    @functools.cached_property
    def is_channels_first(self) -> bool:
        """Whether an image is seen whose channels come first; they are moved last."""
        return len(self.seen) == 1 and is_channels_first(self.seen[0])

    @functools.cached_property
    def _divisors(self) -> Float[np.ndarray, " obs"] | None:
        """The divisors of vectors of floats: 255 where they hold images."""
        parts = [part for space in self.seen for part in _parts(space)]
        if self.dtype == "uint8" or not any(map(_is_image, parts)):
            return None
        sizes = [spaces.flatdim(part) for part in parts]
        values = [255 if _is_image(part) else 1 for part in parts]
        return np.repeat(np.array(values, np.float32), sizes)

    def observation(self, value: Any) -> Shaped[np.ndarray, " obs"]:
        """The vector of an observation."""
        if self.is_channels_first:
            image = value if self.keys is None else value[self.keys[0]]
            vector = np.moveaxis(np.asarray(image, self.dtype), 0, -1).reshape(-1)
        elif self.keys is not None:
            parts = [
                np.asarray(spaces.flatten(self.observed[key], value[key]))
                for key in self.keys
            ]
            vector = np.concatenate(parts)
        elif isinstance(self.observed, spaces.Box):
            vector = np.asarray(value, self.dtype).reshape(-1)
        else:
            vector = np.asarray(spaces.flatten(self.observed, value))
        return self._as_seen(vector)

    def check(self, name: str, value: Any) -> None:
        """Checks what is seen of an observation of the environment `name`."""
        keys = (*(self.keys or ()), *(self.critic_keys or ()))
        pairs = [(self.observed[key], value[key]) for key in keys]
        if self.keys is None:
            pairs = [(self.observed, value)]
        while pairs:
            space, value = pairs.pop()
            if isinstance(space, spaces.Dict):
                pairs += ((part, value[key]) for key, part in space.spaces.items())
            elif isinstance(space, spaces.Tuple):
                pairs += zip(space.spaces, value, strict=True)
            elif isinstance(space, spaces.Box | spaces.Discrete):
                array = np.asarray(value)
                if isinstance(space, spaces.Discrete):
                    choice = array - int(space.start)
                    fits = np.all((choice >= 0) & (choice < int(space.n)))
                else:
                    # As bytes, an image of floats from 0 to 1 would be black.
                    loses = _is_image(space) and np.any(array != array.astype(np.uint8))
                    fits = array.shape == space.shape and not loses
                if not fits:
                    raise ValueError(
                        f"`{name}` declares that it observes `{space}`, but its "
                        f"`reset` returns {array.dtype} of shape {array.shape}, from "
                        f"{array.min()} to {array.max()}."
                    )

    def observations(self, values: Any) -> Shaped[np.ndarray, "rows obs"]:
        """The vectors of a batch of observations, which are NumPy arrays by part."""
        if self.is_channels_first:
            images = values if self.keys is None else values[self.keys[0]]
            vectors = np.moveaxis(images, 1, -1).reshape(len(images), -1)
        elif self.keys is None:
            vectors = _flat(self.observed, values)
        else:
            parts = [_flat(self.observed[key], values[key]) for key in self.keys]
            vectors = np.concatenate(parts, axis=1)
        return self._as_seen(vectors)

    def _as_seen(
        self, vectors: Shaped[np.ndarray, "*rows obs"]
    ) -> Shaped[np.ndarray, "*rows obs"]:
        """Vectors in their type, with images among floats in [0, 1]."""
        vectors = vectors.astype(self.dtype, copy=False)
        return vectors if self._divisors is None else vectors / self._divisors

    def action(self, value: Shaped[np.ndarray, "..."] | np.integer[Any]) -> Any:
        """An agent's action, or a stack of them, as the simulator takes it."""
        if isinstance(self.acted, spaces.Discrete):
            start = int(self.acted.start)
            return int(value) + start if np.ndim(value) == 0 else value + start
        assert isinstance(self.acted, spaces.Box) and isinstance(value, np.ndarray)
        low, high = self.acted.low, self.acted.high
        # Center and half width leave an action unchanged if the bounds are -1 and 1.
        value = value.reshape((*value.shape[:-1], *low.shape))
        scaled = (high + low) / 2 + (high - low) / 2 * value
        # Rounding may lead out of the bounds, which strict simulators refuse.
        return np.clip(scaled.astype(self.acted.dtype), low, high)

    def descriptor(
        self, infos: dict[str, Any], *, begins: bool = False
    ) -> Float[np.ndarray, "..."]:
        """The descriptor of a state; an info that is missing at a reset counts as 0."""
        if isinstance(self.describe, tuple):
            missing = [name for name in self.describe if name not in infos]
            if missing and not begins:
                raise ValueError(
                    f"`state_descriptor` names {missing}, but the infos of a step are "
                    f"{sorted(infos)}."
                )
            values = [np.ravel(infos.get(name, 0.0)) for name in self.describe]
            return np.concatenate(values).astype(np.float32)
        assert self.describe is not None
        return np.asarray(self.describe(infos), np.float32)

    def spec(self, name: str, infos: dict[str, Any], max_steps: int | None) -> EnvSpec:
        """The sizes and the time limit of the environment.

        `infos` are those of a reset, and `name` is that of the environment, for errors.
        """
        known = self.observed.spaces if isinstance(self.observed, spaces.Dict) else ()
        given = {"observation": self.keys, "critic_observation": self.critic_keys}
        for argument, keys in given.items():
            wrong = [key for key in keys or () if key not in known]
            if wrong:
                raise ValueError(
                    f"`{argument}` names {wrong}, but `{name}` observes "
                    f"`{list(known) or self.observed}`."
                )
        seen = self.seen
        is_array = len(seen) == 1 and isinstance(seen[0], spaces.Box)
        shape: tuple[int, ...] = seen[0].shape if is_array else ()
        if self.is_channels_first:
            shape = (*shape[1:], *shape[:1])
        try:
            size, critic_size = sum(map(spaces.flatdim, seen)), None
            if self.critic is not None:
                critic_size = sum(map(spaces.flatdim, self.critic.seen))
        except (NotImplementedError, ValueError) as error:
            raise ValueError(
                f"`{name}` observes `{self.observed}`, which has no fixed size as a "
                "vector. Wrap the simulator so that it gives a `Box`."
            ) from error
        descriptor = (
            None if self.describe is None else self.descriptor(infos, begins=True)
        )
        if descriptor is not None and descriptor.ndim != 1:
            raise ValueError(
                f"`state_descriptor` of `{name}` gives an array of shape "
                f"{descriptor.shape}; it must give one flat vector."
            )
        return EnvSpec(
            observation_size=size,
            action=_action_space(self.acted, name=name),
            observation_shape=shape if len(shape) > 1 else None,
            observation_dtype=self.dtype,
            state_descriptor_size=None if descriptor is None else len(descriptor),
            max_steps=max_steps,
            critic_observation_size=critic_size,
        )


def is_channels_first(space: spaces.Space[object]) -> bool:
    """Whether a space is one of images with channels first, as Atari's are."""
    return (
        _is_image(space)
        and len(space.shape) == 3
        and space.shape[0] < min(space.shape[1:])
    )


def _is_image(space: spaces.Space[object]) -> TypeGuard[spaces.Box]:
    return isinstance(space, spaces.Box) and space.dtype == np.uint8


def _parts(space: spaces.Space[object]) -> list[spaces.Space[object]]:
    """The spaces that a space consists of, in the order of its vector."""
    if isinstance(space, spaces.Dict):
        return [part for each in space.spaces.values() for part in _parts(each)]
    if isinstance(space, spaces.Tuple):
        return [part for each in space.spaces for part in _parts(each)]
    return [space]


def _flat(space: spaces.Space[Any], values: Any) -> Shaped[np.ndarray, "rows size"]:
    """Flattens each row as `gymnasium.spaces.flatten` does."""
    if isinstance(space, spaces.Dict):
        parts = [_flat(part, values[key]) for key, part in space.spaces.items()]
        return np.concatenate(parts, axis=1)
    if isinstance(space, spaces.Tuple):
        parts = [_flat(*each) for each in zip(space.spaces, values, strict=True)]
        return np.concatenate(parts, axis=1)
    rows = len(values)
    if isinstance(space, spaces.Discrete):
        return np.eye(int(space.n), dtype=np.float32)[
            values.reshape(rows) - int(space.start)
        ]
    if isinstance(space, spaces.MultiDiscrete):
        flat = [np.asarray(spaces.flatten(space, value)) for value in values]
        return np.stack(flat)
    kind = np.uint8 if space.dtype == np.uint8 else np.float32
    return np.asarray(values, kind).reshape(rows, -1)


def _action_space(space: spaces.Space[Any], *, name: str) -> AbstractActionSpace:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if not isinstance(space, spaces.Box):
        raise ValueError(
            f"`{name}` has the action space `{space}`, but it must be a `Box` or "
            "`Discrete`. Wrap the simulator so that it maps one of these to its "
            "actions."
        )
    if not np.issubdtype(space.dtype, np.floating):
        raise ValueError(
            f"`{name}` has the action space `{space}`, of whole numbers. Wrap the "
            "simulator so that it maps a `Discrete` to them."
        )
    # The least and the greatest float stand for no bounds, and their range overflows.
    with np.errstate(over="ignore"):
        are_finite = np.isfinite(space.high - space.low).all()
    if not are_finite:
        raise ValueError(
            f"`{name}` has the action space `{space}`, but its bounds must be finite: "
            "actions in [-1, 1] are rescaled to them. Wrap the simulator in a "
            "`gymnasium.wrappers.RescaleAction`, or give its `Box` finite bounds."
        )
    return Box(int(np.prod(space.shape)))


def shown_names(
    describe: Describe | tuple[str, ...] | None,
) -> tuple[str, ...] | None:
    """The names of the elements of a descriptor, if they are known."""
    if isinstance(describe, tuple):
        return tuple(name.removesuffix("_position") for name in describe)
    return None
