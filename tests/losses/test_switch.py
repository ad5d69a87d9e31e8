import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from eqrl.losses import compare_through_target, least_value, switch_probabilities

from ..agents import taac_restated as restated


TIME, NUM = 5, 500


class TestCompareThroughTarget:
    @pytest.mark.parametrize("size", [None, 2])
    def test_is_the_sum_written_out(self, size: int | None) -> None:
        random = np.random.default_rng(0)
        shape = (NUM, TIME) if size is None else (NUM, TIME, size)
        reward, value = random.normal(size=(2, *shape)).astype(np.float32)
        discount = random.uniform(size=shape).astype(np.float32)
        # All combinations of ends, and of stops, are among as many.
        discount[random.random((NUM, TIME)) < 0.5] = 0
        stops = random.random((NUM, TIME)) < random.random((NUM, 1))
        actual = jax.vmap(compare_through_target)(
            *map(jnp.asarray, (reward, discount, stops, value))
        )
        expected = list(map(restated.compare_through, reward, discount, stops, value))
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)

    def test_runs_on_to_the_first_row_that_stops(self) -> None:
        # From the back: 4 + 0.5 * 40; 3 + 0.5 * 30; 2 + 0.5 * 18; 1 + 0.5 * 11.
        actual = compare_through_target(
            jnp.array([1.0, 2.0, 3.0, 4.0]),
            jnp.full(4, 0.5),
            jnp.array([False, False, True, False]),
            jnp.array([10.0, 20.0, 30.0, 40.0]),
        )
        np.testing.assert_allclose(actual, [6.5, 11.0, 18.0, 24.0])

    def test_one_transition_is_valued_at_the_state_it_reaches(self) -> None:
        actual = compare_through_target(
            jnp.ones(1), jnp.full(1, 0.9), jnp.array([False]), jnp.full(1, 10.0)
        )
        np.testing.assert_allclose(actual, [10.0], rtol=1e-6)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_ignores_a_value_that_is_not_finite_where_terminated(
        self, value: float
    ) -> None:
        actual = compare_through_target(
            jnp.ones(2),
            jnp.array([0.0, 0.5]),
            jnp.array([True, True]),
            jnp.array([value, 2.0]),
        )
        np.testing.assert_allclose(actual, [1.0, 2.0])

    def test_values_may_be_of_half_precision(self) -> None:
        actual = compare_through_target(
            jnp.ones(2),
            jnp.full(2, 0.5),
            jnp.zeros(2, bool),
            jnp.array([1.0, 2.0], jnp.bfloat16),
        )
        assert actual.dtype == jnp.float32
        np.testing.assert_allclose(actual, [2.0, 2.0])

    @pytest.mark.parametrize("argument", [0, 1, 3])
    def test_passes_no_gradient(self, argument: int) -> None:
        arguments = [jnp.ones(3), jnp.full(3, 0.9), jnp.zeros(3, bool), jnp.ones(3)]

        def total(value: Array) -> Array:
            given = [*arguments]
            given[argument] = value
            return jnp.sum(compare_through_target(*given))

        gradient = jax.grad(total)(arguments[argument])
        np.testing.assert_array_equal(gradient, np.zeros(3))


class TestSwitchProbabilities:
    def test_are_as_restated_in_numpy(self) -> None:
        random = np.random.default_rng(0)
        keep, new = random.uniform(-10, 10, (2, NUM)).astype(np.float32)
        temperature = random.uniform(0.5, 10, NUM).astype(np.float32)
        low, high = np.sort(random.uniform(-3, 3, (2, NUM)), axis=0).astype(np.float32)
        given = [jnp.asarray(x) for x in (keep, new, temperature)]
        free = jax.vmap(switch_probabilities)(*given)
        expected = list(map(restated.probabilities, keep, new, temperature))
        np.testing.assert_allclose(free, expected, rtol=1e-5, atol=1e-5)
        bounded = jax.vmap(
            lambda keep, new, temperature, *clip: switch_probabilities(
                keep, new, temperature, advantage_clip=clip
            )
        )(*given, jnp.asarray(low), jnp.asarray(high))
        clips = zip(low, high, strict=True)
        expected = list(map(restated.probabilities, keep, new, temperature, clips))
        np.testing.assert_allclose(bounded, expected, rtol=1e-5, atol=1e-5)

    def test_odds_are_exponential_in_the_advantage(self) -> None:
        actual = switch_probabilities(jnp.array(1.0), jnp.array(3.0), 2.0)
        np.testing.assert_allclose(actual[1] / actual[0], math.e, rtol=1e-6)

    def test_clipping_comes_before_the_temperature(self) -> None:
        actual = switch_probabilities(
            jnp.array(0.0), jnp.array(100.0), 0.5, advantage_clip=(-1.0, 2.0)
        )
        np.testing.assert_allclose(actual[1] / actual[0], math.exp(4.0), rtol=1e-5)

    def test_without_temperature_the_better_is_taken(self) -> None:
        actual = switch_probabilities(jnp.array(1e6), jnp.array(1.5e6), 0.0)
        np.testing.assert_array_equal(actual, [0.0, 1.0])

    @pytest.mark.parametrize("argument", [0, 1, 2])
    def test_pass_no_gradient(self, argument: int) -> None:
        gradient = jax.grad(
            lambda *arguments: switch_probabilities(*arguments)[1], argnums=argument
        )(jnp.array(1.0), jnp.array(2.0), jnp.array(0.5))
        np.testing.assert_array_equal(gradient, 0.0)


class TestLeastValue:
    values = jnp.array([[[1.0, 5.0, 3.0]], [[2.0, 4.0, -3.0]]])

    def test_is_the_least_of_the_critics(self) -> None:
        np.testing.assert_array_equal(least_value(self.values), [[1.0, 4.0, -3.0]])

    def test_is_the_greatest_where_the_weight_is_negative(self) -> None:
        actual = least_value(self.values, jnp.array([1.0, -0.5, 2.0]))
        np.testing.assert_array_equal(actual, [[1.0, 5.0, -3.0]])

    def test_leaves_a_reward_without_weight_alone(self) -> None:
        actual = least_value(self.values, jnp.array([0.0, -0.5, 2.0]))
        np.testing.assert_array_equal(actual, [[1.0, 5.0, -3.0]])

    def test_is_zero_where_a_faithful_weight_is(self) -> None:
        actual = least_value(self.values, jnp.array([0.0, -0.5, 0.0]), faithful=True)
        np.testing.assert_array_equal(actual, [[0.0, 5.0, 0.0]])
