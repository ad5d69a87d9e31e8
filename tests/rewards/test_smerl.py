import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqrl

from ..skilled import skill_transitions


SPEC = eqrl.EnvSpec(observation_size=4, action_size=2, state_descriptor_size=2)
ZERO = jnp.zeros((), int)
KIND = eqrl.nn.CategoricalDiscriminator((8,))
INNER = eqrl.Discriminator(2, make_network=KIND)


def batch_with(returns: list[float]) -> Any:
    skill = jnp.eye(2)[jnp.arange(len(returns)) % 2]
    batch = skill_transitions(jr.key(0), skill=skill)
    return dataclasses.replace(batch, episode_return=jnp.asarray(returns, float))


def test_only_episodes_that_do_well_enough_are_paid() -> None:
    reward = eqrl.SMERL(INNER, target=10.0, margin=2.0, scale=3.0)
    state = reward.init(SPEC, key=jr.key(1))
    batch = batch_with([7.9, 8.0, 30.0, np.nan, -5.0, 9.0])
    found = reward.reward(state, batch, step=ZERO, key=jr.key(2))
    inner = INNER.reward(state.reward, batch, step=ZERO, key=jr.key(2))
    paid = np.array([0, 1, 1, 0, 0, 1], np.float32)
    np.testing.assert_allclose(found, 3 * paid * inner, rtol=1e-6)
    after, metrics = reward.update(state, batch, key=jr.key(3))
    dads = eqrl.SMERL(eqrl.DADS(2, make_network=eqrl.nn.Features(())))
    observed = dads.observe(dads.init(SPEC, key=jr.key(1)), batch)
    assert float(observed.reward.changes.count) == 6
    # It learns from all of them.
    learned, of_inner = INNER.update(state.reward, batch, key=jr.key(3))
    assert metrics.keys() == of_inner.keys() | {"accepted", "target"}
    np.testing.assert_allclose(metrics["accepted"], 0.5)
    np.testing.assert_allclose(metrics["target"], 10)
    np.testing.assert_array_equal(
        jax.tree.leaves(after.reward)[0], jax.tree.leaves(learned)[0]
    )


def test_the_target_is_the_best_mean_so_far_unless_it_is_given() -> None:
    reward = eqrl.SMERL(INNER, margin=1.0)
    state = reward.init(SPEC, key=jr.key(1))
    is_paid = lambda state, batch: (
        np.asarray(reward.reward(state, batch, step=ZERO, key=jr.key(2))) != 0
    )
    running = batch_with([np.nan, np.nan])
    after, metrics = reward.update(state, running, key=jr.key(3))
    assert float(metrics["target"]) == 0
    assert not np.any(is_paid(after, running))
    first = batch_with([2.0, np.nan, 6.0])
    # The first are all accepted, since there is nothing to compare them with.
    assert is_paid(after, first).tolist() == [True, False, True]
    after, _ = reward.update(after, first, key=jr.key(3))
    assert float(after.best) == 4
    assert is_paid(after, batch_with([2.9, 3.0, 8.0])).tolist() == [False, True, True]
    after, metrics = reward.update(after, batch_with([1.0, 2.0]), key=jr.key(3))
    assert float(after.best) == float(metrics["target"]) == 4


def test_what_it_cannot_judge_is_refused() -> None:
    reward = eqrl.SMERL(INNER)
    state = reward.init(SPEC, key=jr.key(1))
    without = skill_transitions(jr.key(0), skill=jnp.eye(2))
    with pytest.raises(ValueError, match="episode_returns=True"):
        reward.reward(state, without, step=ZERO, key=jr.key(2))
    with pytest.raises(ValueError, match="rewards are vectors"):
        reward.init(dataclasses.replace(SPEC, reward_size=2), key=jr.key(1))


def test_an_agent_is_paid_by_the_returns_of_its_episodes() -> None:
    sac = eqrl.SAC(make_actor=eqrl.nn.Gaussian((8,)), make_critic=eqrl.nn.Critic((8,)))
    # The returns of `Point` are below 0.
    agent = eqrl.Intrinsic(
        eqrl.SkillConditioned(sac, 2),
        eqrl.SMERL(INNER, target=-1e6, margin=0.0),
        environment_weight=1.0,
    )
    trainer = eqrl.Trainer(
        batch_size=64,
        capacity=80,
        warmup_steps=12,
        make_replay=functools.partial(eqrl.ReplayBuffer, episode_returns=True),
    )
    env = eqrl.envs.Point(max_steps=5, goal=(1.0, 1.0))
    solution = eqrl.train(agent, env, trainer, num_steps=14, key=jr.key(0), log_every=1)
    # An update sees 11, 12 or 13 rows, of which 10 are of episodes that ended.
    accepted = np.asarray(solution.metrics["accepted"])[-2:]
    assert np.all((accepted > 0.5) & (accepted < 1))
    stored = eqrl.stored_transitions(solution)
    assert stored.episode_return is not None
    rewards = np.asarray(stored.reward)[0]
    assert np.all(rewards < 0)
    np.testing.assert_allclose(
        np.asarray(stored.episode_return)[0],
        [*[rewards[:5].sum()] * 5, *[rewards[5:10].sum()] * 5, *[np.nan] * 4],
        rtol=1e-5,
    )
    played = eqrl.evaluate_skills(
        agent, solution.state, env, num_episodes=1, key=jr.key(1)
    )
    assert np.all(np.isfinite(played.diversity_returns))
