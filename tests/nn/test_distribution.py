import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from scipy import integrate, stats

from eqrl.nn import (
    ClippedNormal,
    EpsilonGreedy,
    Softmax,
    SquashedNormal,
    TanhNormal,
)
from tests.toy import GetKey


def _samples(
    distribution: TanhNormal, getkey: GetKey, size: int
) -> tuple[Float[Array, "size act"], Float[Array, " size"]]:
    keys = jr.split(getkey(), size)
    return jax.device_get(_sample_and_log_prob(distribution, keys))


@eqx.filter_jit
def _sample_and_log_prob(
    distribution: TanhNormal, keys: PRNGKeyArray
) -> tuple[Float[Array, "size act"], Float[Array, " size"]]:
    return jax.vmap(lambda key: distribution.sample_and_log_prob(key=key))(keys)


def _density(
    mean: float | np.ndarray, scale: float | np.ndarray, action: np.ndarray
) -> np.ndarray:
    """Of the action, by change of variables in double precision."""
    before = np.arctanh(action)
    normal = np.exp(-0.5 * ((before - mean) / scale) ** 2)
    normal = normal / (scale * math.sqrt(2 * math.pi))
    return normal / (1 - action**2)


def test_reference_density_integrates_to_one() -> None:
    # Otherwise the next test would compare with something that is no density.
    edges = np.tanh(np.linspace(-9, 9, 200_001))
    middle = (edges[1:] + edges[:-1]) / 2
    total = np.sum(_density(0.4, 0.7, middle) * np.diff(edges))
    np.testing.assert_allclose(total, 1, rtol=1e-5)


def test_log_prob_is_that_of_the_change_of_variables(getkey: GetKey) -> None:
    distribution = TanhNormal(
        mean=jnp.array([0.4]), log_scale=jnp.log(jnp.array([0.7]))
    )
    actions, log_probs = _samples(distribution, getkey, 500)
    expected = np.log(_density(0.4, 0.7, np.asarray(actions[:, 0], np.float64)))
    # In single precision the action itself limits what arctanh can give back.
    moderate = np.abs(actions[:, 0]) < 0.99
    assert np.sum(moderate) > 400
    np.testing.assert_allclose(log_probs[moderate], expected[moderate], atol=2e-3)


def test_density_integrates_to_one_over_the_actions(getkey: GetKey) -> None:
    # The mean of 1 / density over samples is the length of the support, 2. Its variance
    # is finite where the density does not vanish at the ends, as with a wide scale.
    distribution = TanhNormal(mean=jnp.array([0.2]), log_scale=jnp.array([0.3]))
    _, log_probs = _samples(distribution, getkey, 40_000)
    inverse = np.exp(-np.asarray(log_probs, np.float64))
    error = float(np.std(inverse)) / math.sqrt(inverse.size)
    assert error < 0.02
    np.testing.assert_allclose(np.mean(inverse), 2, atol=4 * error)


def test_log_prob_and_its_gradient_are_finite_where_actions_saturate(
    getkey: GetKey,
) -> None:
    key = getkey()

    def log_prob(mean: Array, log_scale: Array) -> Array:
        distribution = TanhNormal(mean=mean[None], log_scale=log_scale[None])
        return distribution.sample_and_log_prob(key=key)[1]

    means, log_scales = np.meshgrid([-1e4, -30.0, 30.0, 1e4], [-20.0, 0.0, 2.0])
    values, gradients = jax.jit(jax.vmap(jax.value_and_grad(log_prob, argnums=(0, 1))))(
        jnp.asarray(means.reshape(-1)), jnp.asarray(log_scales.reshape(-1))
    )
    assert values.shape == (12,)
    assert np.all(np.isfinite(values))
    assert np.all(np.isfinite(gradients))


def test_log_prob_of_a_saturated_action_keeps_growing_with_the_mean(
    getkey: GetKey,
) -> None:
    # Where tanh is 1 in single precision, log|d tanh(u)| is 2 (log 2 - u), so shifting
    # the mean by 10 with the same noise adds 20.
    key = getkey()
    log_probs = [
        TanhNormal(mean=jnp.array([mean]), log_scale=jnp.zeros(1)).sample_and_log_prob(
            key=jr.clone(key)
        )[1]
        for mean in (30.0, 40.0)
    ]
    np.testing.assert_allclose(log_probs[1] - log_probs[0], 20, rtol=1e-5)


def test_samples_before_tanh_have_the_mean_and_the_scale(getkey: GetKey) -> None:
    distribution = TanhNormal(
        mean=jnp.array([0.4, -0.5]), log_scale=jnp.log(jnp.array([0.5, 0.1]))
    )
    actions, _ = _samples(distribution, getkey, 10_000)
    before = np.arctanh(np.asarray(actions, np.float64))
    np.testing.assert_allclose(np.mean(before, axis=0), [0.4, -0.5], atol=0.03)
    np.testing.assert_allclose(np.std(before, axis=0), [0.5, 0.1], rtol=0.05)


def test_gradient_of_a_sample_follows_the_noise(getkey: GetKey) -> None:
    # d tanh(m + s e) / dm = 1 - a^2, and / d log s = (1 - a^2) s e.
    key = getkey()

    def sample(mean: Array, log_scale: Array) -> Array:
        distribution = TanhNormal(mean=mean[None], log_scale=log_scale[None])
        return distribution.sample_and_log_prob(key=jr.clone(key))[0][0]

    mean, log_scale = jnp.array(0.3), jnp.array(-0.4)
    gradients = jax.grad(sample, argnums=(0, 1))(mean, log_scale)
    action = float(sample(mean, log_scale))
    slope = 1 - action**2
    np.testing.assert_allclose(gradients[0], slope, rtol=1e-4)
    np.testing.assert_allclose(
        gradients[1], slope * (np.arctanh(action) - 0.3), rtol=1e-3
    )


def test_mode_of_tanh_normal_is_tanh_of_the_mean() -> None:
    distribution = TanhNormal(mean=jnp.array([0.4, -9.0]), log_scale=jnp.zeros(2))
    np.testing.assert_allclose(distribution.mode(), np.tanh([0.4, -9.0]), rtol=1e-6)


def test_clipped_normal_stays_within_bounds(getkey: GetKey) -> None:
    distribution = ClippedNormal(mean=jnp.array([0.9, -0.9]), scale=jnp.array(2.0))
    samples = jax.vmap(lambda key: distribution.sample(key=key))(
        jr.split(getkey(), 200)
    )
    np.testing.assert_array_equal(np.max(samples, axis=0), [1, 1])
    np.testing.assert_array_equal(np.min(samples, axis=0), [-1, -1])


def test_clipped_normal_has_its_mean_and_scale_where_nothing_is_clipped(
    getkey: GetKey,
) -> None:
    distribution = ClippedNormal(mean=jnp.array([0.4, -0.2]), scale=jnp.array(0.1))
    samples = jax.vmap(lambda key: distribution.sample(key=key))(
        jr.split(getkey(), 10_000)
    )
    np.testing.assert_allclose(np.mean(samples, axis=0), [0.4, -0.2], atol=0.005)
    np.testing.assert_allclose(np.std(samples, axis=0), [0.1, 0.1], rtol=0.05)
    np.testing.assert_array_equal(distribution.mode(), distribution.mean)


def test_what_is_drawn_has_the_density_of_a_normal_distribution() -> None:
    mean, scale = np.array([0.5, -1.0]), np.array([0.25, 2.0])
    normal = SquashedNormal(
        mean=jnp.asarray(mean), log_scale=jnp.log(jnp.asarray(scale)), squash=False
    )
    drawn = np.array([0.75, 3.0])
    density = np.exp(-0.5 * ((drawn - mean) / scale) ** 2)
    density /= scale * math.sqrt(2 * math.pi)
    expected = np.log(density).sum()
    np.testing.assert_allclose(normal.log_prob(jnp.asarray(drawn)), expected, rtol=1e-5)
    entropy = np.sum(0.5 * np.log(2 * math.pi * math.e * scale**2))
    np.testing.assert_allclose(normal.entropy(), entropy, rtol=1e-5)
    np.testing.assert_allclose(normal.action(jnp.asarray(drawn)), [0.75, 1.0])
    np.testing.assert_allclose(normal.mode(), [0.5, -1.0])
    squashed = SquashedNormal(normal.mean, normal.log_scale, squash=True)
    np.testing.assert_allclose(
        squashed.action(jnp.asarray(drawn)), np.tanh(drawn), rtol=1e-6
    )
    np.testing.assert_allclose(squashed.mode(), np.tanh(mean), rtol=1e-6)


def test_draws_are_normal(getkey: GetKey) -> None:
    normal = SquashedNormal(
        mean=jnp.array([2.0]), log_scale=jnp.log(jnp.array([0.5])), squash=True
    )
    keys = jr.split(getkey(), 4_000)
    drawn = np.asarray(jax.vmap(lambda key: normal.draw(key=key))(keys))
    assert abs(drawn.mean() - 2.0) < 0.04 and abs(drawn.std() - 0.5) < 0.03
    # A sample is the action made of the draw with the same key.
    sample = normal.sample(key=keys[0])
    np.testing.assert_allclose(sample, np.tanh(drawn[0]), rtol=1e-6)


def test_a_choice_has_the_probability_that_its_logits_say() -> None:
    softmax = Softmax(jnp.log(jnp.array([1.0, 3.0, 4.0])))
    for action, prob in enumerate([0.125, 0.375, 0.5]):
        chosen = softmax.log_prob(jnp.asarray(action))
        np.testing.assert_allclose(chosen, math.log(prob), rtol=1e-5)
    masked = Softmax(jnp.array([0.0, -jnp.inf, 0.0]))
    np.testing.assert_allclose(masked.entropy(), math.log(2), rtol=1e-5)
    expected = -sum(p * math.log(p) for p in (0.125, 0.375, 0.5))
    np.testing.assert_allclose(softmax.entropy(), expected, rtol=1e-5)


MEAN, SCALE = np.array([0.4, -1.5], np.float32), np.array([0.7, 0.2], np.float32)
ACTIONS = np.array([[0.3, -0.9], [0.99, -0.999], [0.0, 0.4]], np.float32)
BORDERS = np.array([[1.0, -1.0], [-1.0, 1.0], [1.0, 0.2]], np.float32)


@jax.jit
def _values_and_gradients(mean: Array, log_scale: Array, action: Array) -> Array:
    """Of `TanhNormal.log_prob`, by the mean, the log-scale and the action."""

    def log_prob(mean: Array, log_scale: Array, action: Array) -> Array:
        return TanhNormal(mean=mean, log_scale=log_scale).log_prob(action)

    value, gradient = jax.value_and_grad(log_prob, argnums=(0, 1, 2))(
        mean, log_scale, action
    )
    return jnp.concatenate([value[None], *gradient])


def test_log_prob_of_given_actions_is_that_of_the_change_of_variables() -> None:
    expected = 0.0
    for action in ACTIONS:
        found = _values_and_gradients(MEAN, np.log(SCALE), action)[0]
        expected = np.sum(np.log(_density(MEAN, SCALE, action.astype(np.float64))))
        np.testing.assert_allclose(found, expected, rtol=1e-3)
    squashed = SquashedNormal(jnp.asarray(MEAN), jnp.log(SCALE), squash=True)
    found = squashed.action_log_prob(jnp.asarray(ACTIONS[-1]))
    np.testing.assert_allclose(found, expected, rtol=1e-3)


def test_log_prob_of_a_sample_is_the_one_that_is_known_of_it(getkey: GetKey) -> None:
    distribution = TanhNormal(mean=jnp.array([0.4, -0.3]), log_scale=jnp.zeros(2))
    key = getkey()
    action, expected = distribution.sample_and_log_prob(key=jr.clone(key))
    np.testing.assert_array_equal(distribution.sample(key=jr.clone(key)), action)
    np.testing.assert_allclose(distribution.log_prob(action), expected, rtol=1e-4)
    np.testing.assert_array_equal(distribution.entropy(key=key), -expected)


def test_log_prob_is_finite_at_the_borders_and_so_is_its_gradient() -> None:
    for log_scale in (-20.0, 2.0):
        for action in BORDERS:
            found = _values_and_gradients(
                MEAN, np.full(2, log_scale, np.float32), action
            )
            assert np.all(np.isfinite(found))
    # A mean further out makes the border likelier.
    found = _values_and_gradients(MEAN, np.log(SCALE), BORDERS[0])
    assert found[1] > 0 and found[2] < 0


def test_entropy_of_tanh_normal_is_right_on_average(getkey: GetKey) -> None:
    distribution = TanhNormal(
        mean=jnp.array([0.4]), log_scale=jnp.log(jnp.array([0.7]))
    )
    _, log_probs = _samples(distribution, getkey, 500)
    before = np.linspace(-6, 6, 2001)
    density = stats.norm.pdf(before, 0.4, 0.7)
    # Of the normal distribution, and the mean of log|d tanh|.
    shrinking = np.sum(density * np.log(1 - np.tanh(before) ** 2)) * 12 / 2000
    expected = stats.norm.entropy(0.4, 0.7) + shrinking
    # One sample, as `entropy` takes it, is off by the standard deviation.
    error = float(np.std(log_probs)) / math.sqrt(500)
    np.testing.assert_allclose(-np.mean(log_probs), expected, atol=4 * error)


def test_a_clipped_normal_has_a_density_inside_and_probabilities_on_the_border() -> (
    None
):
    mean, scale = 0.6, 0.5
    clipped = ClippedNormal(jnp.array([mean]), jnp.array(scale))
    found_of: dict[float, Any] = {}
    normal: Any = stats.norm(mean, scale)
    expected = {
        0.9: normal.logpdf(0.9),
        1.0: normal.logsf(1.0),
        -1.0: normal.logcdf(-1.0),
    }

    @jax.jit
    def found(action: Array) -> tuple[Array, Array, Array]:
        squashed = SquashedNormal(
            clipped.mean, jnp.log(clipped.scale)[None], squash=False
        )
        return (
            clipped.log_prob(action),
            squashed.action_log_prob(action),
            clipped.entropy(),
        )

    for action, log_prob in expected.items():
        found_of[action] = found(np.array([action], np.float32))
        np.testing.assert_allclose(found_of[action][:2], [log_prob] * 2, rtol=1e-5)
    inside, _ = integrate.quad(lambda x: -normal.pdf(x) * normal.logpdf(x), -1, 1)
    border = sum(-math.exp(expected[x]) * expected[x] for x in (-1.0, 1.0))
    np.testing.assert_allclose(found_of[1.0][2], inside + border, rtol=1e-5)


def test_an_epsilon_greedy_choice_has_the_probability_of_either_way() -> None:
    values = jnp.array([0.0, 2.0, 1.0, -1.0])

    @jax.jit
    def found(epsilon: Array) -> tuple[Array, Array]:
        choice = EpsilonGreedy(values, epsilon)
        return jax.vmap(choice.log_prob)(jnp.arange(4)), choice.entropy()

    probs = [0.05, 0.85, 0.05, 0.05]
    log_prob, entropy = found(np.float32(0.2))
    np.testing.assert_allclose(log_prob, np.log(probs), rtol=1e-5)
    np.testing.assert_allclose(entropy, stats.entropy(probs), rtol=1e-5)
    log_prob, entropy = found(np.float32(0))
    assert entropy == 0 and log_prob[0] == -math.inf
