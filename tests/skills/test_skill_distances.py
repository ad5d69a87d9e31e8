"""How far skills are apart, against loops and against numbers worked out by hand."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqrl
from tests.toy import GetKey


def loop_hausdorff(first: np.ndarray, second: np.ndarray) -> float:
    worst = 0.0
    for here, there in ((first, second), (second, first)):
        for point in here:
            nearest = min(float(np.sqrt(np.sum((point - x) ** 2))) for x in there)
            worst = max(worst, nearest)
    return worst


def loop_pairwise(points: np.ndarray) -> float:
    pairs = itertools.combinations(points, 2)
    return float(np.mean([loop_hausdorff(*pair) for pair in pairs]))


def loop_union(points: np.ndarray) -> float:
    distances = []
    for skill in range(len(points)):
        others = np.concatenate([x for i, x in enumerate(points) if i != skill])
        distances.append(loop_hausdorff(points[skill], others))
    return float(np.mean(distances))


def loop_nearest(points: np.ndarray) -> float:
    centers = [sum(own) / len(own) for own in points]
    return float(
        np.mean(
            [
                min(
                    np.sqrt(np.sum((center - other) ** 2))
                    for j, other in enumerate(centers)
                    if j != i
                )
                for i, center in enumerate(centers)
            ]
        )
    )


# Three skills of two episodes each, on a line: ends at 0 and 1, 4 and 4, and 10 and 2.
LINE = jnp.array([[0.0, 1.0], [4.0, 4.0], [10.0, 2.0]])[..., None]

MEASURES: list[tuple[Any, Any]] = [
    (eqrl.pairwise_hausdorff, loop_pairwise),
    (eqrl.union_hausdorff, loop_union),
    (eqrl.nearest_distance, loop_nearest),
]
measures = pytest.mark.parametrize(
    "measure, loop", MEASURES, ids=["pairwise", "union", "nearest"]
)


class TestHausdorffDistance:
    def test_is_the_furthest_nearest_point_of_either_set(self) -> None:
        # From (3, 0) it is 3 to the other set; from (6, 4) it is 5 to (3, 0).
        first = jnp.array([[0.0, 0.0], [3.0, 0.0]])
        second = jnp.array([[0.0, 0.0], [6.0, 4.0]])
        assert eqrl.hausdorff_distance(first, second) == 5
        assert eqrl.hausdorff_distance(second, first) == 5

    def test_counts_from_the_first_set_too(self) -> None:
        first, second = jnp.array([[0.0], [7.0]]), jnp.array([[1.0]])
        assert eqrl.hausdorff_distance(first, second) == 6
        assert eqrl.hausdorff_distance(second, first) == 6

    def test_is_zero_for_the_same_points_in_another_order(self, getkey: GetKey) -> None:
        points = jr.normal(getkey(), (6, 3))
        assert eqrl.hausdorff_distance(points, points[::-1]) == 0

    def test_agrees_with_loops(self, getkey: GetKey) -> None:
        first, second = jr.normal(getkey(), (5, 3)), jr.normal(getkey(), (8, 3))
        given = eqrl.hausdorff_distance(first, second)
        expected = loop_hausdorff(np.asarray(first), np.asarray(second))
        np.testing.assert_allclose(given, expected, rtol=1e-6)

    def test_of_no_points_there_is_none(self) -> None:
        with pytest.raises(ValueError, match="0 and 2 points"):
            eqrl.hausdorff_distance(jnp.zeros((0, 3)), jnp.zeros((2, 3)))


class TestMeasures:
    def test_pairwise_by_hand(self) -> None:
        # 0-1: {0, 1} and {4}: 4. 0-2: {0, 1} and {10, 2}: 9. 1-2: {4} and {10, 2}: 6.
        assert float(eqrl.pairwise_hausdorff(LINE)) == pytest.approx(19 / 3)

    def test_union_by_hand(self) -> None:
        # {0, 1} and {4, 10, 2}: 9. {4} and {0, 1, 10, 2}: 6. {10, 2} and {0, 1, 4}: 6.
        assert float(eqrl.union_hausdorff(LINE)) == pytest.approx(7)

    def test_nearest_by_hand(self) -> None:
        # Means 0.5, 4 and 6: the nearest are 3.5, 2 and 2 away.
        assert float(eqrl.nearest_distance(LINE)) == pytest.approx(2.5)

    @measures
    def test_agree_with_loops_for_two_skills_of_one_episode(
        self, measure: Any, loop: Any
    ) -> None:
        points = jnp.array([[[1.0, 1.0]], [[4.0, 5.0]]])
        assert measure(points) == loop(np.asarray(points)) == 5

    @measures
    def test_agree_with_loops_under_jit_and_vmap(
        self, measure: Any, loop: Any, getkey: GetKey
    ) -> None:
        points = jr.normal(getkey(), (3, 4, 2, 2))
        given = jax.jit(jax.vmap(measure))(points)
        expected = [loop(np.asarray(each)) for each in points]
        np.testing.assert_allclose(given, expected, rtol=1e-6)

    @measures
    def test_are_exact_far_from_the_origin(self, measure: Any, loop: Any) -> None:
        # By |a|^2 + |b|^2 - 2ab nothing would be left of these distances.
        points = 1e5 + jnp.array([[[0.0, 0.0]], [[0.25, 0.0]], [[0.0, 0.5]]])
        expected = loop(np.asarray(points, dtype=float))
        np.testing.assert_allclose(measure(points), expected, rtol=1e-6)

    @measures
    def test_are_zero_where_all_points_are_equal(self, measure: Any, loop: Any) -> None:
        del loop
        assert measure(jnp.full((4, 3, 2), 1e5 / 3)) == 0

    @measures
    def test_are_nan_where_an_episode_had_no_end(self, measure: Any, loop: Any) -> None:
        del loop
        assert np.isnan(measure(LINE.at[1, 0].set(jnp.nan)))

    @measures
    @pytest.mark.parametrize("shape", [(1, 5, 2), (0, 5, 2), (3, 0, 2)])
    def test_of_fewer_than_two_skills_there_are_none(
        self, measure: Any, loop: Any, shape: tuple[int, ...]
    ) -> None:
        del loop
        with pytest.raises(ValueError, match="at least 2 skills"):
            measure(jnp.zeros(shape))


class TestTerminalDescriptors:
    def test_are_the_last_within_the_episodes(self) -> None:
        descriptors = jnp.arange(24.0).reshape(2, 2, 3, 2)
        mask = jnp.array(
            [
                [[True, True, True], [True, True, False]],
                [[True, False, False], [True, True, True]],
            ]
        )
        expected = [[[4, 5], [8, 9]], [[12, 13], [22, 23]]]
        given = eqrl.terminal_descriptors(descriptors, mask)
        np.testing.assert_array_equal(given, expected)
        under_jit = jax.jit(jax.vmap(eqrl.terminal_descriptors))(descriptors, mask)
        np.testing.assert_array_equal(under_jit, expected)

    def test_of_an_episode_of_no_steps_there_is_none(self) -> None:
        mask = jnp.array([[True, True], [False, False]])
        given = eqrl.terminal_descriptors(jnp.ones((2, 2, 1)), mask)
        np.testing.assert_array_equal(given, [[1], [np.nan]])


def covered(*rows: list[float], **options: Any) -> float:
    """The coverage of a few rows, always of the same shape, which compiles once."""
    settings: dict[str, Any] = {"low": 0.0, "high": 1.0, "num_bins": 2} | options
    padding = [[0.0] * len(rows[0])] * (5 - len(rows))
    descriptors = jnp.array([*rows, *padding])
    mask = jnp.asarray(np.arange(5) < len(rows))
    return float(eqrl.coverage(descriptors, mask, **settings))


class TestCoverage:
    def test_is_the_share_of_cells_visited(self) -> None:
        assert covered([0.1, 0.1], [0.2, 0.3], [0.9, 0.1]) == 0.5

    def test_cells_of_all_elements_are_told_apart(self) -> None:
        # In a corner each of 8 cells.
        corners = jnp.array(list(itertools.product([0.1, 0.9], repeat=3)))

        @jax.jit
        def share(mask: jax.Array) -> jax.Array:
            return eqrl.coverage(corners, mask, low=0.0, high=1.0, num_bins=2)

        for number in range(9):
            assert share(np.arange(8) < number) == number / 8

    def test_what_lies_outside_counts_nowhere(self) -> None:
        outside = [[-0.1, 0.5], [0.5, 1.1], [np.nan, 0.5], [np.inf, 0.5]]
        assert covered(*outside) == 0
        assert covered(*outside, [0.1, 0.1]) == 0.25

    def test_the_ends_of_the_region_belong_to_it(self) -> None:
        assert covered([0.0, 0.0], [1.0, 1.0]) == 0.5

    def test_the_end_of_a_part_belongs_to_the_next(self) -> None:
        assert covered([0.4, 0.1], [0.5, 0.1]) == 0.5

    def test_each_element_may_have_a_region_of_its_own(self) -> None:
        low, high = jnp.array([-4.0, 0.0]), jnp.array([4.0, 1.0])
        given = covered([-3.0, 0.1], [-1.0, 0.1], [3.0, 2.0], low=low, high=high)
        assert given == 0.25

    def test_what_is_masked_does_not_count(self) -> None:
        descriptors = jnp.array([[[0.1], [0.9]], [[0.2], [0.7]]])
        mask = jnp.array([[True, False], [True, False]])
        given = eqrl.coverage(descriptors, mask, low=0, high=1, num_bins=2)
        assert given == 0.5

    def test_agrees_with_numpys_histogram_under_jit_and_vmap(
        self, getkey: GetKey
    ) -> None:
        descriptors = 1.5 * jr.normal(getkey(), (3, 4, 10, 2))
        mask = jr.bernoulli(getkey(), shape=(3, 4, 10))

        @jax.jit
        @jax.vmap
        def share(descriptors: jax.Array, mask: jax.Array) -> jax.Array:
            return eqrl.coverage(descriptors, mask, low=-2.0, high=2.0, num_bins=5)

        expected = []
        for each, counted in zip(descriptors, mask, strict=True):
            rows = np.asarray(each)[np.asarray(counted)]
            counts, _ = np.histogramdd(rows, bins=5, range=[(-2, 2)] * 2)
            expected.append(np.mean(counts > 0))
        np.testing.assert_allclose(share(descriptors, mask), expected, rtol=1e-6)

    @pytest.mark.parametrize(
        "options, said",
        [
            ({"low": 1.0}, r"`low=1.0` must be below `high=1.0`"),
            ({"high": jnp.array([1.0, -1.0])}, r"must be below `high=\[1.0, -1.0\]`"),
            ({"high": np.inf}, "finite"),
            ({"num_bins": 0}, "num_bins=0"),
            ({"num_bins": 50_000}, "2500000000 cells"),
        ],
    )
    def test_regions_that_are_none_are_refused(
        self, options: dict[str, Any], said: str
    ) -> None:
        with pytest.raises(ValueError, match=said):
            covered([0.0, 0.0], **options)

    def test_a_region_that_is_none_is_refused_under_jit(self) -> None:
        with pytest.raises(ValueError, match="must be below"):
            jax.jit(
                lambda x: eqrl.coverage(
                    x, jnp.ones(1, bool), low=2.0, high=1.0, num_bins=2
                )
            )(jnp.zeros((1, 1)))
