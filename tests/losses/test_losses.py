import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float

from eqrl import losses
from eqrl.losses._critic import least_over_critics
from eqrl.nn import Softmax
from tests.toy import (
    FixedDensity,
    GetKey,
    LinearActor,
    LinearCritic,
    LinearGaussian,
    make_linear_actor,
    make_linear_critic,
    make_linear_gaussian,
)


# Each is one program, rather than one for each of its operations.
bootstrapped_target = eqx.filter_jit(losses.bootstrapped_target)
critic_loss = eqx.filter_jit(losses.critic_loss)
critic_values = eqx.filter_jit(losses.critic_values)
sac_actor_loss = eqx.filter_jit(losses.sac_actor_loss)
sac_next_value = eqx.filter_jit(losses.sac_next_value)
sac_temperature_loss = eqx.filter_jit(losses.sac_temperature_loss)
td3_actor_loss = eqx.filter_jit(losses.td3_actor_loss)
td3_next_value = eqx.filter_jit(losses.td3_next_value)


def _critics(*weights: tuple[float, float, float]) -> LinearCritic:
    """Critics of one observation and one action: its weight, the action's, the bias."""
    observation_weight, action_weight, bias = np.array(weights, np.float32).T
    return LinearCritic(
        observation_weight=jnp.asarray(observation_weight[:, None]),
        action_weight=jnp.asarray(action_weight[:, None]),
        bias=jnp.asarray(bias),
    )


# On observations 1 and 2 with actions 0.5 and -1 the first critic says
# 2 * 1 + 4 * 0.5 + 1 = 5 and 2 * 2 - 4 * 1 + 1 = 1,
# the second -1 + 0 + 3 = 2 and -2 + 0 + 3 = 1.
_CRITICS = ((2.0, 4.0, 1.0), (-1.0, 0.0, 3.0))
_OBSERVATION = jnp.array([[1.0], [2.0]])
_ACTION = jnp.array([[0.5], [-1.0]])


def _fixed_policy(observation: Float[Array, " obs"]) -> FixedDensity:
    # Action 0.5 at observation 1, -1 at observation 2, log-probabilities 0.5 and -3.
    first = observation[0] == 1
    return FixedDensity(
        action=jnp.where(first, 0.5, -1.0)[None], log_prob=jnp.where(first, 0.5, -3.0)
    )


class TestBootstrappedTarget:
    def test_is_reward_plus_discounted_next_value_unless_terminated(self) -> None:
        for terminated, expected in (([False] * 2, 10.0), ([True, False], 1.0)):
            target = bootstrapped_target(
                jnp.array([1.0, -2.0]),
                jnp.array(terminated),
                jnp.array([10.0, 4.0]),
                0.9,
            )
            np.testing.assert_allclose(target, [expected, 1.6], rtol=1e-6)

    @pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
    def test_ignores_a_next_value_that_is_not_finite_where_terminated(
        self, value: float
    ) -> None:
        target = bootstrapped_target(
            jnp.array([1.0]), jnp.array([True]), jnp.array([value]), 0.9
        )
        np.testing.assert_array_equal(target, [1.0])

    @pytest.mark.parametrize("argument", [0, 2, 3])
    def test_passes_no_gradient(self, argument: int) -> None:
        terminated = jnp.array([False, True])

        def total(value: Array) -> Array:
            arguments: list[Any] = [jnp.ones(2), terminated, jnp.ones(2), 0.9]
            arguments[argument] = value
            return jnp.sum(bootstrapped_target(*arguments))

        at = jnp.full((), 0.9) if argument == 3 else jnp.ones(2)
        np.testing.assert_array_equal(jax.grad(total)(at), np.zeros(at.shape))

    def test_maps_over_the_discount(self) -> None:
        targets = jax.vmap(bootstrapped_target, in_axes=(None, None, None, 0))(
            jnp.ones(1),
            jnp.array([False]),
            jnp.full(1, 10.0),
            jnp.array([0.0, 0.5, 1.0]),
        )
        np.testing.assert_allclose(targets, [[1.0], [6.0], [11.0]])


class TestCriticLoss:
    def test_values_have_a_row_for_each_critic(self) -> None:
        values = critic_values(_critics(*_CRITICS), _OBSERVATION, _ACTION)
        np.testing.assert_allclose(values, [[5, 1], [2, 1]])

    def test_is_half_the_mean_square_over_batch_and_critics(self) -> None:
        # Errors to the target (3, 1): 2, 0 and -1, 0; (4 + 0 + 1 + 0) / 4 / 2.
        loss = critic_loss(
            _critics(*_CRITICS), _OBSERVATION, _ACTION, jnp.array([3.0, 1.0])
        )
        np.testing.assert_allclose(loss, 0.625)

    def test_gradient_is_the_mean_error_times_the_input(self) -> None:
        gradient = eqx.filter_grad(critic_loss)(
            _critics(*_CRITICS), _OBSERVATION, _ACTION, jnp.array([3.0, 0.0])
        )
        # Errors 2, 1 and -1, 1; the mean is over 4 values.
        np.testing.assert_allclose(gradient.bias, [0.75, 0.0])
        np.testing.assert_allclose(gradient.observation_weight, [[1.0], [0.25]])
        np.testing.assert_allclose(gradient.action_weight, [[0.0], [-0.375]])

    def test_takes_a_single_critic(self) -> None:
        loss = critic_loss(
            _critics(_CRITICS[0]), _OBSERVATION, _ACTION, jnp.array([3.0, 1.0])
        )
        np.testing.assert_allclose(loss, 1.0)


class TestSAC:
    def test_next_value_is_the_least_value_minus_temperature_times_log_prob(
        self, getkey: GetKey
    ) -> None:
        # min(5, 2) - 0.1 * 0.5 and min(1, 1) + 0.1 * 3
        value = sac_next_value(
            _fixed_policy, _critics(*_CRITICS), _OBSERVATION, 0.1, key=getkey()
        )
        np.testing.assert_allclose(value, [1.95, 1.3], rtol=1e-6)

    def test_actor_loss_is_temperature_times_log_prob_minus_the_least_value(
        self, getkey: GetKey
    ) -> None:
        # ((0.05 - 2) + (-0.3 - 1)) / 2
        loss, metrics = sac_actor_loss(
            _fixed_policy, _critics(*_CRITICS), _OBSERVATION, 0.1, key=getkey()
        )
        np.testing.assert_allclose(loss, -1.625, rtol=1e-6)
        # The entropy is minus the mean log-probability of the same actions.
        assert set(metrics) == {"entropy"}
        np.testing.assert_allclose(metrics["entropy"], 1.25)

    def test_each_element_of_a_batch_draws_noise_of_its_own(
        self, getkey: GetKey
    ) -> None:
        actor = LinearGaussian(weight=jnp.zeros((1, 1)), log_scale=jnp.zeros(1))
        value = sac_next_value(
            actor, _critics((0.0, 1.0, 0.0)), jnp.zeros((5, 1)), 0.0, key=getkey()
        )
        assert len(np.unique(value)) == 5

    @pytest.mark.parametrize("argument", [0, 1, 3])
    def test_next_value_passes_no_gradient(self, argument: int, getkey: GetKey) -> None:
        actor = make_linear_gaussian(1, 1, key=getkey())
        arguments = [actor, _critics(*_CRITICS), _OBSERVATION, jnp.full((), 0.1)]
        key = getkey()

        def total(argument_value: Any) -> Array:
            arguments[argument] = argument_value
            return jnp.sum(sac_next_value(*arguments, key=key))

        for leaf in jax.tree.leaves(eqx.filter_grad(total)(arguments[argument])):
            np.testing.assert_array_equal(leaf, np.zeros_like(leaf))

    def test_actor_loss_differentiates_the_actor_alone(self, getkey: GetKey) -> None:
        actor = make_linear_gaussian(1, 1, key=getkey())
        gradient, _ = eqx.filter_grad(sac_actor_loss, has_aux=True)(
            actor, _critics(*_CRITICS), _OBSERVATION, 0.1, key=getkey()
        )
        assert jax.tree.structure(gradient) == jax.tree.structure(actor)
        assert all(np.all(leaf != 0) for leaf in jax.tree.leaves(gradient))

    def test_temperature_loss_is_temperature_times_excess_entropy(self) -> None:
        loss = sac_temperature_loss(
            jnp.log(jnp.array(0.5)), jnp.array([1.0, -2.0]), -1.0
        )
        np.testing.assert_allclose(loss, 0.25, rtol=1e-6)  # 0.5 * (2 - 1) / 2

    def test_temperature_gradient_is_temperature_times_excess_entropy(self) -> None:
        gradient = jax.grad(sac_temperature_loss)(
            jnp.log(jnp.array(0.5)), jnp.array(2.0), -1.0
        )
        np.testing.assert_allclose(gradient, 1.5, rtol=1e-6)

    def test_temperature_loss_passes_no_gradient_to_the_entropy(self) -> None:
        gradient = jax.grad(sac_temperature_loss, argnums=1)(
            jnp.zeros(()), jnp.array(2.0), -1.0
        )
        np.testing.assert_array_equal(gradient, 0.0)


class TestTD3:
    def test_next_value_without_noise_is_the_least_value_of_the_actors_action(
        self, getkey: GetKey
    ) -> None:
        actor = lambda observation: jnp.where(observation == 1, 0.5, -1.0)
        value = td3_next_value(
            actor, _critics(*_CRITICS), _OBSERVATION, 0.0, 0.5, key=getkey()
        )
        np.testing.assert_allclose(value, [2, 1])

    def test_noise_is_clipped_and_so_is_the_noisy_action(self, getkey: GetKey) -> None:
        def actions(actor: Any, number: int, noise: float, clip: float) -> Array:
            identity = _critics((0.0, 1.0, 0.0))
            seen = jnp.zeros((number, 1))
            return td3_next_value(actor, identity, seen, noise, clip, key=getkey())

        noise = actions(jnp.zeros_like, 10_000, 0.1, 1.0)
        np.testing.assert_allclose(np.std(noise), 0.1, rtol=0.05)
        np.testing.assert_allclose(np.mean(noise), 0.0, atol=0.005)
        for actor, bounds in (
            (jnp.zeros_like, (-0.25, 0.25)),
            (jnp.ones_like, (0.75, 1)),
        ):
            far = actions(actor, 1_000, 5.0, 0.25)
            assert (np.min(far), np.max(far)) == bounds

    @pytest.mark.parametrize("argument", [0, 1, 3])
    def test_next_value_passes_no_gradient(self, argument: int, getkey: GetKey) -> None:
        actor = LinearActor(weight=jnp.full((1, 1), 0.1))
        arguments = [actor, _critics(*_CRITICS), _OBSERVATION, jnp.full((), 0.1), 0.5]
        key = getkey()

        def total(argument_value: Any) -> Array:
            arguments[argument] = argument_value
            return jnp.sum(td3_next_value(*arguments, key=key))

        for leaf in jax.tree.leaves(eqx.filter_grad(total)(arguments[argument])):
            np.testing.assert_array_equal(leaf, np.zeros_like(leaf))

    def test_actor_loss_is_minus_the_mean_value_of_its_actions(self) -> None:
        critic = LinearCritic(
            observation_weight=jnp.array([2.0]),
            action_weight=jnp.array([4.0]),
            bias=jnp.array(1.0),
        )
        actor = lambda observation: jnp.where(observation == 1, 0.5, -1.0)
        np.testing.assert_allclose(td3_actor_loss(actor, critic, _OBSERVATION), -3.0)

    def test_actor_gradient_is_the_critics_slope_times_the_actors(
        self, getkey: GetKey
    ) -> None:
        critic = make_linear_critic(1, 1, key=getkey())
        actor = make_linear_actor(1, 1, key=getkey())
        gradient = eqx.filter_grad(td3_actor_loss)(actor, critic, _OBSERVATION)
        weight, slope = float(actor.weight[0, 0]), float(critic.action_weight[0])
        # d/dw of -mean(slope * tanh(w x)) at x = 1 and 2.
        expected = -slope * (
            (1 - math.tanh(weight) ** 2) / 2 + (1 - math.tanh(2 * weight) ** 2)
        )
        assert jax.tree.structure(gradient) == jax.tree.structure(actor)
        np.testing.assert_allclose(gradient.weight, [[expected]], rtol=1e-5)


def test_critics_may_see_more_than_the_actor(getkey: GetKey) -> None:
    # The actions are 0.5 and -1 as before, but the critics see the observation 2 in
    # both: the first says 7 and 1, the second 1 and 1.
    critics, seen = _critics(*_CRITICS), jnp.full((2, 1), 2.0)
    value = sac_next_value(
        _fixed_policy,
        critics,
        _OBSERVATION,
        0.1,
        critic_observation=seen,
        key=getkey(),
    )
    np.testing.assert_allclose(value, [0.95, 1.3], rtol=1e-6)
    loss, _ = sac_actor_loss(
        _fixed_policy,
        critics,
        _OBSERVATION,
        0.1,
        critic_observation=seen,
        key=getkey(),
    )
    np.testing.assert_allclose(loss, -1.125, rtol=1e-6)
    actor = lambda observation: jnp.where(observation == 1, 0.5, -1.0)
    value = td3_next_value(
        actor, critics, _OBSERVATION, 0.0, 0.5, critic_observation=seen, key=getkey()
    )
    np.testing.assert_allclose(value, [1, 1])
    first = jax.tree.map(lambda x: x[0], critics)
    loss = td3_actor_loss(actor, first, _OBSERVATION, critic_observation=seen)
    np.testing.assert_allclose(loss, -4.0)


def test_no_gradient_flows_through_what_others_learn_from(getkey: GetKey) -> None:
    def stack(inputs: int, outputs: int) -> Any:
        make = lambda key: eqx.nn.Linear(inputs, outputs, key=key)
        return eqx.filter_vmap(make)(jr.split(getkey(), 2))

    one, choices, key = eqx.nn.Linear(1, 3, key=getkey()), stack(1, 3), getkey()
    features, skill = stack(2, 2), jnp.ones((2, 2))
    actor = make_linear_gaussian(1, 1, key=getkey())
    results = (
        lambda x: losses.dqn_next_value(one, one, x, double=True),
        lambda x: losses.discrete_sac_next_value(
            lambda x: Softmax(one(x)), choices, x, 0.1
        ),
        lambda x: losses.csf_next_features(actor, features, x, skill, key=key),
        lambda x: losses.particle_entropy(x, k=1),
        lambda x: losses.metra_loss(lambda x: x, x, 2 * x, x, 1.0, 1e-3)[1],
    )
    for result in results:
        total = lambda x, result=result: jnp.sum(result(x))
        found = jax.jit(jax.value_and_grad(total))
        (value, gradient), (other, _) = found(_OBSERVATION), found(3 * _OBSERVATION)
        np.testing.assert_array_equal(gradient, 0)
        assert value != other


def test_the_minimum_over_critics_passes_its_whole_gradient_to_one_critic() -> None:
    # Of equal values the first is taken. `jnp.min` would halve the gradient, and where
    # XLA rounds a value differently the second time it needs it, divide by zero.
    values = jnp.array([[1.0, 3.0, -2.0], [2.0, 3.0, -5.0]])
    least, gradient = jax.value_and_grad(lambda x: jnp.sum(least_over_critics(x)))(
        values
    )
    assert least == 1 + 3 - 5
    assert gradient.tolist() == [[1, 1, 0], [0, 0, 1]]


def test_the_minimum_over_critics_is_nan_where_a_value_is() -> None:
    values = jnp.array([[1.0, math.nan], [math.nan, 2.0]])
    assert jnp.all(jnp.isnan(least_over_critics(values)))
