from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl
from eqrl.envs import AbstractEnv, ActionRepeat, FrameStack, Outcome
from tests.toy import Clock, GetKey


class Pictures(AbstractEnv[Array]):
    """Observes a picture of which each element is a number of its own at each time."""

    shape: tuple[int, ...] | None = eqx.field(default=None, static=True)
    reward_size: int | None = eqx.field(default=None, static=True)

    @property
    def size(self) -> int:
        return 6 if self.shape is None else int(np.prod(self.shape))

    @property
    def spec(self) -> eqrl.EnvSpec:
        return eqrl.EnvSpec(
            self.size,
            1,
            observation_shape=self.shape,
            reward_size=self.reward_size,
            max_steps=4,
        )

    def reset(self, *, key: PRNGKeyArray) -> tuple[Array, Float[Array, " obs"]]:
        del key
        time = jnp.zeros((), int)
        return time, self._picture(time)

    def step(
        self, state: Array, action: Float[Array, "1"], *, key: PRNGKeyArray
    ) -> tuple[Array, Outcome]:
        del key
        time = state + 1
        reward = action[0] if self.reward_size is None else jnp.stack([action[0]] * 2)
        outcome = Outcome(
            observation=self._picture(time),
            reward=reward,
            terminated=jnp.array(False),
            truncated=time >= 4,
        )
        return time, outcome

    def state_descriptor(self, state: Array) -> None:
        del state
        return None

    def _picture(self, time: Array) -> Float[Array, " obs"]:
        return 100.0 * time.astype(float) + jnp.arange(self.size, dtype=float)


def observations(env: AbstractEnv[Any], num_steps: int) -> np.ndarray:
    """The first observation, and those of so many steps."""

    def play(key: PRNGKeyArray) -> list[Array]:
        state, observation = env.reset(key=key)
        seen = [observation]
        for _ in range(num_steps):
            state, outcome = env.step(state, jnp.array([0.5]), key=key)
            seen.append(outcome.observation)
        return seen

    return np.stack(jax.jit(play)(jax.random.key(0)))


def test_the_first_observation_stands_for_those_before_it() -> None:
    env = FrameStack(Pictures(), 3)
    seen = observations(env, 3).reshape(4, 3, 6)
    # The time at which each frame was seen.
    times = [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]
    np.testing.assert_array_equal(seen[..., 0] / 100, times)
    np.testing.assert_array_equal(
        seen - seen[..., :1], np.tile(np.arange(6), (4, 3, 1))
    )
    assert env.spec.observation_size == 18 and env.spec.observation_shape is None
    assert env.spec.max_steps == 4


@pytest.mark.parametrize(
    "shape, stacked", [((2, 3), (2, 3, 2)), ((2, 3, 2), (2, 3, 4)), ((5,), (10,))]
)
def test_frames_of_images_are_channels(
    shape: tuple[int, ...], stacked: tuple[int, ...]
) -> None:
    env = FrameStack(Pictures(shape), 2)
    assert env.spec.observation_shape == stacked
    last = observations(env, 1)[-1].reshape(env.spec.observation_shape)
    picture = np.arange(np.prod(shape), dtype=float).reshape(shape)
    if len(shape) == 2:
        expected = np.stack([picture, picture + 100], axis=-1)
    else:
        expected = np.concatenate([picture, picture + 100], axis=-1)
    np.testing.assert_array_equal(last, expected)


def test_what_else_the_environment_gives_stays(getkey: GetKey) -> None:
    env = FrameStack(Pictures(reward_size=2), 2)
    state, _ = env.reset(key=getkey())
    state, outcome = env.step(state, jnp.array([0.5]), key=getkey())
    np.testing.assert_array_equal(outcome.reward, [0.5, 0.5])
    clock = FrameStack(Clock(), 2)
    assert env.inner_state(state) == 1 and clock.spec.state_descriptor_size == 1
    clock = FrameStack(ActionRepeat(Clock(longest=9, terminates=False), 4), 2)
    eqrl.envs.check(clock, key=getkey(), num_steps=9, actions=False)
    with pytest.raises(ValueError, match="num_frames=0"):
        FrameStack(Pictures(), 0)
