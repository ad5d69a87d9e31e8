"""Environments of JAX libraries with their own interfaces."""

import copy
import dataclasses
import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray, Shaped

from .._pytree.fields import checked, shown
from .._types.custom_types import EnvState, Observation, PyTree
from .._types.data import Action, Discrete, EnvSpec
from ._base import (
    AbstractAdapter,
    Outcome,
    StateDescriptor,
    flat_observation,
    keys_of,
    lenient_promotion,
    sorted_options,
    strongly_typed,
    traced_spec,
)
from ._wrappers import TimeLimit


# The time limit of environments without one, whose episodes may last forever.
_LIMIT = 1000
# Longer than any episode, but fits in 32 bits.
_NEVER = 2**31 - 1
# A network has an output for each choice.
_MOST_CHOICES = 100_000


class World(NamedTuple):
    """An environment of a library, and its parameters if they are not in it."""

    # No library is imported before it is used, and none has all of these types.
    environment: Any
    params: Any = None


Options: TypeAlias = dict[str, object]
Begun: TypeAlias = tuple[PyTree, PyTree]
"""The state and the observation."""
Reached: TypeAlias = tuple[PyTree, PyTree, Shaped[Array, ""], Shaped[Array, ""]]
"""The state, the observation, the reward, and whether the episode terminates."""


class AbstractInterface(ABC):
    """Lists, makes and steps the environments of one library."""

    @abstractmethod
    def names(self) -> list[str]:
        """The names of its environments."""

    @abstractmethod
    def load(self, name: str, max_steps: int | None, options: Options) -> World:
        """Makes an environment, by default with the library's time limit."""

    @abstractmethod
    def without_limit(self, world: World) -> tuple[World, int | None]:
        """Removes a time limit that would terminate; the second result is the limit."""

    @abstractmethod
    def choices(self, world: World) -> tuple[int, ...]:
        """The number of values of each element of an action."""

    @abstractmethod
    def begin(self, world: World, key: PRNGKeyArray) -> Begun:
        """Begins an episode."""

    @abstractmethod
    def step(
        self, world: World, state: PyTree, action: Int[Array, "..."], key: PRNGKeyArray
    ) -> Reached:
        """Steps to the true successor, without a reset."""

    @abstractmethod
    def time(self, state: PyTree) -> Shaped[Array, ""]:
        """The steps since the reset; only called if there is a time limit."""

    def make(
        self,
        name: str,
        *,
        max_steps: int | None = None,
        state_descriptor: StateDescriptor | None = None,
        observation: str | tuple[str, ...] | None = None,
        options: Mapping[str, object] | None = None,
    ) -> "FunctionalEnv | TimeLimit":
        given = sorted_options(options)
        return _made(self, name, max_steps, state_descriptor, observation, given)


# A compiled program belongs to the object, which is a static field.
@functools.cache
def _made(
    interface: AbstractInterface,
    name: str,
    max_steps: int | None,
    state_descriptor: StateDescriptor | None,
    observation: str | tuple[str, ...] | None,
    options: tuple[tuple[str, object], ...],
) -> "FunctionalEnv | TimeLimit":
    try:
        with lenient_promotion():
            world = interface.load(name, max_steps, dict(options))
    except TypeError as error:
        raise ValueError(f"`options={dict(options)}` of `{name}`: {error}.") from error
    env = FunctionalEnv(
        *world, state_descriptor=state_descriptor, observation=observation, name=name
    )
    if env.spec.max_steps is not None:
        return env
    return TimeLimit(env, _LIMIT if max_steps is None else max_steps)


class _Craftax(AbstractInterface):
    def names(self) -> list[str]:
        import craftax.craftax_env  # noqa: F401  # pyright: ignore[reportMissingImports]

        kinds, sights = ("", "Classic-"), ("Symbolic", "Pixels")
        return [f"Craftax-{kind}{sight}-v1" for kind in kinds for sight in sights]

    def load(self, name: str, max_steps: int | None, options: Options) -> World:
        from craftax import craftax_env  # pyright: ignore[reportMissingImports]

        environment = craftax_env.make_craftax_env_from_name(name, auto_reset=False)
        if max_steps is not None:
            options = options | {"max_timesteps": max_steps}
        return World(environment, environment.default_params.replace(**options))

    def without_limit(self, world: World) -> tuple[World, int | None]:
        params = world.params or world.environment.default_params
        unlimited = params.replace(max_timesteps=_NEVER)
        return World(world.environment, unlimited), int(params.max_timesteps)

    def choices(self, world: World) -> tuple[int, ...]:
        return (world.environment.num_actions,)

    def begin(self, world: World, key: PRNGKeyArray) -> Begun:
        observation, state = world.environment.reset_env(key, world.params)
        return state, observation

    def step(
        self, world: World, state: PyTree, action: Int[Array, "..."], key: PRNGKeyArray
    ) -> Reached:
        observation, state, reward, terminated, _ = world.environment.step_env(
            key, state, action, world.params
        )
        return state, observation, reward, terminated

    def time(self, state: PyTree) -> Shaped[Array, ""]:
        return state.timestep


class _Jumanji(AbstractInterface):
    def names(self) -> list[str]:
        import jumanji  # pyright: ignore[reportMissingImports]

        return sorted(jumanji.registered_environments())

    def load(self, name: str, max_steps: int | None, options: Options) -> World:
        import jumanji  # pyright: ignore[reportMissingImports]

        environment = jumanji.make(name, **options)
        if max_steps is not None and hasattr(environment.unwrapped, "time_limit"):
            # Made again, since some have arrays as long as an episode.
            environment = jumanji.make(name, **options | {"time_limit": max_steps})
        return World(environment)

    def without_limit(self, world: World) -> tuple[World, int | None]:
        limit = getattr(world.environment.unwrapped, "time_limit", None)
        if limit is None:
            return world, None
        # With the wrappers of the library around it.
        environment = copy.deepcopy(world.environment)
        environment.unwrapped.time_limit = _NEVER
        return World(environment), limit

    def choices(self, world: World) -> tuple[int, ...]:
        space, rewards = world.environment.action_spec, world.environment.reward_spec
        values = getattr(space, "num_values", None)
        if values is None or rewards.shape != ():
            raise ValueError(
                f"`{type(world.environment).__name__}` of jumanji takes `{space}` and "
                f"gives rewards of shape {rewards.shape}. It must take choices and "
                "give one reward."
            )
        return tuple(np.ravel(values).tolist())

    def begin(self, world: World, key: PRNGKeyArray) -> Begun:
        state, timestep = world.environment.reset(key)
        return state, timestep.observation

    def step(
        self, world: World, state: PyTree, action: Int[Array, "..."], key: PRNGKeyArray
    ) -> Reached:
        action = action.reshape(world.environment.action_spec.shape)
        state, timestep = world.environment.step(state, action)
        return state, timestep.observation, timestep.reward, timestep.last()

    def time(self, state: PyTree) -> Shaped[Array, ""]:
        return state.step_count


class _Navix(AbstractInterface):
    def names(self) -> list[str]:
        import navix  # pyright: ignore[reportMissingImports]

        return list(navix.registry())

    def load(self, name: str, max_steps: int | None, options: Options) -> World:
        import navix  # pyright: ignore[reportMissingImports]

        limit = {} if max_steps is None else {"max_steps": max_steps}
        return World(navix.make(name, **options, **limit))

    def without_limit(self, world: World) -> tuple[World, int | None]:
        # It truncates, and the reward may depend on it.
        return world, world.environment.max_steps

    def choices(self, world: World) -> tuple[int, ...]:
        return (len(world.environment.action_set),)

    def begin(self, world: World, key: PRNGKeyArray) -> Begun:
        state = world.environment.reset(key)
        return state, state.observation

    def step(
        self, world: World, state: PyTree, action: Int[Array, "..."], key: PRNGKeyArray
    ) -> Reached:
        # Not `step`, which resets an environment whose episode is over.
        state = world.environment._step(state, action)
        return state, state.observation, state.reward, state.is_termination()

    def time(self, state: PyTree) -> Shaped[Array, ""]:
        return state.t


class _Pgx(AbstractInterface):
    def names(self) -> list[str]:
        import pgx  # pyright: ignore[reportMissingImports]

        # Games for one player.
        known = pgx.available_envs()
        return [name for name in known if name.startswith(("2048", "minatar-"))]

    def load(self, name: str, max_steps: int | None, options: Options) -> World:
        import pgx  # pyright: ignore[reportMissingImports]

        # `pgx.make` takes the name alone.
        return World(type(pgx.make(name))(**options))

    def without_limit(self, world: World) -> tuple[World, int | None]:
        return world, None

    def choices(self, world: World) -> tuple[int, ...]:
        if world.environment.num_players > 1:
            raise ValueError(
                f"`{world.environment.id}` of pgx is for "
                f"{world.environment.num_players} players, but one agent plays: "
                f"{', '.join(self.names())}."
            )
        return (world.environment.num_actions,)

    def begin(self, world: World, key: PRNGKeyArray) -> Begun:
        state = world.environment.init(key)
        return state, state.observation

    def step(
        self, world: World, state: PyTree, action: Int[Array, "..."], key: PRNGKeyArray
    ) -> Reached:
        state = world.environment.step(state, action, key)
        return state, state.observation, state.rewards[0], state.terminated

    def time(self, state: PyTree) -> Shaped[Array, ""]:
        return state._step_count


class _XMiniGrid(AbstractInterface):
    def names(self) -> list[str]:
        import xminigrid  # pyright: ignore[reportMissingImports]

        return list(xminigrid.registered_environments())

    def load(self, name: str, max_steps: int | None, options: Options) -> World:
        import xminigrid  # pyright: ignore[reportMissingImports]

        limit = {} if max_steps is None else {"max_steps": max_steps}
        return World(*xminigrid.make(name, **options, **limit))

    def without_limit(self, world: World) -> tuple[World, int | None]:
        # It truncates, and the reward depends on it.
        params = world.params or world.environment.default_params()
        return World(world.environment, params), params.max_steps

    def choices(self, world: World) -> tuple[int, ...]:
        return (world.environment.num_actions(world.params),)

    def begin(self, world: World, key: PRNGKeyArray) -> Begun:
        state = world.environment.reset(world.params, key)
        return state, state.observation

    def step(
        self, world: World, state: PyTree, action: Int[Array, "..."], key: PRNGKeyArray
    ) -> Reached:
        state = world.environment.step(world.params, state, action)
        return state, state.observation, state.reward, state.discount == 0

    def time(self, state: PyTree) -> Shaped[Array, ""]:
        return state.state.step_num


craftax = _Craftax()
jumanji = _Jumanji()
navix = _Navix()
pgx = _Pgx()
xminigrid = _XMiniGrid()

_INTERFACES: dict[str, AbstractInterface] = {
    "craftax": craftax,
    "jumanji": jumanji,
    "navix": navix,
    "pgx": pgx,
    "xminigrid": xminigrid,
}


@dataclasses.dataclass(frozen=True, eq=False)
class _Same:
    """Equal to nothing else, since environments of navix cannot be compared."""

    environment: object


class FunctionalEnv(AbstractAdapter[EnvState]):
    """An environment of Craftax, Jumanji, Navix, pgx or XLand-MiniGrid.

    Its state is the environment's own, every leaf a strongly typed array. Observations
    become flat vectors: bools stay bools, and all other numbers become floats of the
    same value. The shape of an observation is in `spec.observation_shape`; several
    fields are concatenated. An action of several choices becomes one choice among all
    their combinations. The environment's own time limit truncates.

    **Attributes:**

    - `library`: the name of the library, as `eqrl.envs.make` takes it.
    """

    params: PyTree
    library: str = eqx.field(static=True)
    name: str = eqx.field(static=True)
    _same: _Same = eqx.field(static=True)
    _choices: tuple[int, ...] = eqx.field(static=True)
    _fields: tuple[str, ...] | None = eqx.field(static=True)
    _state_descriptor: StateDescriptor | None = eqx.field(static=True)
    _spec: EnvSpec = eqx.field(static=True)

    @checked
    def __init__(
        self,
        environment: object,
        params: PyTree = None,
        *,
        state_descriptor: StateDescriptor | None = None,
        observation: str | tuple[str, ...] | None = None,
        name: str | None = None,
    ) -> None:
        """**Arguments:**

        - `environment`: an environment of one of the libraries, without a wrapper that
            resets it. Each `FunctionalEnv` compiles again, so make one and keep it.
        - `params`: for Craftax and XLand-MiniGrid, the parameters; by default those of
            the environment.
        - `state_descriptor`: a function of the environment's state that returns a
            vector that describes the behavior; `None` for no descriptor.
        - `observation`: the field or fields to see of an observation that has several;
            `None` takes all.
        - `name`: the name in titles; by default that of its class.
        """
        packages = [each.__module__ for each in type(environment).__mro__]
        libraries = [name.partition(".")[0] for name in packages]
        known = [name for name in libraries if name in _INTERFACES]
        if not known:
            raise ValueError(
                f"`environment={shown(environment)}` is not an environment of "
                f"{', '.join(_INTERFACES)}; give one, or use "
                '`eqrl.envs.make("pgx/2048")`.'
            )
        self.library = known[0]
        self.name = type(environment).__name__ if name is None else name
        interface = _INTERFACES[self.library]
        self._choices = interface.choices(World(environment, params))
        num_actions = math.prod(self._choices)
        if num_actions > _MOST_CHOICES:
            raise ValueError(
                f"`{name_of(self)}` has {num_actions:,} actions, which are too many: a "
                f"network has an output for each of at most {_MOST_CHOICES:,}."
            )
        world, max_steps = interface.without_limit(World(environment, params))
        self.params = world.params
        self._same = _Same(world.environment)
        self._fields = keys_of(observation)
        self._state_descriptor = state_descriptor

        def begin() -> tuple[PyTree, PyTree]:
            state, seen = interface.begin(world, jr.key(0))
            return self._chosen(seen), strongly_typed(state)

        with lenient_promotion():
            seen, _ = eqx.filter_eval_shape(begin)
        self._spec = traced_spec(
            begin,
            state_descriptor,
            name=name_of(self),
            action=Discrete(num_actions),
            max_steps=max_steps,
            observation_dtype="bool" if seen.dtype == bool else "float32",
        )

    @property
    def environment(self) -> Any:
        """The environment, without a time limit that would terminate."""
        return self._same.environment

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[EnvState, Observation[Array, " obs"]]:
        world = World(self.environment, self.params)
        with lenient_promotion():
            state, seen = _INTERFACES[self.library].begin(world, key)
        seen = flat_observation(self._chosen(seen), self._spec)
        return strongly_typed(state), seen

    def step(
        self, state: EnvState, action: Action, *, key: PRNGKeyArray
    ) -> tuple[EnvState, Outcome]:
        interface = _INTERFACES[self.library]
        world = World(self.environment, self.params)
        if len(self._choices) > 1:
            action = jnp.stack(jnp.unravel_index(action, self._choices))
        # A copy, since navix writes into the state's dictionary.
        state = jax.tree.map(lambda leaf: leaf, state)
        with lenient_promotion():
            state, seen, reward, terminated = interface.step(world, state, action, key)
            state = strongly_typed(state)
        terminated = jnp.array(terminated, dtype=bool)
        limit = self._spec.max_steps
        time_out = False if limit is None else interface.time(state) >= limit
        outcome = Outcome(
            observation=flat_observation(self._chosen(seen), self._spec),
            reward=jnp.array(reward, dtype=jnp.result_type(float)),
            terminated=terminated,
            truncated=time_out & ~terminated,
        )
        return state, outcome

    def _chosen(self, seen: PyTree) -> Shaped[Array, "..."]:
        """The observation as one array."""
        if self._fields is not None:
            known = getattr(seen, "_fields", None) or tuple(vars(seen))
            wrong = [key for key in self._fields if key not in known]
            if wrong:
                raise ValueError(
                    f"`observation` of `{name_of(self)}` has no field {wrong[0]!r}; it "
                    f"has {', '.join(known)}."
                )
            seen = [getattr(seen, key) for key in self._fields]
        parts = jax.tree.leaves(seen)
        if len(parts) == 1:
            return jnp.asarray(parts[0])
        to_float = lambda part: jnp.ravel(part).astype(jnp.result_type(float))
        return jnp.concatenate([to_float(part) for part in parts])


def name_of(env: FunctionalEnv) -> str:
    return f"{env.library}/{env.name}"


def descriptor_names(env: FunctionalEnv) -> None:
    del env


def picture_suffix(env: FunctionalEnv) -> str:
    raise ValueError(
        f"There is no way to draw `{name_of(env)}`: put a wrapper around it that has a "
        "method `draw` from a state to an image, see `eqrl.envs.Drawable`."
    )


def draw(
    env: FunctionalEnv,
    states: PyTree,
    returns: Float[np.ndarray, " states"],
    path: Path,
    title: str,
) -> None:
    del states, returns, path, title
    picture_suffix(env)
