import copy
import functools
import warnings
from pathlib import Path
from typing import Any, Literal

import brax.envs
import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import mujoco
import numpy as np
from brax.envs.ant import Ant
from brax.envs.half_cheetah import Halfcheetah
from brax.envs.hopper import Hopper
from brax.envs.humanoid import Humanoid
from brax.envs.humanoidstandup import HumanoidStandup
from brax.envs.swimmer import Swimmer
from brax.envs.walker2d import Walker2d
from brax.envs.wrappers import training
from jaxtyping import Array, Float, PRNGKeyArray

from .._pytree.fields import checked
from .._types.custom_types import PyTree
from .._types.data import Box, EnvSpec
from ._base import (
    AbstractAdapter,
    Outcome,
    StateDescriptor,
    check_is_of,
    each_state,
    flat_observation,
    lenient_promotion,
    strongly_typed,
    traced_spec,
)
from ._wrappers import TimeLimit


# The wrappers that `brax.envs.create` adds, and others that end, reset or map.
_WRAPPERS_FOR_TRAINING = (
    training.AutoResetWrapper,
    training.DomainRandomizationVmapWrapper,
    training.EpisodeWrapper,
    training.EvalWrapper,
    training.VmapWrapper,
)


# Named functions rather than lambdas, since equal arguments must share compilations.
def _torso_xy(state: brax.envs.State) -> Float[Array, "2"]:
    assert state.pipeline_state is not None
    return state.pipeline_state.x.pos[0, :2]


def _torso_x(state: brax.envs.State) -> Float[Array, "1"]:
    return _torso_xy(state)[:1]


class BraxEnv(AbstractAdapter[brax.envs.State]):
    """A brax environment, without brax's wrappers for training.

    Its state is brax's `State`, every leaf a strongly typed array. An episode is
    terminated if brax reports `done`, even for `inverted_pendulum`, which calls that a
    time-out. There is no time limit; add one with `eqrl.envs.TimeLimit`.

    By default the state descriptor is the torso's position: x and y for `ant`,
    `humanoid`, `humanoidstandup` and `swimmer`, x for `halfcheetah`, `hopper` and
    `walker2d`. Other environments have none.
    """

    environment: brax.envs.Env = eqx.field(static=True)
    # Only to be shown, by which a sweep recognizes its environment.
    _backend: str | None = eqx.field(static=True)
    _state_descriptor: StateDescriptor | None = eqx.field(static=True)
    _spec: EnvSpec

    @checked
    def __init__(
        self,
        environment: brax.envs.Env,
        *,
        state_descriptor: StateDescriptor | None = None,
    ) -> None:
        """**Arguments:**

        - `environment`: from `brax.envs.get_environment`, possibly in custom wrappers.
            Those of `brax.envs.create` raise a `ValueError`, since they end episodes at
            a time limit as if they terminated, and reset by themselves. Only the same
            object shares compilations.
        - `state_descriptor`: a function of brax's `State` that returns a vector which
            describes the behavior. Pass a named function: each new lambda compiles
            again.
        """
        check_is_of(
            "brax",
            environment,
            has=("reset", "unwrapped"),
            source="what `brax.envs.get_environment` returns",
        )
        wrapper = environment
        # A custom wrapper may be around one for training.
        while isinstance(wrapper, brax.envs.Wrapper):
            if isinstance(wrapper, _WRAPPERS_FOR_TRAINING):
                raise ValueError(
                    f"`environment` is in `{type(wrapper).__name__}`, which is for "
                    "brax's own training, as `brax.envs.create` returns it. Pass what "
                    "`brax.envs.get_environment` returns, and for a time limit put the "
                    "`BraxEnv` in an `eqrl.envs.TimeLimit`."
                )
            wrapper = wrapper.env
        if state_descriptor is None:
            walker = environment.unwrapped
            if isinstance(walker, (Ant, Humanoid, HumanoidStandup, Swimmer)):
                state_descriptor = _torso_xy
            # These walk in the plane of x and z.
            elif isinstance(walker, (Halfcheetah, Hopper, Walker2d)):
                state_descriptor = _torso_x
        self.environment = environment
        self._backend = getattr(environment.unwrapped, "backend", None)
        self._state_descriptor = state_descriptor

        def begin() -> tuple[PyTree, brax.envs.State]:
            state = strongly_typed(environment.reset(jr.key(0)))
            return state.obs, state

        self._spec = traced_spec(
            begin,
            state_descriptor,
            name=type(environment.unwrapped).__name__,
            action=Box(environment.action_size),
        )

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[brax.envs.State, Float[Array, " obs"]]:
        with lenient_promotion():
            state = strongly_typed(self.environment.reset(key))
        return state, self._observation(state)

    def step(
        self, state: brax.envs.State, action: Float[Array, " act"], *, key: PRNGKeyArray
    ) -> tuple[brax.envs.State, Outcome]:
        del key
        # A copy, since brax writes into the state's dictionary of metrics.
        state = jax.tree.map(lambda leaf: leaf, state)
        with lenient_promotion():
            state = strongly_typed(self.environment.step(state, action))
        outcome = Outcome(
            observation=self._observation(state),
            reward=jnp.array(state.reward, dtype=jnp.result_type(float)),
            # Brax's flag is a float.
            terminated=state.done.astype(bool),
            # Only a wrapper for training, which is refused, has a time limit.
            truncated=jnp.array(False),
        )
        return state, outcome

    def _observation(self, state: brax.envs.State) -> Float[Array, " obs"]:
        assert isinstance(state.obs, jax.Array)
        return flat_observation(state.obs, self._spec)


# A compiled program belongs to the object, which is a static field of `BraxEnv`.
@functools.cache
def _environment(name: str, backend: str | None) -> brax.envs.Env:
    """Brax's environment of this name, always the same object."""
    options = {} if backend is None else {"backend": backend}
    # Users cannot do anything about these warnings: brax's that it is unmaintained, and
    # MuJoCo's about attributes in brax's models, on standard error and in a file.
    callbacks: Any = mujoco  # The stubs lack them.
    report = callbacks.get_mju_user_warning()
    callbacks.set_mju_user_warning(lambda message: None)
    try:
        with lenient_promotion(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Brax System", UserWarning)
            return brax.envs.get_environment(name, **options)
    finally:
        callbacks.set_mju_user_warning(report)


def names() -> list[str]:
    # Brax has no public list of its names.
    return sorted(brax.envs._envs)


@checked
def make(
    name: str,
    *,
    backend: Literal["generalized", "mjx", "positional", "spring"] | None = None,
    max_steps: int | None = None,
    state_descriptor: StateDescriptor | None = None,
) -> TimeLimit[brax.envs.State]:
    env = BraxEnv(_environment(name, backend), state_descriptor=state_descriptor)
    return TimeLimit(env, 1000 if max_steps is None else max_steps)


def name_of(env: BraxEnv) -> str:
    kind = type(env.environment.unwrapped)
    known = (name for name, each in brax.envs._envs.items() if each is kind)
    return f"brax/{next(known, kind.__name__)}"


def descriptor_names(env: BraxEnv) -> tuple[str, ...] | None:
    names: dict[object, tuple[str, ...]] = {_torso_xy: ("x", "y"), _torso_x: ("x",)}
    return names.get(env._state_descriptor)


def picture_suffix(env: BraxEnv) -> str:
    """The suffix of the file that `draw` writes, if it can draw this environment."""
    # All of brax's own have one, except `fast`, which is for tests.
    if getattr(env.environment, "sys", None) is not None:
        return ".html"
    name = type(env.environment.unwrapped).__name__
    raise ValueError(f"brax's `{name}` has no bodies that could be drawn.")


def draw(
    env: BraxEnv,
    states: PyTree,
    returns: Float[np.ndarray, " states"],
    path: Path,
    title: str,
) -> None:
    """Writes an interactive page, or a GIF if the path ends in `.gif`."""
    del returns, title
    environment: Any = env.environment
    # Players read the time between two states from here. One step of the environment
    # is several steps of the physics.
    system = environment.sys.tree_replace({"opt.timestep": environment.dt})
    bodies = each_state(states.pipeline_state)
    if path.suffix.lower() != ".gif":
        import brax.io.html

        path.write_text(brax.io.html.render(system, bodies))
        return
    import brax.io.image

    # A compiled module, whose names type checkers do not know.
    library: Any = mujoco
    # The bodies are dark, and so is the background if a model has no sky. The lamp at
    # the camera is brighter in a copy, since the model is shared.
    model = copy.copy(system.mj_model)
    model.vis.headlight.ambient[:] = 0.4
    model.vis.headlight.diffuse[:] = 0.6
    system = system.replace(mj_model=model)
    # The first camera follows the body, if the model has one.
    camera = model.camera(0).name if model.ncam > 0 else None
    try:
        content = brax.io.image.render(
            system, bodies, height=360, width=480, camera=camera, fmt="gif"
        )
    except (AttributeError, ImportError, library.FatalError) as error:
        raise ValueError(
            f"MuJoCo cannot draw here: {error}. Without a screen, set `MUJOCO_GL=egl` "
            "before Python starts; or write a `.html`, which the browser draws."
        ) from error
    path.write_bytes(content)
