import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, PRNGKeyArray

from eqrl.envs import ActionRepeat, TimeLimit
from tests.toy import Clock, ClockState, Drift, GetKey


def step_from(
    env: ActionRepeat[ClockState], time: int, length: int
) -> tuple[int, float | np.ndarray, bool, bool]:
    """What a step of a `Clock` leads to: the time, the reward, and whether it ends."""
    state = ClockState(time=jnp.asarray(time), length=jnp.asarray(length))
    state, outcome = env.step(state, jnp.zeros(1), key=jax.random.key(0))
    np.testing.assert_array_equal(outcome.observation, [state.time, length])
    reward = np.asarray(outcome.reward)
    return (
        int(state.time),
        reward if reward.ndim > 0 else float(reward),
        bool(outcome.terminated),
        bool(outcome.truncated),
    )


def test_rewards_are_summed_up_to_the_end_and_not_beyond() -> None:
    env = ActionRepeat(Clock(longest=9), 3)
    # The step of a clock that leaves time t is worth t + 1.
    assert step_from(env, 2, 9) == (5, 3 + 4 + 5, False, False)
    # It ends in the second of three; what comes behind would be worth 1000.
    assert step_from(env, 3, 5) == (5, 4 + 5, True, False)
    assert step_from(env, 2, 5) == (5, 3 + 4 + 5, True, False)


def test_a_time_limit_inside_is_kept() -> None:
    env = ActionRepeat(Clock(longest=9, terminates=False), 4)
    assert step_from(env, 3, 5) == (5, 4 + 5, False, True)
    assert env.spec.max_steps == 3  # 4 + 4 + 1 of 9.
    assert ActionRepeat(Clock(has_limit=False), 4).spec.max_steps is None


def test_vector_rewards_are_summed_each() -> None:
    env = ActionRepeat(Clock(longest=9, reward_size=2), 3)
    _, reward, _, _ = step_from(env, 3, 5)
    np.testing.assert_array_equal(reward, [9, -4])


def test_each_repeat_has_chance_of_its_own(getkey: GetKey) -> None:
    env = ActionRepeat(TimeLimit(Drift(max_steps=50), 5), 3)

    def push(key: PRNGKeyArray) -> Array:
        reset_key, step_key = jax.random.split(key)
        state, _ = env.reset(key=reset_key)
        after, _ = env.step(state, jnp.zeros(1), key=step_key)
        return after.inner.position - state.inner.position

    moved = np.asarray(jax.jit(jax.vmap(push))(jax.random.split(getkey(), 200)))
    # Of three pushes by 0.3: of one alone three times as far it would be 0.9.
    assert np.std(moved) < 0.7
    with pytest.raises(ValueError, match="num_repeats=0"):
        ActionRepeat(Drift(), 0)
