import dataclasses
import importlib
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array

import eqrl

from ..toy import Clock, Compass


class Uphill(eqrl.envs.AbstractEnvWrapper[Any]):
    """A point on a slope, which rises along (3, 4)."""

    env: eqrl.envs.Point

    @property
    def inner(self) -> eqrl.envs.Point:
        return self.env

    def inner_state(self, state: Any) -> Any:
        return state

    @property
    def spec(self) -> eqrl.EnvSpec:
        return self.env.spec

    def reset(self, *, key: Array) -> tuple[Any, Array]:
        return self.env.reset(key=key)

    def step(
        self, state: Any, action: Array, *, key: Array
    ) -> tuple[Any, eqrl.envs.Outcome]:
        state, outcome = self.env.step(state, action, key=key)
        reward = jnp.dot(action, jnp.array([3.0, 4.0]))
        return state, dataclasses.replace(outcome, reward=reward)


ENV = Uphill(eqrl.envs.Point(max_steps=5))
AGENT: Any = eqrl.SkillConditioned(Compass(), eqrl.SphereSkills())


def select(method: Any = "best", env: Any = ENV, **options: Any) -> Any:
    given: dict[str, Any] = {"num_skills": 7, "num_episodes": 2, "key": jr.key(0)}
    return eqrl.select_skill(
        AGENT, jnp.zeros(()), env, method=method, **{**given, **options}
    )


def test_the_skill_with_the_best_return_is_picked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    skill, returns = select()
    assert returns.shape == (7, 2)
    means = np.asarray(returns).mean(axis=1)
    assert np.all(np.diff(means) < 0)
    # `Compass` acts with its skill, five times.
    np.testing.assert_allclose(means[0], 5 * np.dot(skill, [3, 4]), rtol=1e-5)
    played = eqrl.evaluate_skills(
        AGENT, jnp.zeros(()), ENV, num_episodes=2, key=jr.key(0), skills=7
    )
    best = played.skills[jnp.argmax(played.returns.mean(axis=1))]
    np.testing.assert_array_equal(skill, best)
    # The mean counts, not the best of the episodes.
    pairs = jnp.array([[9.0, 0.0], [5.0, 6.0], *[[1.0, 1.0]] * 5])
    uneven = dataclasses.replace(played, returns=pairs)
    module = importlib.import_module("eqrl._interaction.select_skill")
    monkeypatch.setattr(module, "evaluate_skills", lambda *_, **options: uneven)
    skill, returns = select()
    np.testing.assert_array_equal(skill, played.skills[1])
    assert returns[0].tolist() == [5, 6]


def test_a_plane_through_the_returns_shows_the_way_up() -> None:
    skill, returns = select("regression")
    np.testing.assert_allclose(skill, [0.6, 0.8], atol=1e-5)
    # None of those that were tried is as good.
    assert np.all(returns < 25 - 1e-3)
    # A task without a reward has no way up, but any skill has a direction.
    skill, _ = select("regression", eqrl.envs.Point(max_steps=5))
    assert np.linalg.norm(skill) == pytest.approx(1, abs=1e-5)


def test_tasks_and_skills_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="try more of them"):
        select("regression", num_skills=2)
    with pytest.raises(ValueError, match="rewards are vectors"):
        select(env=Clock(reward_size=2))
    agent = eqrl.SAC()
    options: Any = {"num_skills": 2, "num_episodes": 1, "key": jr.key(0)}
    with pytest.raises(ValueError, match="SAC has no skills"):
        eqrl.select_skill(agent, agent.init(ENV.spec, key=jr.key(0)), ENV, **options)
