from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqrl.nn import (
    Critic,
    Deterministic,
    DeterministicPolicy,
    ExploringPolicy,
    GaussianPolicy,
    Normal,
    StateActionValue,
    StateValue,
)
from tests.toy import GetKey


def test_gaussian_policy_reads_means_then_log_scales() -> None:
    distribution = GaussianPolicy(network=lambda x: x)(jnp.array([1.0, 2, -0.5, 0.5]))
    np.testing.assert_array_equal(distribution.mean, [1, 2])
    np.testing.assert_array_equal(distribution.log_scale, [-0.5, 0.5])


@pytest.mark.parametrize(("given", "clipped"), [(-50.0, -20), (-3.0, -3), (7.0, 2)])
def test_gaussian_policy_clips_the_log_scale(given: float, clipped: float) -> None:
    distribution = GaussianPolicy(network=lambda x: x)(jnp.array([100.0, given]))
    np.testing.assert_array_equal(distribution.log_scale, [clipped])
    np.testing.assert_array_equal(distribution.mean, [100])


def test_deterministic_policy_is_tanh_of_its_network() -> None:
    action = DeterministicPolicy(network=lambda x: 2 * x)(jnp.array([0.5, -4.0]))
    np.testing.assert_allclose(action, np.tanh([1.0, -8.0]), rtol=1e-6)


def test_exploring_policy_is_its_actor_with_its_noise() -> None:
    policy = ExploringPolicy(actor=lambda x: -x, noise=jnp.array(0.25))
    distribution = policy(jnp.array([0.5]))
    np.testing.assert_array_equal(distribution.mean, [-0.5])
    np.testing.assert_array_equal(distribution.scale, 0.25)


def test_a_normal_policy_begins_with_the_scale_that_was_asked_for() -> None:
    policy = Normal((8,), initial_scale=0.5)(3, 2, key=jr.key(0))
    np.testing.assert_allclose(policy.log_scale, np.log([0.5, 0.5]), rtol=1e-6)
    assert not policy.log_scale.weak_type
    drawn = jnp.array([2.0, -0.5])
    for squash, action in ((False, [1, -0.5]), (True, np.tanh(drawn))):
        made = Normal((8,), squash=squash)(3, 2, key=jr.key(0))(jnp.ones(3))
        np.testing.assert_allclose(made.action(drawn), action, rtol=1e-6)
    with pytest.raises(ValueError, match=r"`initial_scale=0` .*\(0, inf\)"):
        Normal((8,), initial_scale=0.0)


def test_state_action_value_reads_the_observation_then_the_action() -> None:
    value = StateActionValue(
        network=lambda x: jnp.sum(x * jnp.array([1.0, 10, 100]))[None]
    )
    result = value(jnp.array([1.0, 2.0]), jnp.array([3.0]))
    np.testing.assert_array_equal(result, 321)
    # No output of a network that has more than one is dropped.
    for call in (
        lambda: StateValue(lambda x: x)(jnp.ones(2)),
        lambda: StateActionValue(lambda x: x)(jnp.ones(1), jnp.ones(1)),
    ):
        with pytest.raises(TypeError, match="cannot reshape"):
            call()


def test_actions_of_a_made_actor_depend_on_the_observation(getkey: GetKey) -> None:
    actor = Deterministic(hidden_sizes=(8,))(3, 2, key=getkey())
    actions = [actor(jr.normal(getkey(), (3,))) for _ in range(2)]
    assert np.all(actions[0] != actions[1])


def test_values_of_a_made_critic_depend_on_observation_and_action(
    getkey: GetKey,
) -> None:
    critic = Critic(hidden_sizes=(8,))(3, 2, key=getkey())
    observation, action = jr.normal(getkey(), (3,)), jr.normal(getkey(), (2,))
    value = critic(observation, action)
    assert value != critic(observation + 1, action)
    assert value != critic(observation, action + 1)
    # Networks of several rewards share no weights.
    several: Any = Critic(hidden_sizes=(8,))(3, 2, reward_size=2, key=getkey())
    one, other = several.networks.layers[0].weight
    assert np.all(one != other)
