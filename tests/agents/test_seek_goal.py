import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float

import eqrl

from ..toy import Compass, transitions_of


class Turned(eqx.Module):
    """Positions, turned."""

    matrix: Float[Array, "2 size"]

    def __call__(self, x: Float[Array, " size"]) -> Float[Array, "2"]:
        return self.matrix @ x


ENV = eqrl.envs.Point(max_steps=40)
GOAL = jnp.array([-1.0, 0.75, 0.0, 0.0])


def make(
    skills: Any, matrix: Any, descriptor: Any = lambda observation: observation[:2]
) -> tuple[Any, Any]:
    """An agent that acts with its skill, and METRA with a known representation."""
    reward = eqrl.METRA(skills, descriptor=descriptor)
    agent = eqrl.Intrinsic(eqrl.SkillConditioned(Compass(), skills), reward)
    with jax.ensure_compile_time_eval():
        state = agent.init(ENV.spec, key=jr.key(0))
    phi = Turned(jnp.asarray(matrix, float))
    return agent, dataclasses.replace(
        state, reward=dataclasses.replace(state.reward, phi=phi)
    )


def seek(agent: Any, state: Any) -> tuple[Any, Any]:
    return eqrl.seek_goal(agent, state, GOAL)


def test_the_goal_is_reached() -> None:
    agent, state = seek(*make(eqrl.SphereSkills(), np.eye(2)))
    rows, mask = eqrl.rollout(agent, state, ENV, num_episodes=1, key=jr.key(1))
    assert mask.all()
    # It goes straight there in 13 steps of at most 0.1, and stays within one of them.
    positions = np.asarray(rows.next_observation)[0, :, :2]
    distances = np.linalg.norm(positions - np.asarray(GOAL[:2]), axis=1)
    np.testing.assert_allclose(distances[:12], 1.25 - 0.1 * np.arange(1, 13), atol=1e-4)
    assert np.all(distances[12:] <= 0.1)


def test_the_way_is_that_of_the_representation() -> None:
    turned = np.array([[0.0, -2.0], [2.0, 0.0]])
    agent, state = seek(*make(eqrl.SphereSkills(), turned))
    observations = jr.normal(jr.key(2), (3, 5, 4))
    seen = np.asarray(agent.inner_observation(state, observations))
    way = (np.asarray(GOAL)[:2] - np.asarray(observations)[..., :2]) @ turned.T
    expected = way / np.linalg.norm(way, axis=-1, keepdims=True)
    np.testing.assert_allclose(seen[..., 4:], expected, rtol=1e-5)
    np.testing.assert_array_equal(seen[..., :4], observations)
    # At the goal there is no direction, and no division by 0.
    assert np.all(np.asarray(agent.inner_observation(state, GOAL))[4:] == 0)
    # A goal is seen as any observation is, of whatever type.
    image = jnp.array([255, 51, 0, 0], jnp.uint8)
    seeking: Any = eqrl.seek_goal(*make(eqrl.SphereSkills(), np.eye(2)), image)[0]
    np.testing.assert_allclose(seeking.goal, [1, 0.2], rtol=1e-6)


def test_critics_see_the_skill_that_is_taken() -> None:
    agent, state = seek(*make(eqrl.SphereSkills(), np.eye(2)))
    rows = transitions_of(jnp.zeros((1, 4)), action=jnp.zeros((1, 2)))
    rows = dataclasses.replace(
        rows,
        next_observation=jnp.array([[-1.0, 0, 0, 0]]),
        critic_observation=GOAL[None, :3],
        next_critic_observation=2 * GOAL[None, :3],
    )
    seen = agent.inner_transitions(state, rows)
    expected = [[-1, 0.75, 0, -0.8, 0.6]]
    np.testing.assert_allclose(seen.critic_observation, expected, rtol=1e-6)
    expected = [[-2, 1.5, 0, 0, 1]]
    np.testing.assert_allclose(seen.next_critic_observation, expected, atol=1e-6)


def test_one_of_the_one_hot_skills_leads_there() -> None:
    for prior in (eqrl.OneHotSkills(2), eqrl.EvenOneHotSkills(2)):
        agent, state = seek(*make(prior, np.eye(2)))
        seen = agent.inner_observation(state, jnp.array([[0.0] * 4, [-2.0, 0, 0, 0]]))
        np.testing.assert_array_equal(seen[:, 4:], [[0, 1], [1, 0]])
    # A skill that is never drawn was not learned.
    agent, state = seek(*make(eqrl.OneHotSkills(2, [0.0, 1.0]), np.eye(2)))
    seen = agent.inner_observation(state, jnp.array([[0.0] * 4, [-2.0, 1, 0, 0]]))
    np.testing.assert_array_equal(seen[:, 4:], [[0, 1], [0, 1]])


def test_skills_are_as_long_as_those_of_the_prior() -> None:
    mean = np.sqrt(np.pi / 2)
    for prior, there in (
        (eqrl.NormalSkills(2), [[-0.8 * mean, 0.6 * mean], [0, 0]]),
        (eqrl.UniformSkills(2), [[-1, 0.75], [0, 0]]),
        (eqrl.UniformSkills(2, -0.5, 2.0), [[-0.5, 0.375], [0, 0]]),
        (eqrl.UniformSkills(2, 0.0, 2.0), [[0, 2], [0, 0]]),
    ):
        agent, state = seek(*make(prior, np.eye(2)))
        seen = agent.inner_observation(state, jnp.stack([jnp.zeros(4), GOAL]))
        np.testing.assert_allclose(seen[:, 4:], there, atol=1e-6)


def test_a_wrapper_around_sees_the_goal_too() -> None:
    agent, state = make(eqrl.SphereSkills(), np.eye(2, 4), "observation")
    around = eqrl.Normalized(agent)
    squares = 5 * jnp.array([4.0, 9.0, 1.0, 1.0])
    outer = around.init(ENV.spec, key=jr.key(0))
    statistics = dataclasses.replace(
        outer.statistics,
        count=jnp.array(5.0),
        mean=jnp.arange(4.0),
        summed_squares=squares,
    )
    outer = dataclasses.replace(outer, agent=state, statistics=statistics)
    sought, sought_state = seek(around, outer)
    inner: Any = sought.inner
    assert type(sought) is eqrl.Normalized
    # An array of NumPy is a goal, too, and one goal is sought at a time.
    again: Any = eqrl.seek_goal(around, outer, np.asarray(GOAL))[0]
    np.testing.assert_array_equal(again.inner.goal, inner.goal)
    # Whole numbers are not an image.
    seeking: Any = [
        eqrl.seek_goal(around, outer, np.array([2, 0, 0, 0], kind))[0]
        for kind in (int, float)
    ]
    np.testing.assert_array_equal(*(each.inner.goal for each in seeking))
    with pytest.raises(ValueError, match=r"`goal` has shape \(2, 4\)"):
        eqrl.seek_goal(around, outer, np.zeros((2, 4)))
    for size in (1, 7):
        with pytest.raises(ValueError, match=f"has {size} elements, but Normalized"):
            eqrl.seek_goal(around, outer, np.zeros(size))
    # An intrinsic reward around it is left out as well.
    within = eqrl.Intrinsic(agent, eqrl.RND())
    with jax.ensure_compile_time_eval():
        novel = dataclasses.replace(within.init(ENV.spec, key=jr.key(0)), agent=state)
    assert type(seek(within, novel)[0]) is type(seek(agent, state)[0])
    observation = jnp.zeros(4)
    normalized = sought.inner_observation(sought_state, observation)
    seen = inner.inner_observation(sought_state.agent, normalized)
    way = np.asarray(GOAL)[:2] / [2, 3]
    np.testing.assert_allclose(seen[4:], way / np.linalg.norm(way), rtol=1e-5)


def test_what_knows_no_way_is_refused() -> None:
    agents: list[tuple[Any, str]] = [
        (eqrl.SAC(), "SAC has no way to a goal"),
        (eqrl.diayn(eqrl.SAC(), 2), "There is no `METRA` in this agent"),
    ]
    for agent, message in agents:
        with pytest.raises(ValueError, match=message):
            seek(agent, agent.init(ENV.spec, key=jr.key(0)))
    with pytest.raises(ValueError, match="is more than an agent observes"):
        seek(*make(eqrl.SphereSkills(), np.eye(2), "state_descriptor"))
