"""The documentation's example of a simulator does what its page says."""

from pathlib import Path

import jax.random as jr
import numpy as np
from PIL import Image

import eqrl
from docs.examples.own_simulator import Tank
from tests.agents_under_test import sac


def test_the_level_follows_the_valve_and_is_drawn(tmp_path: Path) -> None:
    env = eqrl.envs.GymnasiumEnv(Tank, max_steps=4)
    assert env.spec == eqrl.EnvSpec(2, 1, max_steps=4)
    agent = sac()
    state = agent.init(env.spec, key=jr.key(0))
    played, mask = eqrl.rollout(
        agent, state, env, num_episodes=3, mode="random", key=jr.key(1)
    )
    np.testing.assert_array_equal(mask, True)
    before, after = (
        np.asarray(each) for each in (played.observation, played.next_observation)
    )
    level, goal = before[..., 0], before[..., 1]
    # From [-1, 1] to the bounds of the valve.
    inflow = 0.1 + 0.1 * np.asarray(played.action)[..., 0]
    np.testing.assert_allclose(
        after[..., 0], level + inflow - 0.1 * np.sqrt(level), rtol=1e-5
    )
    np.testing.assert_array_equal(after[..., 1], goal)
    np.testing.assert_allclose(
        played.reward, -np.abs(after[..., 0] - goal), rtol=1e-4, atol=1e-6
    )
    # A tank that is empty has no negative level.
    tank = Tank()
    tank.reset(seed=0)
    assert all(tank.step(np.zeros(1))[0][0] >= 0 for _ in range(50))
    path = tmp_path / "tank.gif"
    eqrl.render(agent, state, env, path, key=jr.key(2))
    with Image.open(path) as animation:
        assert animation.size == (60, 150)
