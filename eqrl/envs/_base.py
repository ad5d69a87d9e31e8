import contextlib
import dataclasses
import importlib
import io
import math
import os
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeAlias, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Float, PRNGKeyArray, Shaped, UInt8
from typing_extensions import TypeVar

from .._pytree.fields import (
    check_fields,
    check_instance,
    converted,
    shown,
)
from .._pytree.tree import described, is_array_shape, show_values
from .._types.custom_types import (
    EnvState,
    Observation,
    ObservationDtype,
    PyTree,
    Tree,
)
from .._types.data import AbstractActionSpace, Action, EnvSpec


_Drawn = TypeVar("_Drawn", contravariant=True, default=PyTree)


class Outcome(eqx.Module):
    """Result of one step of an environment."""

    observation: Observation[Array, " obs"]
    reward: Float[Array, ""] | Float[Array, " reward"]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


Outcome.__init__.__doc__ = """**Arguments:**

- `observation`: the observation of the state reached, even if the episode ends there.
- `reward`: the reward of the step; a vector if `EnvSpec.reward_size` is not `None`.
- `terminated`: whether the episode ends in the state reached, whose value is then 0.
- `truncated`: whether the time limit was reached and the episode did not terminate.
"""


class AbstractEnv(eqx.Module, Generic[EnvState]):
    """One environment as pure functions, which never resets itself.

    It is written for a single environment; its callers map it over many.
    """

    def __check_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        return show_values(self)

    @staticmethod
    def _check_argument(name: str, value: object) -> None:
        check_is_env(name, value)

    @property
    @abstractmethod
    def spec(self) -> EnvSpec:
        """Sizes of the environment's inputs and outputs, and its time limit."""

    @abstractmethod
    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[EnvState, Observation[Array, " obs"]]:
        """Begins an episode.

        **Returns:**

        The state, of strongly typed arrays, and the first observation.
        """

    @abstractmethod
    def step(
        self, state: EnvState, action: Action, *, key: PRNGKeyArray
    ) -> tuple[EnvState, Outcome]:
        """Advances by one step, whether or not the episode is over.

        **Arguments:**

        - `state`: from `reset` or from the last step.
        - `action`: out of `spec.action`. The environment rescales each element of a
            vector from [-1, 1].
        - `key`: for the randomness of the step.

        **Returns:**

        The state, like that of `reset`, and what the step led to.
        """

    @abstractmethod
    def state_descriptor(self, state: EnvState) -> Float[Array, " descriptor"] | None:
        """Describes the behavior in `state`, such as a position, or is `None`.

        All elements must be finite.
        """

    def critic_observation(self, state: EnvState) -> Float[Array, " critic_obs"] | None:
        """Observation of `state` for critics, of `spec.critic_observation_size`.

        By default it is `None`: critics see what their actor sees.
        """
        del state
        return None


AnyEnv: TypeAlias = AbstractEnv[Any]
"""An environment with any state."""


@dataclasses.dataclass(frozen=True)
class Library:
    """A library of environments, as `eqrl.envs.make` knows it.

    - `module`: its adapter, imported on first use, with the functions `names()`,
        `make(name, *, max_steps, **options)`, `name_of(env)`, `descriptor_names(env)`,
        `picture_suffix(env)` and `draw(env, states, returns, path, title)`. If several
        libraries share it, the name of the object with the first two follows, as in
        `._functional:pgx`.
    - `wrapping`: how the adapter wraps an environment.
    - `example`: the name of one of its environments.
    - `options`: the options of `make` that it takes besides `max_steps`.
    """

    module: str
    wrapping: str
    example: str
    options: tuple[str, ...]

    @property
    def adapter(self) -> str:
        """The name of the adapter's class in `eqrl.envs`."""
        return self.wrapping.partition("(")[0]

    def load(self) -> Any:
        """The module of the adapter, or the object with its `names` and `make`."""
        name, _, part = self.module.partition(":")
        # MuJoCo, which brax imports, prints that it runs without Warp.
        with contextlib.redirect_stdout(io.StringIO()):
            module = importlib.import_module(name, __package__)
        return getattr(module, part) if part else module


# To add a library, add it here, the module of its adapter beside this file, its class
# to `__init__.py`, its name to `_SEARCHED` in `_make.py`, an extra of the same name to
# `pyproject.toml` and its tests to `tests/envs`.
LIBRARIES = {
    "brax": Library(
        "._brax", "BraxEnv(env)", "brax/ant", options=("backend", "state_descriptor")
    ),
    "craftax": Library(
        "._functional:craftax",
        "FunctionalEnv(env, params)",
        "craftax/Craftax-Symbolic-v1",
        options=("state_descriptor", "options"),
    ),
    "envpool": Library(
        "._envpool",
        "EnvPoolEnv(task_id)",
        "envpool/Pendulum-v1",
        options=(
            "num_threads",
            "state_descriptor",
            "observation",
            "critic_observation",
            "options",
        ),
    ),
    "gymnasium": Library(
        "._gymnasium",
        "GymnasiumEnv(function_that_makes_it)",
        "gymnasium/Pendulum-v1",
        options=(
            "num_processes",
            "state_descriptor",
            "observation",
            "critic_observation",
            "options",
        ),
    ),
    "gymnax": Library(
        "._gymnax",
        "GymnaxEnv(env, params)",
        "gymnax/Pendulum-v1",
        options=("state_descriptor",),
    ),
    "jumanji": Library(
        "._functional:jumanji",
        "FunctionalEnv(env)",
        "jumanji/Snake-v1",
        options=("state_descriptor", "observation", "options"),
    ),
    "navix": Library(
        "._functional:navix",
        "FunctionalEnv(env)",
        "navix/Navix-Empty-5x5-v0",
        options=("state_descriptor", "options"),
    ),
    "pgx": Library(
        "._functional:pgx",
        "FunctionalEnv(env)",
        "pgx/2048",
        options=("state_descriptor", "options"),
    ),
    "playground": Library(
        "._playground",
        "PlaygroundEnv(env)",
        "playground/CartpoleBalance",
        options=(
            "impl",
            "action_repeat",
            "state_descriptor",
            "observation",
            "critic_observation",
            "options",
        ),
    ),
    "xminigrid": Library(
        "._functional:xminigrid",
        "FunctionalEnv(env, params)",
        "xminigrid/MiniGrid-Empty-5x5",
        options=("state_descriptor", "options"),
    ),
}


def adapter_of(env: object) -> Any:
    """The module of the adapter whose environment this is, if it is one."""
    module = type(env).__module__
    for library in LIBRARIES.values():
        if module == f"{__package__}{library.module.partition(':')[0]}":
            return sys.modules[module]
    return None


def check_is_env(name: str, env: object) -> None:
    """Checks that `env`, the argument `name`, is an environment."""
    if isinstance(env, AbstractEnv):
        return
    if isinstance(env, str):
        raise ValueError(
            f"`{name}={shown(env)}` is the name of an environment; give the "
            f"environment, `eqrl.envs.make({shown(env)})`."
        )
    # Gymnax's `make` returns an environment and its parameters.
    given = env[0] if isinstance(env, tuple) and len(env) > 0 else env
    # A user's subclass belongs to the library, too.
    for each in type(given).__mro__:
        # Playground's package is `mujoco_playground`.
        library = each.__module__.partition(".")[0].removeprefix("mujoco_")
        if library not in LIBRARIES:
            continue
        wrapping = LIBRARIES[library].wrapping
        names = [parent.__name__ for parent in type(given).__mro__]
        if library == "gymnasium" and "VectorEnv" in names:
            wrapping = "GymnasiumVectorEnv(function_of_num_envs)"
        advice = (
            f"Wrap it: `eqrl.envs.{wrapping}`, or begin with "
            f'`eqrl.envs.make("{LIBRARIES[library].example}")`.'
        )
        raise ValueError(
            f"`{name}` is a {type(given).__name__} of {library}, not an environment of "
            f"eqrl. {advice}"
        )
    check_instance(name, env, AbstractEnv)


def check_is_of(
    library: str, environment: object, *, has: tuple[str, ...], source: str
) -> None:
    """Checks that `environment` is one of a library, by the attributes that it has.

    `source` is the function that makes one, for the error.
    """
    # Not by its class: environments that others wrote for the library pass.
    missing = any(getattr(environment, each, None) is None for each in has)
    if missing or isinstance(environment, type):
        raise ValueError(
            f"`environment={shown(environment)}` is not an environment of {library}; "
            f"give {source}, or use `eqrl.envs.make("
            f'"{LIBRARIES[library].example}")`.'
        )


class AbstractEnvWrapper(AbstractEnv[EnvState]):
    """An environment around another environment.

    Its state descriptor is that of the environment inside. Functions that look for
    something inside an environment, such as `eqrl.render`, look inside every wrapper,
    including a custom one.
    """

    @property
    @abstractmethod
    def inner(self) -> AnyEnv:
        """The environment inside."""

    @abstractmethod
    def inner_state(self, state: EnvState) -> PyTree:
        """The state of the environment inside: a part of `state`, or all of it.

        `state` may be a stack of states.
        """

    def state_descriptor(self, state: EnvState) -> Float[Array, " descriptor"] | None:
        return self.inner.state_descriptor(self.inner_state(state))

    def critic_observation(self, state: EnvState) -> Float[Array, " critic_obs"] | None:
        return self.inner.critic_observation(self.inner_state(state))


def innermost(env: AnyEnv) -> AnyEnv:
    """The environment inside all wrappers."""
    while isinstance(env, AbstractEnvWrapper):
        env = env.inner
    return env


@runtime_checkable
class Drawable(Protocol[_Drawn]):
    """An environment that can draw its states; `eqrl.render` makes a GIF of them.

    It need not derive from this class: a method `draw` is enough. If a wrapper has one,
    it is drawn instead of the environment inside.
    """

    def draw(
        self, state: _Drawn
    ) -> UInt8[np.ndarray, "height width 3"] | UInt8[Array, "height width 3"]:
        """An image of a state, in red, green and blue.

        **Arguments:**

        - `state`: the state of one environment, with NumPy arrays. This is not
            compiled, so any library may draw.
        """
        ...


@contextlib.contextmanager
def lenient_promotion() -> Iterator[None]:
    """Allows the promotion of dtypes and ranks that other libraries rely on."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


@contextlib.contextmanager
def no_devices() -> Iterator[None]:
    """Lets pygame, which libraries draw with, run without a screen or speakers."""
    names = ("SDL_VIDEODRIVER", "SDL_AUDIODRIVER")
    before = {name: os.environ[name] for name in names if name in os.environ}
    os.environ.update(dict.fromkeys(names, "dummy"))
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]
        os.environ.update(before)


def each_state(states: PyTree) -> list[PyTree]:
    """The states of a stack one by one, with NumPy arrays."""
    # One transfer for the whole stack, rather than one for each leaf of each state.
    leaves, structure = jax.tree.flatten(jax.device_get(states))
    return [
        jax.tree.unflatten(structure, leaves_of_step)
        for leaves_of_step in zip(*leaves, strict=True)
    ]


def strongly_typed(tree: Tree) -> Tree:
    """Makes every leaf a strongly typed array with its own buffer.

    Libraries start with Python numbers and continue with arrays, which `scan` rejects,
    and hold one array in two places, which rules out donation.
    """

    def strong(leaf: ArrayLike) -> Array:
        is_array = isinstance(leaf, jax.Array)
        # A key, which has no dtype to be converted to, is strongly typed.
        if is_array and jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
            return leaf
        return jnp.array(leaf, dtype=jnp.result_type(leaf))

    return jax.tree.map(strong, tree)


def flat_observation(
    observation: ArrayLike, spec: EnvSpec
) -> Observation[Array, " obs"]:
    """The observation as a vector, in the type that the `spec` requires."""
    return jnp.ravel(jnp.array(observation, dtype=spec.observation_struct.dtype))


def keys_of(given: str | tuple[str, ...] | None) -> tuple[str, ...] | None:
    """The keys of parts of an observation, even if only one is given."""
    return (given,) if isinstance(given, str) else given


def sorted_options(
    options: Mapping[str, object] | None,
) -> tuple[tuple[str, object], ...]:
    """Options by name, with lists as tuples: equal ones share an environment.

    Raises a `ValueError` if one has no hash.
    """
    pairs = tuple(
        (name, tuple(value) if isinstance(value, list) else value)
        for name, value in sorted((options or {}).items())
    )
    allowed = (
        "must have a hash, by which equal environments share their compilations: "
        "numbers, strings, lists or tuples, and an entry of a dictionary by its path, "
        'as in "a.b".'
    )
    for name, value in pairs:
        converted(f"options[{name!r}]", hash, value, allowed)
    return pairs


StateDescriptor = Callable[[PyTree], Shaped[Array, " descriptor"]]
"""From a state of another library's environment to a vector."""


class AbstractAdapter(AbstractEnv[EnvState]):
    """An environment of another library.

    Its state descriptor is a function of that environment's own state.
    """

    _state_descriptor: eqx.AbstractVar[StateDescriptor | None]
    _spec: eqx.AbstractVar[EnvSpec]

    @property
    def spec(self) -> EnvSpec:
        return self._spec

    def state_descriptor(self, state: EnvState) -> Float[Array, " descriptor"] | None:
        if self._state_descriptor is None:
            return None
        with lenient_promotion():
            descriptor = self._state_descriptor(state)
        return jnp.array(descriptor, dtype=jnp.result_type(float))


def traced_spec(
    begin: Callable[[], tuple[PyTree, PyTree]],
    state_descriptor: StateDescriptor | None,
    *,
    name: str,
    action: AbstractActionSpace,
    max_steps: int | None = None,
    observation_dtype: ObservationDtype = "float32",
) -> EnvSpec:
    """The `spec` of another library's environment, whose reset is traced, not run.

    `begin` returns the first observation and the first state of an episode, and `name`
    is the name of the environment, for errors.
    """

    def traced() -> tuple[PyTree, PyTree]:
        what = "must be a function of the environment's state."
        with lenient_promotion():
            observation, state = begin()
            if state_descriptor is None:
                return observation, None
            describe = lambda function: function(state)
            return observation, converted(
                "state_descriptor", describe, state_descriptor, what
            )

    observation, descriptor = eqx.filter_eval_shape(traced)
    if not is_array_shape(observation):
        raise ValueError(
            f"`{name}` observes a {type(observation).__name__}, but an observation "
            "must be one flat vector of numbers. Concatenate its parts in an "
            "environment of your own."
        )
    is_vector = is_array_shape(descriptor) and len(descriptor.shape) == 1
    if descriptor is not None and not is_vector:
        raise ValueError(
            f"`state_descriptor` of `{name}` gives one of {described(descriptor)}; it "
            "must give one flat vector, such as `jnp.stack([x, y])`."
        )
    shape = observation.shape
    return EnvSpec(
        observation_size=math.prod(shape),
        action=action,
        observation_shape=shape if len(shape) > 1 else None,
        observation_dtype=observation_dtype,
        state_descriptor_size=None if descriptor is None else descriptor.shape[0],
        max_steps=max_steps,
    )
