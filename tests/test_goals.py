"""Tasks of reaching goals and of hurdles pay what is worked out by hand."""

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqrl
from benchmarks.goals import Goals, GoalsState, WithoutLast
from benchmarks.hurdles import HURDLES, HalfCheetahHurdle


def test_goals_follow_each_other_and_pay_once() -> None:
    point = eqrl.envs.Point(max_steps=20, step_size=0.25)
    env = Goals(point, 2.0, 0.5, 2.5, 10)
    state, observation = env.reset(key=jr.key(0))
    np.testing.assert_allclose(observation[-2:] * 2.0, state.goal)
    assert jnp.all(jnp.abs(state.goal) <= 2.0)
    step = eqx.filter_jit(env.step)
    state = GoalsState(state.inner, jnp.array([1.0, 0.0]), state.clock)
    right = jnp.array([1.0, 0.0])
    rewards, clocks = [], []
    for index in range(12):
        before = state.goal
        state, outcome = step(state, right, key=jr.key(index))
        rewards.append(float(outcome.reward))
        clocks.append(int(state.clock))
        if index == 1:
            # Half a unit away is near enough, and the rest of its time is lost.
            position = np.asarray(point.state_descriptor(state.inner))
            np.testing.assert_allclose(position, [0.5, 0.0])
            assert jnp.any(state.goal != before)
            assert jnp.all(jnp.abs(state.goal - position) <= 2.0)
            np.testing.assert_allclose(
                outcome.observation[-2:], (state.goal - position) / 2.0, rtol=1e-6
            )
            state = GoalsState(state.inner, jnp.array([-9.0, 0.0]), state.clock)
        assert bool(outcome.truncated) == (clocks[-1] >= 20)
        assert not outcome.terminated
    assert rewards == [0.0, 2.5] + [0.0] * 10
    assert clocks == [1, 10, *range(11, 21)]
    # A goal that was not reached has gone, too.
    assert state.goal[0] != -9.0


def test_one_goal_ends_the_episode() -> None:
    env = Goals(eqrl.envs.Point(max_steps=20, step_size=0.25), 2.0, 0.5, 10.0, None)
    state, _ = env.reset(key=jr.key(0))
    for goal, is_reached in ((jnp.array([5.0, 0.0]), False), (jnp.zeros(2), True)):
        state = GoalsState(state.inner, goal, state.clock)
        after, outcome = env.step(state, jnp.zeros(2), key=jr.key(1))
        assert float(outcome.reward) == 10.0 * is_reached
        assert bool(outcome.terminated) == is_reached
        np.testing.assert_array_equal(after.goal, goal)


def test_skills_act_without_seeing_the_goal() -> None:
    point = eqrl.envs.Point(max_steps=8)
    env = Goals(point, 2.0, 0.5, 2.5, 4)
    skilled = eqrl.Intrinsic(
        eqrl.SkillConditioned(
            eqrl.SAC(
                make_actor=eqrl.nn.Gaussian((4,)), make_critic=eqrl.nn.Critic((4,))
            ),
            eqrl.SphereSkills(2),
        ),
        eqrl.METRA(eqrl.SphereSkills(2), make_network=eqrl.nn.Features((4,))),
    )
    learned = skilled.init(point.spec, key=jr.key(0))
    choice = eqrl.SkillChoice(
        env, WithoutLast(skilled, 2), learned, num_skills=None, num_steps=4
    )
    assert choice.spec.observation_size == point.spec.observation_size + 2
    assert choice.spec.max_steps == 2
    state, _ = choice.reset(key=jr.key(1))
    # Those of a world without goals, from the same state.
    alone = eqrl.SkillChoice(point, skilled, learned, num_skills=None, num_steps=4)
    begun, _ = alone.reset(key=jr.key(1))
    action = jnp.array([0.6, -0.8])
    state, outcome = choice.step(state, action, key=jr.key(2))
    _, expected = alone.step(begun, action, key=jr.key(2))
    np.testing.assert_allclose(
        outcome.observation[:-2], expected.observation, rtol=1e-6
    )
    assert env.spec.observation_size == outcome.observation.size


def test_hurdles_pay_once_the_back_foot_has_passed_them() -> None:
    world = HalfCheetahHurdle()

    def carry(x: float, z: float) -> tuple[np.ndarray, float]:
        position = world.data.qpos.copy()
        position[:2] = x, z
        world.set_state(position, 0 * world.data.qvel)
        seen, reward, terminated, truncated, _ = world.step(np.zeros(6))
        assert not terminated
        assert not truncated
        return seen, reward

    first, _ = world.reset(seed=0)
    assert first.shape == world.observation_space.shape == (20,)
    foot = HURDLES[0] - first[19]
    assert first[18] == HURDLES[0]
    # The back foot is behind the torso, which the first element is the place of.
    assert first[0] - 1 < foot < first[0] - 0.3
    # Above the second, with the back foot before it.
    seen, reward = carry(7.3, 0.5)
    assert reward == 1.0
    assert seen[18] == 7.0
    assert 0 < seen[19] < 1
    assert carry(7.3, 0.5)[1] == 0.0
    # Back again, and past the rest.
    assert carry(0.0, 0.0)[1] == 0.0
    seen, reward = carry(40.0, 0.0)
    assert reward == 6.0
    assert seen[18] == 27.0
    # Feet do not fall through a hurdle.
    touched = set()
    carry(14.4, 0.3)
    for _ in range(10):
        world.step(np.zeros(6))
        touched |= {world.model.geom(x.geom1).name for x in world.data.contact}
        touched |= {world.model.geom(x.geom2).name for x in world.data.contact}
    assert "hurdle3" in touched
    env = eqrl.envs.GymnasiumEnv(HalfCheetahHurdle, max_steps=3, state_descriptor="x")
    agent = eqrl.SAC(
        make_actor=eqrl.nn.Gaussian((4,)), make_critic=eqrl.nn.Critic((4,))
    )
    state = agent.init(env.spec, key=jr.key(0))
    played, mask = eqrl.rollout(
        agent, state, env, num_episodes=1, key=jr.key(0), mode="random"
    )
    assert played.next_observation.shape == (1, 3, 20)
    assert mask.all()
