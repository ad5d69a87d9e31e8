"""How far skills are apart, against loops and against numbers worked out by hand."""

import dataclasses
import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
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


# One program each, which compiles faster than every operation by itself.
hausdorff_distance = jax.jit(eqrl.hausdorff_distance)
terminal_descriptors = jax.jit(eqrl.terminal_descriptors)

# Three skills of two episodes each, on a line: ends at 0 and 1, 4 and 4, and 10 and 2.
LINE = np.array([[0.0, 1.0], [4.0, 4.0], [10.0, 2.0]], np.float32)[..., None]

pairwise_hausdorff = jax.jit(eqrl.pairwise_hausdorff)
union_hausdorff = jax.jit(eqrl.union_hausdorff)
nearest_distance = jax.jit(eqrl.nearest_distance)
MEASURES: list[tuple[Any, Any]] = [
    (pairwise_hausdorff, loop_pairwise),
    (union_hausdorff, loop_union),
    (nearest_distance, loop_nearest),
]
measures = pytest.mark.parametrize(
    "measure, loop", MEASURES, ids=["pairwise", "union", "nearest"]
)


class TestHausdorffDistance:
    def test_is_the_furthest_nearest_point_of_either_set(self) -> None:
        # From (3, 0) it is 3 to the other set; from (6, 4) it is 5 to (3, 0).
        first = np.array([[0.0, 0.0], [3.0, 0.0]])
        second = np.array([[0.0, 0.0], [6.0, 4.0]])
        assert hausdorff_distance(first, second) == 5
        assert hausdorff_distance(second, first) == 5

    def test_counts_from_the_first_set_too(self) -> None:
        first, second = np.array([[0.0], [7.0]]), np.array([[1.0]])
        assert hausdorff_distance(first, second) == 6
        assert hausdorff_distance(second, first) == 6

    def test_is_zero_for_the_same_points_in_another_order(self, getkey: GetKey) -> None:
        points = np.asarray(jr.normal(getkey(), (6, 3)))
        assert hausdorff_distance(points, points[::-1]) == 0

    def test_agrees_with_loops(self, getkey: GetKey) -> None:
        points = np.asarray(jr.normal(getkey(), (13, 3)))
        first, second = points[:5], points[5:]
        given = hausdorff_distance(first, second)
        expected = loop_hausdorff(first, second)
        np.testing.assert_allclose(given, expected, rtol=1e-6)

    def test_of_no_points_there_is_none(self) -> None:
        with pytest.raises(ValueError, match="0 and 2 points"):
            eqrl.hausdorff_distance(jnp.zeros((0, 3)), jnp.zeros((2, 3)))

    def test_points_of_another_size_or_without_episodes_are_an_error(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        with pytest.raises(ValueError, match="all of the same size"):
            hausdorff_distance(np.zeros((4, 2)), np.zeros((4, 1)))
        for points in (np.zeros((4, 2)), np.zeros((3, 3, 3, 2))):
            with pytest.raises(ValueError, match="must be of shape"):
                nearest_distance(points)


class TestMeasures:
    def test_pairwise_by_hand(self) -> None:
        # 0-1: {0, 1} and {4}: 4. 0-2: {0, 1} and {10, 2}: 9. 1-2: {4} and {10, 2}: 6.
        assert float(pairwise_hausdorff(LINE)) == pytest.approx(19 / 3)

    def test_union_by_hand(self) -> None:
        # {0, 1} and {4, 10, 2}: 9. {4} and {0, 1, 10, 2}: 6. {10, 2} and {0, 1, 4}: 6.
        assert float(union_hausdorff(LINE)) == pytest.approx(7)

    def test_nearest_by_hand(self) -> None:
        # Means 0.5, 4 and 6: the nearest are 3.5, 2 and 2 away.
        assert float(nearest_distance(LINE)) == pytest.approx(2.5)

    @measures
    def test_agree_with_loops_for_two_skills_of_one_episode(
        self, measure: Any, loop: Any
    ) -> None:
        points = np.array([[[1.0, 1.0]], [[4.0, 5.0]]], np.float32)
        assert measure(points) == loop(points) == 5

    @measures
    def test_agree_with_loops_under_jit_and_vmap(
        self, measure: Any, loop: Any, getkey: GetKey
    ) -> None:
        points = np.asarray(jr.normal(getkey(), (3, 4, 2, 2)))
        given = jax.jit(jax.vmap(measure))(points)
        expected = [loop(each) for each in points]
        np.testing.assert_allclose(given, expected, rtol=1e-6)

    @measures
    def test_are_exact_far_from_the_origin(self, measure: Any, loop: Any) -> None:
        # By |a|^2 + |b|^2 - 2ab nothing would be left of these distances.
        near = np.array([[[0.0, 0.0]], [[0.25, 0.0]], [[0.0, 0.5]]], np.float32)
        points = 1e5 + near
        expected = loop(points.astype(float))
        np.testing.assert_allclose(measure(points), expected, rtol=1e-6)

    @measures
    def test_are_zero_where_all_points_are_equal(self, measure: Any, loop: Any) -> None:
        del loop
        assert measure(np.full_like(LINE, 1e5 / 3)) == 0

    @measures
    def test_are_nan_where_an_episode_had_no_end(self, measure: Any, loop: Any) -> None:
        del loop
        points = LINE.copy()
        points[1, 0] = np.nan
        assert np.isnan(measure(points))

    @measures
    @pytest.mark.parametrize("shape", [(1, 5, 2), (0, 5, 2), (3, 0, 2)])
    def test_of_fewer_than_two_skills_there_are_none(
        self, measure: Any, loop: Any, shape: tuple[int, ...]
    ) -> None:
        del loop
        with pytest.raises(ValueError, match="at least 2 skills"):
            measure(np.zeros(shape, np.float32))


class TestTerminalDescriptors:
    def test_are_the_last_within_the_episodes(self) -> None:
        descriptors = np.arange(24, dtype=np.float32).reshape(2, 2, 3, 2)
        mask = np.array(
            [
                [[True, True, True], [True, True, False]],
                [[True, False, False], [True, True, True]],
            ]
        )
        expected = [[[4, 5], [8, 9]], [[12, 13], [22, 23]]]
        given = terminal_descriptors(descriptors, mask)
        np.testing.assert_array_equal(given, expected)
        under_jit = jax.jit(jax.vmap(eqrl.terminal_descriptors))(descriptors, mask)
        np.testing.assert_array_equal(under_jit, expected)

    def test_of_an_episode_of_no_steps_there_is_none(self) -> None:
        mask = np.array([[True, True], [False, False]])
        given = terminal_descriptors(np.ones((2, 2, 1), np.float32), mask)
        np.testing.assert_array_equal(given, [[1], [np.nan]])


@jax.jit
def share_of_unit_square(descriptors: jax.Array, mask: jax.Array) -> jax.Array:
    return eqrl.coverage(descriptors, mask, low=0.0, high=1.0, num_bins=2)


def covered(*rows: list[float], share: Any = share_of_unit_square) -> float:
    """The coverage of a few rows, always of the same shape, which compiles once."""
    padding = [[0.0] * len(rows[0])] * (5 - len(rows))
    descriptors = np.array([*rows, *padding], np.float32)
    return float(share(descriptors, np.arange(5) < len(rows)))


class TestCoverage:
    def test_is_the_share_of_cells_visited(self) -> None:
        assert covered([0.1, 0.1], [0.2, 0.3], [0.9, 0.1]) == 0.5

    def test_cells_of_all_elements_are_told_apart(self) -> None:
        # In a corner each of 8 cells.
        corners = jnp.asarray(
            np.array(list(itertools.product([0.1, 0.9], repeat=3)), np.float32)
        )

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
        share = jax.jit(
            functools.partial(eqrl.coverage, low=low, high=high, num_bins=2)
        )
        rows = ([-3.0, 0.1], [-1.0, 0.1], [3.0, 2.0])
        assert covered(*rows, share=share) == 0.25

    def test_what_is_masked_does_not_count(self) -> None:
        descriptors = np.array([[[0.1], [0.9]], [[0.2], [0.7]]], np.float32)
        mask = np.array([[True, False], [True, False]])
        share = jax.jit(functools.partial(eqrl.coverage, low=0, high=1, num_bins=2))
        assert share(descriptors, mask) == 0.5

    def test_agrees_with_numpys_histogram_under_jit_and_vmap(
        self, getkey: GetKey
    ) -> None:
        descriptors = 1.5 * jr.normal(getkey(), (3, 4, 10, 2))
        mask = jr.bernoulli(getkey(), shape=(3, 4, 10))

        @jax.jit
        @jax.vmap
        def share(descriptors: jax.Array, mask: jax.Array) -> jax.Array:
            return eqrl.coverage(descriptors, mask, low=-2.0, high=2.0, num_bins=5)

        given = share(descriptors, mask)
        expected = []
        for each, counted in zip(*jax.device_get((descriptors, mask)), strict=True):
            rows = each[counted]
            counts, _ = np.histogramdd(rows, bins=5, range=[(-2, 2)] * 2)
            expected.append(np.mean(counts > 0))
        np.testing.assert_allclose(given, expected, rtol=1e-6)

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
        settings: dict[str, Any] = {"low": 0.0, "high": 1.0, "num_bins": 2} | options
        descriptors, mask = jnp.zeros((5, 2)), jnp.zeros(5, bool)
        with pytest.raises(ValueError, match=said):
            eqrl.coverage(descriptors, mask, **settings)

    def test_a_region_that_is_none_is_refused_under_jit(self) -> None:
        with pytest.raises(ValueError, match="must be below"):
            jax.jit(
                lambda x: eqrl.coverage(x, x[:, 0] > 0, low=2.0, high=1.0, num_bins=2)
            )(jnp.zeros((1, 1)))


def test_visited_cells_are_counted_from_the_first_state_to_the_last() -> None:
    # -0.5 and 0.5 lie in different cells, and what is masked in none.
    descriptors = jnp.array([[[[-0.5, 0.2], [0.9, 0.2], [7.0, 7.0]]]])
    mask = jnp.array([[[True, True, False]]])
    first = jnp.array([[[0.1, -0.1]]])
    cells, visits = eqrl.visited_cells(descriptors, mask, first=first)
    np.testing.assert_array_equal(cells, [[-1, 0], [0, -1], [0, 0]])
    np.testing.assert_array_equal(visits, [1, 1, 1])
    _, visits = eqrl.visited_cells(descriptors, mask, first=jnp.zeros((1, 2, 2)))
    assert visits.sum() == 4
    cells, visits = eqrl.visited_cells(descriptors, mask, size=2.0)
    np.testing.assert_array_equal(cells, [[-1, 0], [0, 0]])
    cells, visits = eqrl.visited_cells(descriptors, mask, first=first, size=8.0)
    np.testing.assert_array_equal(visits, [1, 1, 1])
    every, visits = eqrl.visited_cells(descriptors, ~mask | mask, size=100.0)
    np.testing.assert_array_equal(visits, [1, 2])
    np.testing.assert_array_equal(every, [[-1, 0], [0, 0]])
    with pytest.raises(ValueError, match=r"`size=0` is out of range"):
        eqrl.visited_cells(descriptors, mask, size=0.0)


def test_confusion_has_the_skill_played_in_rows_and_the_one_recovered_in_columns() -> (
    None
):
    # Skill 0 is taken for 1 at one of its two steps, skill 1 never for another.
    recovered = jnp.array([[[[1.0, 0], [0, 1], [0, 1]]], [[[0, 1], [0, 1], [0, 1]]]])
    evaluation = eqrl.SkillEvaluation(
        skills=jnp.eye(2),
        returns=jnp.zeros((2, 1)),
        diversity_returns=jnp.zeros((2, 1)),
        lengths=jnp.array([[2], [3]]),
        descriptors=jnp.zeros((2, 1, 3, 1)),
        recovered_skills=recovered,
        mask=jnp.array([[[True, True, False]], [[True, True, True]]]),
        accuracy=jnp.array(0.8),
    )
    found = eqrl.skill_confusion(evaluation)
    np.testing.assert_array_equal(found, [[0.5, 0.5], [0, 1]])
    blind = dataclasses.replace(evaluation, accuracy=jnp.array(jnp.nan))
    assert np.all(np.isnan(eqrl.skill_confusion(blind)))
    # Skills as far from the recovered one share the step, in whatever order.
    others = dataclasses.replace(
        evaluation,
        skills=jnp.eye(3)[:2],
        recovered_skills=jnp.broadcast_to(jnp.eye(3)[2], (2, 1, 3, 3)),
    )
    np.testing.assert_array_equal(eqrl.skill_confusion(others), np.full((2, 2), 0.5))
    # The longer skill is not the likelier one, and equal skills are not confused.
    for skills in ([[0.3, 0.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]):
        told = dataclasses.replace(
            evaluation,
            skills=jnp.array(skills),
            recovered_skills=jnp.array(skills)[:, None, None].repeat(3, axis=2),
        )
        np.testing.assert_array_equal(eqrl.skill_confusion(told), np.eye(2))
