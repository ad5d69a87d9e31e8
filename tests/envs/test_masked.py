from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqrl
from eqrl.envs import (
    ActionRepeat,
    DisabledActions,
    FrameStack,
    GymnasiumEnv,
    Masked,
    PooledReset,
    TimeLimit,
)
from eqrl.envs._check import check_env
from tests.envs.test_frame_stack import Pictures, observations
from tests.probe import Probe
from tests.toy import GetKey


@pytest.mark.parametrize("hidden", [(4, 1), [1, 4, 4], np.array([4, 1])])
def test_what_is_hidden_is_left_out(hidden: Any) -> None:
    seen = [0, 2, 3, 5]
    times = 100 * np.arange(3)[:, None]
    np.testing.assert_array_equal(
        observations(Masked(Pictures(), hidden), 2), times + seen
    )
    # Equal ones share what they compile, whatever way they were written.
    assert Masked(Pictures(), hidden) == Masked(Pictures(), (1, 4))


def test_elements_of_any_type_can_be_hidden(getkey: GetKey) -> None:
    env = Masked(eqrl.envs.make("gymnax/Breakout-MinAtar"), (0,))
    seen = jax.eval_shape(lambda key: env.reset(key=key)[1], getkey())
    assert (seen.shape, seen.dtype) == ((399,), bool)


def test_all_else_is_the_environments(getkey: GetKey) -> None:
    env, inside = Masked(Pictures((2, 3)), (0,)), Pictures((2, 3))
    spec = env.spec
    assert (spec.observation_size, spec.observation_shape) == (5, None)
    assert (spec.action, spec.max_steps) == (inside.spec.action, 4)
    assert Masked(inside, ()).spec == inside.spec
    state, action = jnp.array(3), jnp.array([0.5])
    after, outcome = env.step(state, action, key=getkey())
    truly, expected = inside.step(state, action, key=getkey())
    assert eqx.tree_equal(after, truly) and bool(outcome.truncated)
    assert float(outcome.reward) == float(expected.reward) == 0.5
    eqrl.envs.check(env, key=getkey())


def test_wrappers_around_it_and_within_it_see_what_is_left() -> None:
    within = Masked(FrameStack(Pictures(), 2), (0, 1, 2, 3, 4, 5))
    np.testing.assert_array_equal(observations(within, 2), observations(Pictures(), 2))
    around = FrameStack(Masked(Pictures(), range(5)), 2)
    np.testing.assert_array_equal(
        observations(around, 2), [[5, 5], [5, 105], [105, 205]]
    )


def test_every_wrapper_passes_on_what_critics_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    probe, key = Probe(critic_shown=0.5), jr.key(0)
    wrappers: tuple[Any, ...] = (
        lambda env: Masked(env, (1,)),
        lambda env: ActionRepeat(env, 2),
        lambda env: DisabledActions(env, (0,)),
        lambda env: FrameStack(env, 2),
        lambda env: PooledReset(env, 2, key=key),
        lambda env: TimeLimit(env, 3),
    )
    for wrap in wrappers:
        env = wrap(probe)
        check_env(env)
        state, _ = env.reset(key=key)
        seen = env.critic_observation(state)
        assert env.spec.critic_observation_size == 3 and abs(float(seen[0])) == 0.5
    with pytest.raises(ValueError, match="size=3`, but `critic_observation` gives N"):
        monkeypatch.setattr(Probe, "critic_observation", lambda self, state: None)
        check_env(probe)


def test_a_simulator_outside_is_seen_through_wrappers() -> None:
    env = GymnasiumEnv("CartPole-v1", max_steps=8)
    wrapped = TimeLimit(ActionRepeat(Masked(env, (1, 3)), 2), 3)
    agent = eqrl.DQN()
    state = agent.init(wrapped.spec, key=jr.key(0))
    transitions, mask = eqrl.rollout(
        agent, state, wrapped, num_episodes=2, mode="random", key=jr.key(1)
    )
    assert transitions.observation.shape[2:] == (2,)
    # A cart's position and its pole's angle, near 0 at first.
    assert np.all(np.abs(transitions.observation[:, 0]) <= 0.05)
    np.testing.assert_array_equal(mask, True)
    np.testing.assert_array_equal(transitions.reward, np.full((2, 3), 2.0))


@pytest.mark.parametrize(
    "hidden, said",
    [
        ((6,), r"names \[6\].*6 elements, 0 to 5"),
        ((0, -1), r"names \[-1\]"),
        (range(6), "names all 6"),
        ((True, False), r"shape \(2,\) and type bool"),
    ],
)
def test_what_is_not_there_cannot_be_hidden(hidden: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Masked(Pictures(), hidden)
