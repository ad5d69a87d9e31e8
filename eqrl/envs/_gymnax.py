import dataclasses
import functools
import importlib
import importlib.metadata
import math
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import equinox as eqx
import jax.core
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray, Shaped

from .._pytree.fields import checked
from .._types.custom_types import Observation, PyTree
from .._types.data import AbstractActionSpace, Action, Box, Discrete, EnvSpec
from .._types.installed import check_installed
from ._base import (
    AbstractAdapter,
    Outcome,
    StateDescriptor,
    check_is_of,
    each_state,
    flat_observation,
    lenient_promotion,
    no_devices,
    strongly_typed,
    traced_spec,
)


class _Later(ModuleType):
    """A placeholder for a module, which is imported when an attribute is read."""

    def __getattr__(self, name: str) -> object:
        if name.startswith("__"):
            raise AttributeError(name)
        # Otherwise the import would find this placeholder again.
        _forget(self)
        return getattr(importlib.import_module(self.__name__), name)


@contextmanager
def imported_later(*names: str) -> Iterator[None]:
    """Defers importing these modules until first use."""
    modules = {name: _Later(name) for name in names if name not in sys.modules}
    sys.modules.update(modules)
    try:
        yield
    finally:
        for module in modules.values():
            _forget(module)


def _forget(module: ModuleType) -> None:
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]


# Only some pictures need these two, which take longer to import than all of gymnax.
with imported_later("matplotlib.pyplot", "seaborn"):
    import gymnax
    from gymnax.environments import spaces


if TYPE_CHECKING:
    # gymnax has no types of its own.
    Environment: TypeAlias = Any
    EnvParams: TypeAlias = PyTree
    EnvState: TypeAlias = PyTree
else:
    from gymnax.environments.environment import Environment, EnvParams, EnvState


# Their images hold only 0 and 1, which gymnax returns as floats.
BINARY_IMAGES = frozenset(
    {
        "Asterix-MinAtar",
        "Breakout-MinAtar",
        "Catch-bsuite",
        "DeepSea-bsuite",
        "Freeway-MinAtar",
        "Pong-misc",
        "Seaquest-MinAtar",
        "SpaceInvaders-MinAtar",
    }
)


def _action_space(space: spaces.Space, *, name: str) -> AbstractActionSpace:
    if isinstance(space, spaces.Discrete):
        return Discrete(int(space.n))
    if not isinstance(space, spaces.Box):
        raise ValueError(
            f"`{name}` has the action space `{space!r}`, but it must be a `Box` or "
            "`Discrete`. Write an environment of your own, which maps one of these to "
            "its actions."
        )
    bounds = (space.low, space.high)
    # Traced bounds were checked when the environment was made.
    traced = any(isinstance(bound, jax.core.Tracer) for bound in bounds)
    if not traced and not all(np.all(np.isfinite(bound)) for bound in bounds):
        raise ValueError(
            f"`{name}` has the action space `{space!r}`, but its bounds must be "
            "finite: actions in [-1, 1] are rescaled to them. Give finite bounds "
            "through its `params`, or in an environment of your own."
        )
    return Box(math.prod(space.shape))


class GymnaxEnv(AbstractAdapter[EnvState]):
    """A gymnax environment.

    Its state is the environment's own, every leaf a strongly typed array. Actions that
    are vectors in [-1, 1] are rescaled to the environment's bounds; choices are passed
    as they are. Observations of any shape and type become flat vectors; of an image,
    `spec.observation_shape` is the shape. Images of 0 and 1 only, such as those of
    MinAtar, become bools, everything else floats. The time limit is the environment's
    `params.max_steps_in_episode`.
    """

    environment: Environment = eqx.field(static=True)
    params: EnvParams
    _state_descriptor: StateDescriptor | None = eqx.field(static=True)
    _spec: EnvSpec

    @checked
    def __init__(
        self,
        environment: Environment,
        params: EnvParams | None = None,
        *,
        state_descriptor: StateDescriptor | None = None,
    ) -> None:
        """**Arguments:**

        - `environment`: the first result of `gymnax.make`. Only the same object shares
            compilations.
        - `params`: the second, possibly with other values; by default those of the
            environment.
        - `state_descriptor`: a function of the environment's state that returns a
            vector that describes the behavior; `None` for no descriptor. Pass a named
            function: each new lambda compiles again.
        """
        version = importlib.metadata.version("gymnax")
        if int(version.split(".")[0]) < 1:
            raise ValueError(
                f"gymnax {version} is installed, which does not tell termination from "
                'a time limit; run `pip install "gymnax>=1.0"`.'
            )
        check_is_of(
            "gymnax",
            environment,
            has=("reset_env",),
            source="the first result of `gymnax.make`",
        )
        chosen: EnvParams = environment.default_params if params is None else params
        self.environment = environment
        self.params = chosen
        self._state_descriptor = state_descriptor
        name = environment.name
        self._spec = traced_spec(
            lambda: strongly_typed(environment.reset_env(jr.key(0), chosen)),
            state_descriptor,
            name=name,
            action=_action_space(environment.action_space(chosen), name=name),
            max_steps=int(chosen.max_steps_in_episode),
            observation_dtype="bool" if name in BINARY_IMAGES else "float32",
        )

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[EnvState, Observation[Array, " obs"]]:
        with lenient_promotion():
            observation, state = self.environment.reset_env(key, self.params)
        return strongly_typed(state), flat_observation(observation, self._spec)

    def step(
        self, state: EnvState, action: Action, *, key: PRNGKeyArray
    ) -> tuple[EnvState, Outcome]:
        # Not `step`, which resets the environment when an episode ends.
        with lenient_promotion():
            observation, state, reward, terminated, _ = self.environment.step_env(
                key, state, self._native(action), self.params
            )
            state = strongly_typed(state)
            terminated = jnp.array(terminated, dtype=bool)
            time_out = jnp.asarray(self.environment.is_truncated(state, self.params))
        outcome = Outcome(
            observation=flat_observation(observation, self._spec),
            reward=jnp.array(reward, dtype=jnp.result_type(float)),
            terminated=terminated,
            # The time limit only depends on the steps, even if the episode terminates.
            truncated=time_out & ~terminated,
        )
        return state, outcome

    def _native(self, action: Action) -> Shaped[Array, "*shape"]:
        """The action as the environment takes it."""
        if isinstance(self._spec.action, Discrete):
            return action
        space = self.environment.action_space(self.params)
        low = jnp.asarray(space.low, dtype=action.dtype)
        high = jnp.asarray(space.high, dtype=action.dtype)
        # Center and half width leave an action unchanged if the bounds are -1 and 1.
        center = jnp.broadcast_to((high + low) / 2, space.shape)
        half_width = jnp.broadcast_to((high - low) / 2, space.shape)
        return center + half_width * action.reshape(space.shape)


# A compiled program belongs to the object, which is a static field of `GymnaxEnv`.
@functools.cache
def _environment(name: str) -> Environment:
    """Gymnax's environment of this name, always the same object."""
    with lenient_promotion():
        return gymnax.make(name)[0]


def names() -> list[str]:
    return sorted(gymnax.registered_envs)


def make(
    name: str,
    *,
    max_steps: int | None = None,
    state_descriptor: StateDescriptor | None = None,
) -> GymnaxEnv:
    environment = _environment(name)
    params = environment.default_params
    if max_steps is not None:
        params = dataclasses.replace(params, max_steps_in_episode=max_steps)
    return GymnaxEnv(environment, params, state_descriptor=state_descriptor)


def name_of(env: GymnaxEnv) -> str:
    return f"gymnax/{env.environment.name}"


def descriptor_names(env: GymnaxEnv) -> None:
    del env


_MOST_PICTURES = 500
DRAWN = [
    "Acrobot-v1",
    "Asterix-MinAtar",
    "Breakout-MinAtar",
    "CartPole-v1",
    "Catch-bsuite",
    "FourRooms-misc",
    "Freeway-MinAtar",
    "MetaMaze-misc",
    "MountainCar-v0",
    "MountainCarContinuous-v0",
    "Pendulum-v1",
    "PointRobot-misc",
    "Pong-misc",
    "Seaquest-MinAtar",
    "SpaceInvaders-MinAtar",
]


def picture_suffix(env: GymnaxEnv) -> str:
    """The suffix of the file that `draw` writes, if it can draw this environment."""
    name = env.environment.name
    if name not in DRAWN:
        raise ValueError(f"gymnax does not draw `{name}`; it does {', '.join(DRAWN)}.")
    # Only names of classic control, which pygame draws, have a version.
    if "-v" in name:
        check_installed("pygame", f"`render` of `gymnax/{name}`", extra="gymnax")
    return ".gif"


def draw(
    env: GymnaxEnv,
    states: PyTree,
    returns: Float[np.ndarray, " states"],
    path: Path,
    title: str,
) -> None:
    """Writes a GIF, of long episodes with some of the states."""
    import matplotlib.pyplot as plt
    from gymnax.visualize import Visualizer
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from PIL import Image

    # A picture takes a tenth of a second, and all of them are kept until the end.
    every = -(-len(returns) // _MOST_PICTURES)
    with no_devices(), lenient_promotion():
        visualizer = Visualizer(
            env.environment, env.params, each_state(states), returns
        )
        try:
            if title:
                # Above the title of the axes, which gymnax sets for each picture.
                visualizer.fig.suptitle(title)
            visualizer.init()
            canvas, images = FigureCanvasAgg(visualizer.fig), []
            for index in range((len(returns) - 1) % every, len(returns), every):
                visualizer.update(index)
                canvas.draw()
                image = Image.fromarray(np.asarray(canvas.buffer_rgba()))
                images.append(image.convert("RGB").quantize())
        finally:
            plt.close(visualizer.fig)
    first, *others = images
    duration = visualizer.interval
    first.save(path, save_all=True, append_images=others, duration=duration, loop=0)
