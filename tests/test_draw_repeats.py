from pathlib import Path

import jax.numpy as jnp
import pytest

import eqrl
from eqrl.envs import Point

from .agents_under_test import sac, taac
from .toy import Drift, GetKey


def test_a_picture_of_when_a_policy_repeats_is_written(
    tmp_path: Path, getkey: GetKey
) -> None:
    agent, env = taac(), Drift()
    state = agent.init(env.spec, key=getkey())
    transitions, mask = eqrl.rollout(agent, state, env, num_episodes=3, key=getkey())
    path = tmp_path / "repeats.png"
    eqrl.draw_repeats(path, transitions, mask)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_other_agents_have_no_repeats_to_draw(tmp_path: Path, getkey: GetKey) -> None:
    agent, env = sac(), Point()
    state = agent.init(env.spec, key=getkey())
    transitions, mask = eqrl.rollout(
        agent, state, env, num_episodes=1, max_steps=2, key=getkey()
    )
    assert jnp.all(mask)
    with pytest.raises(ValueError, match=r"`transitions\.extras` is a NoneType"):
        eqrl.draw_repeats(tmp_path / "repeats.png", transitions, mask)
