import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array

from eqrl.losses import disagreement, knn_distance, particle_entropy


SETTINGS = hypothesis.settings(
    max_examples=150, deadline=None, derandomize=True, database=None
)
distance = jax.jit(knn_distance, static_argnames="k")


def knn_loop(
    queries: np.ndarray, points: np.ndarray, k: int, mask: np.ndarray
) -> np.ndarray:
    """Point by point, in float64."""
    found = []
    for query in queries.astype(np.float64):
        distances = [np.inf] * k
        for point, exists in zip(points.astype(np.float64), mask, strict=True):
            if exists:
                distances.append(float(np.sqrt(np.sum((query - point) ** 2))))
        found.append(sorted(distances)[k - 1])
    return np.array(found)


@SETTINGS
@hypothesis.given(
    seed=st.integers(0, 2**31 - 1),
    num_points=st.sampled_from([2, 9]),
    size=st.sampled_from([1, 3]),
    k=st.sampled_from([1, 3]),
    num_shared=st.integers(0, 2),
    on_lattice=st.booleans(),
    offset=st.sampled_from([0.0, 1e4, -1e4]),
    present=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_is_the_loop_over_points(
    seed: int,
    num_points: int,
    size: int,
    k: int,
    num_shared: int,
    on_lattice: bool,
    offset: float,
    present: float,
) -> None:
    random = np.random.default_rng(seed)
    shape = (num_points + 4, size)
    # On a lattice many distances are the same, and many points.
    values = random.integers(0, 3, shape) if on_lattice else random.normal(size=shape)
    values = (offset + 0.1 * values).astype(np.float32)
    points, queries = values[:num_points], values[num_points:]
    queries[:num_shared] = points[:num_shared]
    mask = random.random(num_points) < present
    actual = distance(jnp.asarray(queries), jnp.asarray(points), k=k, mask=mask)
    expected = knn_loop(queries, points, k, mask)
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-12)


def test_a_query_among_the_points_is_one_of_the_nearest() -> None:
    points = jnp.array([[0.0, 0.0], [3.0, 4.0], [0.0, 0.0], [6.0, 8.0]])
    # From the origin, which is there twice: 0, 0, 5 and 10.
    found = [float(knn_distance(points[:1], points, k=k)[0]) for k in (1, 2, 3, 4)]
    np.testing.assert_allclose(found, [0, 0, 5, 10], rtol=1e-6)


def test_nothing_is_lost_far_from_the_origin() -> None:
    # Multiples of 1/8 are exact there.
    points = 1e4 + jnp.array([[0.0, 0.0], [0.375, 0.5], [1.0, 0.0]])
    np.testing.assert_array_equal(knn_distance(points[:1], points, k=2), [0.625])


@pytest.mark.parametrize("num_points", [0, 2])
def test_fewer_than_k_points_are_infinitely_far(num_points: int) -> None:
    assert jnp.all(jnp.isinf(knn_distance(jnp.zeros((2, 3)), jnp.zeros((0, 3)), k=1)))
    points = jnp.ones((3, 3))
    mask = jnp.arange(3) < num_points
    assert jnp.all(
        jnp.isinf(knn_distance(jnp.zeros((2, 3)), points, k=num_points + 1, mask=mask))
    )


def test_what_is_masked_does_not_matter() -> None:
    points = jnp.array([[1.0], [jnp.nan], [jnp.inf], [2.0]])
    mask = jnp.array([True, False, False, True])
    np.testing.assert_array_equal(
        knn_distance(jnp.zeros((1, 1)), points, k=2, mask=mask), [2]
    )


@pytest.mark.parametrize("k", [0, -1, 1.0, True])
def test_k_is_an_integer_of_at_least_1(k: int) -> None:
    with pytest.raises(Exception, match=r"`k=.*an integer, at least 1|k: int"):
        knn_distance(jnp.zeros((1, 1)), jnp.zeros((2, 1)), k=k)


def test_no_gradient_flows_through_it() -> None:
    def total(queries: Array, points: Array) -> Array:
        return jnp.sum(knn_distance(queries, points, k=1))

    points = jnp.array([[0.0, 1.0], [2.0, 3.0]])
    # One query is at no distance, where a root has no slope.
    queries = jnp.array([[0.0, 1.0], [5.0, 5.0]])
    for gradient in jax.grad(total, argnums=(0, 1))(queries, points):
        np.testing.assert_array_equal(gradient, 0)


def test_particle_entropy_is_that_of_the_nearest_other_rows() -> None:
    rows = np.array([[0.0, 0], [1, 0], [1, 0], [4, 4], [-30, 0]])
    value = particle_entropy(jnp.asarray(rows, jnp.float32), k=2, scale=2.0, clip=0.25)
    expected = []
    for row in rows:
        # The first is the row itself or its equal.
        nearest = np.sort(np.linalg.norm(rows - row, axis=1))[1:3]
        expected.append(np.log1p(np.mean(np.maximum(nearest / 2 - 0.25, 0))))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    order = np.array([3, 0, 4, 2, 1])
    permuted = particle_entropy(
        jnp.asarray(rows[order], jnp.float32), k=2, scale=2.0, clip=0.25
    )
    np.testing.assert_allclose(permuted, np.asarray(value)[order], rtol=1e-6)
    # Equal rows have no distance, and a row far away is nobody's neighbor.
    alike = particle_entropy(jnp.ones((4, 2)), k=3)
    np.testing.assert_array_equal(alike, 0)
    with pytest.raises(ValueError, match="`k=4` needs at least 5 rows"):
        particle_entropy(jnp.ones((4, 2)), k=4)


def test_disagreement_is_the_unbiased_variance_over_models() -> None:
    predictions = np.random.default_rng(0).normal(size=(4, 3, 2)).astype(np.float32)
    mean = predictions.astype(np.float64).mean(axis=0)
    expected = np.sum((predictions - mean) ** 2, axis=0).mean(axis=1) / 3
    np.testing.assert_allclose(
        disagreement(jnp.asarray(predictions)), expected, rtol=1e-5
    )
    with pytest.raises(ValueError, match="give 2 or more"):
        disagreement(jnp.ones((1, 3, 2)))
