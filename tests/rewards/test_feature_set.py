import itertools
from collections.abc import Sequence

import equinox as eqx
import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqrl._rewards.feature_set import (
    FeatureSet,
    add_points,
    clear,
    distance_to,
    draw_distinct,
    draw_points,
    empty_set,
    enlarge,
    num_points,
)

from ..toy import GetKey


SETTINGS = hypothesis.settings(
    max_examples=60, deadline=None, derandomize=True, database=None
)
empty = jax.jit(empty_set, static_argnums=(0, 1, 2))
put = jax.jit(add_points)
draw = jax.jit(draw_points, static_argnames="num_samples")
distances = jax.jit(distance_to, static_argnames=("k", "num_samples", "default"))
draw_many = jax.jit(
    jax.vmap(
        lambda count, most, num_samples, key: draw_distinct(
            count, most, num_samples, key=key
        ),
        in_axes=(None, None, None, 0),
    ),
    static_argnums=(1, 2),
)


def set_of(rows: int, *buckets: Sequence[float]) -> FeatureSet:
    """Buckets which these points on a line were put into, in this order."""
    features = np.zeros((len(buckets), rows, 1), np.float32)
    for index, bucket in enumerate(buckets):
        for count, place in enumerate(bucket):
            features[index, count % rows, 0] = place
    counts = [len(bucket) for bucket in buckets]
    return FeatureSet(features=jnp.asarray(features), counts=jnp.asarray(counts))


def held_by(points: FeatureSet, bucket: int) -> list[float]:
    held = int(np.asarray(num_points(points))[bucket])
    return np.asarray(points.features)[bucket, :held, 0].tolist()


@pytest.mark.parametrize("rows", [1, 4])
def test_a_bucket_of_more_points_than_32_bits_count_holds_the_last(rows: int) -> None:
    points = empty(3, rows, 2)
    begin = 2**31 - 1 - 12
    points = eqx.tree_at(lambda points: points.counts, points, jnp.full(3, begin))
    for number in range(8):
        features = np.full((3, 3, 2), number, np.float32) + np.arange(3)[:, None] / 3
        points = put(points, features, np.ones((3, 3), bool))
    assert np.asarray(num_points(points)).tolist() == [rows] * 3
    written = begin + 3 * 8
    place = (written - 1 - np.arange(rows)) % rows
    newest = (3 * 8 - 1 - np.arange(rows)) / 3
    np.testing.assert_allclose(
        np.asarray(points.features)[0, place, 0], newest, rtol=1e-6
    )


@SETTINGS
@hypothesis.given(
    seed=st.integers(0, 2**31 - 1),
    rows=st.sampled_from([0, 1, 4]),
    sizes=st.lists(st.sampled_from([3, 9]), min_size=1, max_size=5),
)
def test_each_bucket_holds_the_last_of_what_it_was_given(
    seed: int, rows: int, sizes: list[int]
) -> None:
    random = np.random.default_rng(seed)
    points = empty(3, rows, 2)
    given: list[list[np.ndarray]] = [[], [], []]
    for size in sizes:
        features = random.normal(size=(3, size, 2)).astype(np.float32)
        keep = random.random((3, size)) < random.random()
        points = put(points, features, keep)
        for bucket in range(3):
            given[bucket] += list(features[bucket, keep[bucket]])
    numbers = np.asarray(num_points(points))
    points = jax.device_get(points)
    assert points.counts.tolist() == [len(bucket) for bucket in given]
    for bucket in range(3):
        first = max(len(given[bucket]) - rows, 0)
        for index in range(first, len(given[bucket])):
            found = points.features[bucket, index % rows]
            np.testing.assert_array_equal(found, given[bucket][index])
        assert numbers[bucket] == min(len(given[bucket]), rows)


def test_a_larger_set_goes_on_where_the_smaller_ended() -> None:
    points = enlarge(set_of(3, [1, 2, 3], [4]), 5)
    assert points.features.shape == (2, 5, 1)
    assert held_by(points, 0) == [1, 2, 3] and held_by(points, 1) == [4]
    points = put(points, np.full((2, 1, 1), 9, np.float32), np.ones((2, 1), bool))
    assert held_by(points, 0) == [1, 2, 3, 9] and held_by(points, 1) == [4, 9]


def test_an_emptied_set_is_as_a_fresh_one() -> None:
    points = clear(set_of(3, [1, 2, 3, 4], [5]))
    assert eqx.tree_equal(points, empty_set(2, 3, 1))


# Draws of 5,000 keys each, so that the tests share programs.


@pytest.mark.parametrize(
    ("count", "num_samples", "most"), [(5, 3, 6), (13, 12, 20), (6, 3, 6)]
)
def test_drawn_numbers_are_distinct_and_below_the_count(
    count: int, num_samples: int, most: int, getkey: GetKey
) -> None:
    drawn = np.asarray(draw_many(count, most, num_samples, jr.split(getkey(), 5_000)))
    assert drawn.shape == (5_000, num_samples)
    assert np.all(np.diff(np.sort(drawn, axis=1), axis=1) > 0)
    assert drawn.min() == 0 and drawn.max() == count - 1


@pytest.mark.parametrize("count", [0, 1, 3])
def test_where_there_are_no_more_all_are_drawn(count: int, getkey: GetKey) -> None:
    drawn = np.asarray(draw_many(count, 6, 3, jr.split(getkey(), 5_000)))
    assert np.all(drawn[:, :count] == np.arange(count))


# The chi-square of so many degrees of freedom is larger once in a thousand times.
@pytest.mark.parametrize(
    ("count", "num_samples", "limit"), [(5, 3, 27.88), (4, 3, 16.27), (5, 1, 18.47)]
)
def test_all_sets_of_numbers_are_equally_likely(
    count: int, num_samples: int, limit: float, getkey: GetKey
) -> None:
    drawn = draw_many(count, 6, num_samples, jr.split(getkey(), 5_000))
    found = [tuple(sorted(row)) for row in np.asarray(drawn).tolist()]
    sets = list(itertools.combinations(range(count), num_samples))
    expected = len(found) / len(sets)
    chi_square = sum((found.count(one) - expected) ** 2 / expected for one in sets)
    assert set(found) == set(sets)
    assert chi_square < limit


def test_no_number_is_drawn_more_often_than_another(getkey: GetKey) -> None:
    # With 12 of 13, several turns are needed for most draws.
    drawn = np.asarray(draw_many(13, 20, 12, jr.split(getkey(), 5_000)))
    left_out = 13 * 12 // 2 - drawn.sum(axis=1)
    counts = np.bincount(left_out, minlength=13)
    assert np.sum((counts - 5_000 / 13) ** 2 / (5_000 / 13)) < 32.91


def test_points_are_drawn_from_those_held(getkey: GetKey) -> None:
    points = set_of(6, [1, 2, 3, 4, 5], [7, 8], [], [1, 2, 3, 4, 5, 6, 7])
    held = [{1, 2, 3, 4, 5}, {7, 8}, set(), {2, 3, 4, 5, 6, 7}]
    draws = set()
    for _ in range(5):
        drawn, mask = jax.device_get(draw(points, num_samples=3, key=getkey()))
        assert drawn.shape == (4, 3, 1)
        assert mask.sum(axis=1).tolist() == [3, 2, 0, 3]
        for bucket in range(4):
            found = drawn[bucket, mask[bucket], 0].tolist()
            assert len(set(found)) == len(found) and set(found) <= held[bucket]
        assert set(drawn[1, mask[1], 0].tolist()) == held[1]
        draws.add(tuple(drawn[0, :, 0].tolist()))
    assert len(draws) > 1


def test_buckets_are_drawn_from_independently(getkey: GetKey) -> None:
    points = set_of(20, range(20), range(20))
    drawn, _ = jax.device_get(draw(points, num_samples=5, key=getkey()))
    assert not np.array_equal(drawn[0], drawn[1])


def test_all_points_are_taken_where_there_is_room_for_no_more(
    getkey: GetKey,
) -> None:
    points = set_of(3, [1, 2, 3, 4], [7])
    drawn, mask = draw(points, num_samples=3, key=getkey())
    np.testing.assert_array_equal(drawn, points.features)
    assert mask.tolist() == [[True] * 3, [True, False, False]]


def test_the_distance_is_to_points_of_the_same_bucket(getkey: GetKey) -> None:
    points = set_of(4, [1, 2, 4], [10], [20, 26])
    features = np.array([[0.0], [5.0], [0.0], [0.0], [21.0]], np.float32)
    bucket = np.array([0, 0, 1, 2, 0])
    found = distances(
        points, features, bucket, k=2, num_samples=4, default=0.5, key=getkey()
    )
    assert found.known.tolist() == [True, True, False, True, True]
    np.testing.assert_allclose(found.values, [2, 3, 0.5, 26, 19])
    assert found.mean() == (2 + 3 + 26 + 19) / 4


@pytest.mark.parametrize("num_buckets", [1, 2])
def test_the_distance_is_to_the_points_drawn(num_buckets: int, getkey: GetKey) -> None:
    points = set_of(20, *[range(20)] * num_buckets)
    features = np.arange(6, dtype=np.float32)[:, None] + 0.25
    bucket = np.arange(6) % num_buckets
    key = getkey()
    drawn, _ = draw(points, num_samples=5, key=jr.clone(key))
    found = distances(
        points, features, bucket, k=2, num_samples=5, default=0.0, key=key
    )
    gaps = np.abs(features - np.asarray(drawn)[bucket, :, 0])
    np.testing.assert_allclose(found.values, np.sort(gaps, axis=1)[:, 1])
    assert np.all(found.known)


def test_without_room_for_k_points_no_distance_is_known(getkey: GetKey) -> None:
    for rows in (0, 2):
        found = distances(
            empty_set(1, rows, 1),
            np.ones((3, 1), np.float32),
            np.zeros(3, int),
            k=3,
            num_samples=4,
            default=0.5,
            key=getkey(),
        )
        assert not np.any(found.known)
        assert found.values.tolist() == [0.5] * 3 and found.mean() == 0.5
