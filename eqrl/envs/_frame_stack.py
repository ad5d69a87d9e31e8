import dataclasses
from typing import Generic

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._pytree.fields import check_fields, static_integer
from .._types.custom_types import EnvState
from .._types.data import EnvSpec
from .._types.spaces import Action
from ._base import AbstractEnv, AbstractEnvWrapper, Outcome, check_is_env


class FrameStackState(eqx.Module, Generic[EnvState]):
    """State of `FrameStack`: that of its environment and the latest observations."""

    inner: EnvState
    # The oldest first.
    frames: Float[Array, "frames obs"]


class FrameStack(AbstractEnvWrapper[FrameStackState[EnvState]], Generic[EnvState]):
    """An environment that observes the latest of its observations together.

    So an agent without memory sees how things move. At the beginning of an episode,
    where there are no earlier observations, the first one stands for them.

    Vectors are put one behind the other, the oldest first. Images, of which
    `spec.observation_shape` is `(height, width, channels)`, keep their height and width
    and have the channels of all; those of shape `(height, width)` become channels. A
    replay holds every observation that the agent sees, and so each of the environment's
    `num_frames` times.
    """

    env: AbstractEnv[EnvState]
    num_frames: int = static_integer(least=1)

    def __check_init__(self) -> None:
        check_is_env("env", self.env)
        check_fields(self)

    @property
    def inner(self) -> AbstractEnv[EnvState]:
        return self.env

    def inner_state(self, state: FrameStackState[EnvState]) -> EnvState:
        return state.inner

    @property
    def spec(self) -> EnvSpec:
        spec = self.env.spec
        shape = spec.observation_shape
        if shape is not None:
            channels = shape[-1] if len(shape) != 2 else 1
            space = shape[:-1] if len(shape) != 2 else shape
            shape = (*space, channels * self.num_frames)
        return dataclasses.replace(
            spec,
            observation_size=spec.observation_size * self.num_frames,
            observation_shape=shape,
        )

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[FrameStackState[EnvState], Float[Array, " obs"]]:
        inner, observation = self.env.reset(key=key)
        frames = jnp.tile(observation[None], (self.num_frames, 1))
        return FrameStackState(inner=inner, frames=frames), self._together(frames)

    def step(
        self, state: FrameStackState[EnvState], action: Action, *, key: PRNGKeyArray
    ) -> tuple[FrameStackState[EnvState], Outcome]:
        inner, outcome = self.env.step(state.inner, action, key=key)
        frames = jnp.concatenate([state.frames[1:], outcome.observation[None]])
        outcome = Outcome(
            observation=self._together(frames),
            reward=outcome.reward,
            terminated=outcome.terminated,
            truncated=outcome.truncated,
        )
        return FrameStackState(inner=inner, frames=frames), outcome

    def state_descriptor(
        self, state: FrameStackState[EnvState]
    ) -> Float[Array, " descriptor"] | None:
        return self.env.state_descriptor(state.inner)

    def _together(self, frames: Float[Array, "frames obs"]) -> Float[Array, " stacked"]:
        shape = self.env.spec.observation_shape
        if shape is None or len(shape) == 1:
            return frames.reshape(-1)
        images = frames.reshape(self.num_frames, *shape)
        # Behind height and width, and before the channels if there are any.
        axis = -1 if len(shape) == 2 else -2
        return jnp.moveaxis(images, 0, axis).reshape(-1)


FrameStack.__init__.__doc__ = """**Arguments:**

- `env`: any environment.
- `num_frames`: how many observations, the current one included, at least 1.
"""
