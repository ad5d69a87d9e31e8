import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray

from eqrl._types.data import EnvSpec
from eqrl.envs import AbstractEnv, Outcome, TimeLimit

from ..toy import GetKey


class Clock(AbstractEnv[Int[Array, ""]]):
    """Observes the number of steps, and ends as told."""

    terminates_at: int = 1000
    truncates_at: int = 1000
    max_steps: int | None = None

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            observation_size=1,
            action_size=1,
            state_descriptor_size=1,
            max_steps=self.max_steps,
        )

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[Int[Array, ""], Float[Array, " obs"]]:
        del key
        return jnp.zeros((), int), jnp.zeros(1)

    def step(
        self, state: Int[Array, ""], action: Float[Array, " act"], *, key: PRNGKeyArray
    ) -> tuple[Int[Array, ""], Outcome]:
        del key
        state = state + 1
        terminated = state >= self.terminates_at
        outcome = Outcome(
            observation=state.astype(float)[None],
            reward=2 * action[0],
            terminated=terminated,
            truncated=(state >= self.truncates_at) & ~terminated,
        )
        return state, outcome

    def state_descriptor(self, state: Int[Array, ""]) -> Float[Array, " descriptor"]:
        return 10 * state.astype(float)[None]


def _run(env: AbstractEnv, num_steps: int, key: PRNGKeyArray) -> Outcome:
    def step(state: eqx.Module, _: None) -> tuple[eqx.Module, Outcome]:
        return env.step(state, jnp.array([0.5]), key=key)

    state, _ = env.reset(key=key)
    return lax.scan(step, state, length=num_steps)[1]


def test_truncates_at_the_limit_and_beyond_and_changes_nothing_else(
    getkey: GetKey,
) -> None:
    outcomes = _run(TimeLimit(Clock(), 3), 5, getkey())
    np.testing.assert_array_equal(outcomes.truncated, [False, False, True, True, True])
    assert not np.any(outcomes.terminated)
    # At the limit too, the observation is the successor.
    np.testing.assert_array_equal(outcomes.observation[:, 0], [1, 2, 3, 4, 5])
    np.testing.assert_array_equal(outcomes.reward, np.ones(5))


def test_termination_is_kept_and_is_not_truncated_at_the_limit(getkey: GetKey) -> None:
    outcomes = _run(TimeLimit(Clock(terminates_at=2), 3), 3, getkey())
    np.testing.assert_array_equal(outcomes.terminated, [False, True, True])
    outcomes = _run(TimeLimit(Clock(terminates_at=3), 3), 3, getkey())
    assert not np.any(outcomes.truncated)


def test_the_environments_own_truncation_is_kept(getkey: GetKey) -> None:
    outcomes = _run(TimeLimit(Clock(truncates_at=2), 3), 3, getkey())
    np.testing.assert_array_equal(outcomes.truncated, [False, True, True])


def test_the_state_descriptor_is_the_environments(getkey: GetKey) -> None:
    env = TimeLimit(Clock(), 3)
    state, _ = env.reset(key=getkey())
    state, _ = env.step(state, jnp.zeros(1), key=getkey())
    np.testing.assert_array_equal(env.state_descriptor(state), [10])


@pytest.mark.parametrize("inner, outer, expected", [(None, 3, 3), (5, 3, 3), (2, 3, 2)])
def test_spec_has_the_shorter_limit(
    inner: int | None, outer: int, expected: int
) -> None:
    assert TimeLimit(Clock(max_steps=inner), outer).spec.max_steps == expected


def test_spec_keeps_the_environments_sizes() -> None:
    spec = TimeLimit(Clock(), 3).spec
    sizes = (spec.observation_size, spec.action_size, spec.state_descriptor_size)
    assert sizes == (1, 1, 1)


@pytest.mark.parametrize("max_steps", [0, 2**31])
def test_a_limit_that_no_episode_can_count_is_refused(max_steps: int) -> None:
    with pytest.raises(ValueError, match=f"max_steps={max_steps}"):
        TimeLimit(Clock(), max_steps)
