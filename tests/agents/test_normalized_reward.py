"""Rewards are scaled by what was seen of them, when they are used."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqrl
from tests.toy import Compass, transitions_of


def transitions_with(reward: np.ndarray) -> eqrl.Transition[None]:
    nothing = np.zeros((len(reward), 2), np.float32)
    return transitions_of(
        jnp.asarray(nothing),
        action=jnp.asarray(nothing),
        reward=jnp.asarray(reward, float),
    )


@eqx.filter_jit
def life(
    agent: eqrl.NormalizedReward[Any, Any, Any],
    spec: eqrl.EnvSpec,
    first: eqrl.Transition[None],
    second: eqrl.Transition[None],
) -> Any:
    """The first rewards scaled at the beginning; what is summed of them when they are
    observed; then, with the second ones observed too, scaled again, and the metrics."""
    state = agent.init(spec, key=jr.key(0))
    begun = agent.inner_transitions(state, first).reward
    state = agent.observe(state, first)
    summed = state.agent
    state = agent.observe(state, second)
    _, metrics = agent.update(state, first, step=jnp.array(0), key=jr.key(1))
    return begun, summed, agent.inner_transitions(state, first).reward, metrics


def test_a_reward_is_divided_by_the_root_mean_square_of_all_so_far() -> None:
    agent = eqrl.NormalizedReward(Compass(), clip=1.1)
    first, second = np.array([3.0, -4.0]), np.array([1.0, 5.0])
    begun, summed, scaled, metrics = life(
        agent, eqrl.EnvSpec(2, 2), transitions_with(first), transitions_with(second)
    )
    # Nothing is known yet but the bound.
    np.testing.assert_allclose(begun, [1.1, -1.1])
    # The agent sees fresh rewards scaled with themselves counted, and sums them.
    by_first = np.clip(first / np.sqrt(np.mean(first**2)), -1.1, 1.1)
    np.testing.assert_allclose(summed, np.sum(by_first), rtol=1e-5)
    # Old rewards are divided by what is known at the update.
    scale = np.sqrt(np.mean(np.concatenate([first, second]) ** 2))
    expected = np.clip(first / scale, -1.1, 1.1)
    assert expected[0] < 1.1 and expected[1] == -1.1
    np.testing.assert_allclose(scaled, expected, rtol=1e-5)
    np.testing.assert_allclose(metrics["reward"], np.sum(expected), rtol=1e-5)
    np.testing.assert_allclose(metrics["reward_root_mean_square"], scale, rtol=1e-5)


def test_each_dimension_of_a_reward_has_its_own_scale() -> None:
    agent = eqrl.NormalizedReward(Compass())
    reward = np.array([[1e-10, 100.0], [-1e-10, 300.0]])
    spec = eqrl.EnvSpec(2, 2, reward_size=2)
    transitions = transitions_with(reward)
    *_, scaled, _ = life(agent, spec, transitions, transitions)
    expected = reward / np.sqrt(np.mean(reward**2, axis=0))
    np.testing.assert_allclose(scaled, expected, rtol=1e-5)
    none = transitions_with(0 * reward)
    *_, scaled, _ = life(agent, spec, none, none)
    assert not np.any(scaled)
    with pytest.raises(ValueError, match="clip=0"):
        eqrl.NormalizedReward(Compass(), clip=0.0)


def test_with_the_mean_subtracted_it_is_divided_by_the_standard_deviation() -> None:
    agent = eqrl.NormalizedReward(Compass(), clip=1.3, subtract_mean=True)
    # The second column varies little beside its mean.
    reward = np.array([[1e-6, 10.25], [-1e-6, 10.75], [6e-6, 10.5], [3e-6, 10.5]])
    reward[:, 1] = 10 + (reward[:, 1] - 10) / 64
    transitions = transitions_with(reward)
    spec = eqrl.EnvSpec(2, 2, reward_size=2)
    *_, scaled, metrics = life(agent, spec, transitions, transitions)
    expected = (reward - reward.mean(axis=0)) / reward.std(axis=0)
    np.testing.assert_allclose(scaled, np.clip(expected, -1.3, 1.3), rtol=1e-5)
    assert np.abs(expected).max() > 1.3
    np.testing.assert_allclose(
        metrics["reward_std"], reward.std(axis=0).mean(), rtol=1e-5
    )


def test_within_an_intrinsic_reward_it_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`NormalizedReward\(Intrinsic"):
        eqrl.Intrinsic(eqrl.NormalizedReward(eqrl.SAC()), eqrl.Incremental())
