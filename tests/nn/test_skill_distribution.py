import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special, stats

from eqrl.nn import Categorical, DiagonalNormal, VonMisesFisher


def test_categorical_is_the_softmax_of_its_logits() -> None:
    distribution = Categorical(jnp.log(jnp.array([1.0, 2.0, 5.0])) + 3)
    for index, probability in enumerate((1 / 8, 2 / 8, 5 / 8)):
        log_prob = distribution.log_prob(jax.nn.one_hot(index, 3))
        np.testing.assert_allclose(log_prob, math.log(probability), rtol=1e-6)


def test_mode_of_categorical_is_the_greatest_logit() -> None:
    distribution = Categorical(jnp.array([0.1, 0.7, -1.0]))
    np.testing.assert_array_equal(distribution.mode(), [0, 1, 0])


def test_log_prob_of_normal_is_scipys() -> None:
    mean, log_scale, skill = [0.3, -1.0], [-0.5, 1.2], [0.1, 2.0]
    distribution = DiagonalNormal(mean=jnp.array(mean), log_scale=jnp.array(log_scale))
    expected = stats.norm.logpdf(skill, mean, np.exp(log_scale)).sum()
    np.testing.assert_allclose(
        distribution.log_prob(jnp.array(skill)), expected, rtol=1e-6
    )
    np.testing.assert_array_equal(distribution.mode(), jnp.array(mean))


def _log_normalizer(concentration: float, size: int) -> float:
    order = size / 2 - 1
    return (
        size / 2 * math.log(2 * math.pi)
        + math.log(special.ive(order, concentration))
        + concentration
        - order * math.log(concentration)
    )


@pytest.mark.parametrize("size", [2, 3, 4, 7])
@pytest.mark.parametrize("concentration", [0.05, 1.0, 10.0, 150.0, 1000.0])
def test_density_of_von_mises_fisher_is_that_of_bessel_functions(
    size: int, concentration: float
) -> None:
    direction = jnp.zeros(size).at[0].set(1.0)
    skill = jnp.zeros(size).at[0].set(0.6).at[1].set(-0.8)
    distribution = VonMisesFisher(
        direction=direction, concentration=jnp.asarray(concentration)
    )
    expected = 0.6 * concentration - _log_normalizer(concentration, size)
    np.testing.assert_allclose(
        distribution.log_prob(skill), expected, rtol=1e-5, atol=1e-4
    )


@pytest.mark.parametrize("size", [64, 256])
def test_density_of_von_mises_fisher_is_as_exact_in_many_dimensions(
    size: int,
) -> None:
    concentration = 1000.0
    direction = np.zeros(size, np.float32)
    direction[0] = 1
    distribution = VonMisesFisher(
        direction=jnp.asarray(direction), concentration=jnp.asarray(concentration)
    )
    expected = concentration - _log_normalizer(concentration, size)
    np.testing.assert_allclose(
        distribution.log_prob(jnp.asarray(direction)), expected, rtol=1e-5, atol=1e-3
    )


def test_von_mises_fisher_without_concentration_is_uniform() -> None:
    distribution = VonMisesFisher(
        direction=jnp.array([1.0, 0.0, 0.0]), concentration=jnp.zeros(())
    )
    log_prob = distribution.log_prob(jnp.array([0.0, 0.0, 1.0]))
    np.testing.assert_allclose(log_prob, -math.log(4 * math.pi), rtol=1e-5)


def test_gradient_of_von_mises_fisher_is_the_cosine_less_its_mean() -> None:
    def log_prob(concentration: jax.Array) -> jax.Array:
        distribution = VonMisesFisher(
            direction=jnp.array([0.0, 1.0]), concentration=concentration
        )
        return distribution.log_prob(jnp.array([0.6, 0.8]))

    mean_cosine = special.iv(1, 5.0) / special.iv(0, 5.0)
    np.testing.assert_allclose(
        jax.grad(log_prob)(jnp.asarray(5.0)), 0.8 - mean_cosine, rtol=1e-4
    )
