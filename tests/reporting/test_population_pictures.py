import dataclasses
import types
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.colors import to_rgba

import eqrl
from eqrl._population.solution import ancestors_of, scores_of, winner_of
from tests.reporting.made import population


# Member 1 is replaced by a child of 2, then 0 by one of the new 1, which wins.
_PARENTS = np.array([[0, 1, 2], [0, 2, 2], [1, 1, 2]])
_MEANS = np.array([[1.0, 0.0, 2.0], [3.0, 4.0, 3.0], [9.0, 5.0, 6.0]])
_RATES = np.array([[0.1, 0.2, 0.4], [0.1, 0.5, 0.4], [0.6, 0.5, 0.4]])
_ANCESTORS = [2, 1, 0]


def _population(
    returns: np.ndarray | None = None,
    parents: np.ndarray = _PARENTS,
    **hyperparameters: np.ndarray,
) -> eqrl.PopulationSolution:
    if returns is None:
        returns = _MEANS[..., None] + np.array([-1.0, 1.0])
    scores = returns.mean(axis=2) if returns.ndim == 3 else _MEANS
    return population(returns, parents, scores=scores, **hyperparameters)


def _is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG")


def _by_label(axes: Any, label: str) -> Any:
    (artist,) = (
        each for each in [*axes.collections, *axes.lines] if each.get_label() == label
    )
    return artist


def _ends(segments: list[np.ndarray]) -> list[list[float]]:
    return sorted([*segment[0], *segment[-1]] for segment in segments)


def _dots(axes: Any) -> Any:
    (dots,) = (each for each in axes.collections if each.get_array() is not None)
    return dots


def test_ancestors_follow_the_parents_back() -> None:
    np.testing.assert_array_equal(ancestors_of(0, _PARENTS), _ANCESTORS)
    np.testing.assert_array_equal(ancestors_of(2, _PARENTS), [2, 2, 2])


def test_of_one_generation_a_member_is_its_own_ancestor() -> None:
    np.testing.assert_array_equal(ancestors_of(1, np.array([[0, 1]])), [1])


def test_the_winner_is_the_best_that_is_finite() -> None:
    assert winner_of(np.array([[9.0, 0.0, 0.0], [np.nan, 1.0, 2.0]])) == 2
    assert winner_of(np.array([[np.nan, np.nan]])) == 0


def test_scores_are_those_of_the_ranking_unless_given() -> None:
    np.testing.assert_array_equal(scores_of(_population(), None), _MEANS)
    given = np.array(_MEANS)
    given[0, 0] = -np.inf
    assert np.isnan(scores_of(_population(), given)[0, 0])


def test_what_was_ranked_by_something_else_is_drawn_by_it(
    tmp_path: Path, figures: list[Any]
) -> None:
    # As with skills, where no reward comes from the environment; or with vectors.
    for returns in (np.zeros((3, 3, 2)), np.zeros((3, 3, 2, 4))):
        population = dataclasses.replace(_population(returns), scores=_MEANS)
        eqrl.draw_family_tree(tmp_path / "x", population)
        dots, bar = _dots(figures[-1].axes[0]), figures[-1].axes[1]
        np.testing.assert_array_equal(dots.get_array(), _MEANS.reshape(-1))
        assert bar.get_ylabel() == "score"


def test_the_best_of_a_population_has_the_highest_score_of_the_last_generation() -> (
    None
):
    population = dataclasses.replace(
        _population(np.zeros((3, 3, 2))),
        agents={"name": jnp.arange(3)},
        trainer_states=types.SimpleNamespace(agent={"owner": 10 * jnp.arange(3)}),
        scores=np.array([[1.0, 9.0, 0.0], [1.0, 0.0, 3.0], [2.0, np.nan, 7.0]]),
    )
    agent, state = eqrl.best(population)
    assert (agent["name"], state["owner"]) == (2, 20)


def test_the_best_of_a_stack_needs_scores() -> None:
    stack: Any = {"weights": jnp.zeros(3)}
    with pytest.raises(ValueError, match="`returns` is needed"):
        eqrl.best(stack)


def test_scores_of_another_shape_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has 3 generations of 3 members"):
        eqrl.draw_family_tree(tmp_path / "x", _population(), scores=_MEANS[:2])


def test_no_hyperparameters_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no hyperparameters to draw"):
        eqrl.draw_schedules(tmp_path / "x", _population())


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"\['b'\], but the hyperparameters are"):
        eqrl.draw_schedules(tmp_path / "x", _population(a=_RATES), logarithmic=["b"])


def test_what_is_near_one_is_drawn_as_its_distance(
    tmp_path: Path, figures: list[Any]
) -> None:
    population = _population(a=1 - _RATES)
    eqrl.draw_schedules(tmp_path / "x", population, logarithmic=["a"], one_minus=["a"])
    panel = figures[0].axes[0]
    assert panel.get_title() == "1 - a"
    assert panel.get_yscale() == "log"
    drawn = panel.collections[2].get_offsets()[:, 1]
    np.testing.assert_allclose(sorted(drawn), sorted(_RATES.ravel()))


def test_a_member_with_an_infinite_return_has_no_score() -> None:
    returns = np.array([[[1.0, 2.0], [np.inf, 0.0], [np.nan, 1.0]]])
    population = _population(returns, parents=_PARENTS[:1])
    np.testing.assert_array_equal(scores_of(population, None), [[1.5, np.nan, np.nan]])


def test_schedules_have_a_panel_for_each_hyperparameter(
    tmp_path: Path, figures: list[Any]
) -> None:
    population = _population(a=_RATES, b=_RATES, c=_RATES, d=_RATES, e=_RATES)
    eqrl.draw_schedules(tmp_path / "x", population, logarithmic=["b"])
    panels = [axes for axes in figures[0].axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels][:5] == ["a", "b", "c", "d", "e"]
    # The last is the color bar.
    assert len(panels) == 6
    scales = [axes.get_yscale() for axes in panels[:5]]
    assert scales == ["linear", "log", "linear", "linear", "linear"]


def test_schedules_join_values_to_those_of_the_parents(
    tmp_path: Path, figures: list[Any]
) -> None:
    eqrl.draw_schedules(tmp_path / "x", _population(a=_RATES))
    axes = figures[0].axes[0]
    kept = _by_label(axes, "kept").get_segments()
    copied = _by_label(axes, "copied").get_segments()
    assert _ends(kept) == [
        [0, 0.1, 1, 0.1],
        [0, 0.4, 1, 0.4],
        [1, 0.4, 2, 0.4],
        [1, 0.5, 2, 0.5],
    ]
    assert _ends(copied) == [[0, 0.4, 1, 0.5], [1, 0.5, 2, 0.6]]


def test_schedules_highlight_the_ancestors_of_the_best(
    tmp_path: Path, figures: list[Any]
) -> None:
    eqrl.draw_schedules(tmp_path / "x", _population(a=_RATES))
    line = _by_label(figures[0].axes[0], "the best and its ancestors")
    x, y = line.get_data()
    np.testing.assert_array_equal(x, [0, 1, 1, 2, 2])
    np.testing.assert_array_equal(y, [0.4, 0.5, 0.5, 0.6, 0.6])
    assert to_rgba(line.get_color()) == to_rgba("crimson")


def test_dots_are_colored_by_the_mean_return(
    tmp_path: Path, figures: list[Any]
) -> None:
    eqrl.draw_family_tree(tmp_path / "x", _population())
    dots = _dots(figures[0].axes[0])
    np.testing.assert_array_equal(dots.get_array(), _MEANS.reshape(-1))
    expected = [(generation, member) for generation in range(3) for member in range(3)]
    np.testing.assert_array_equal(dots.get_offsets(), expected)


def test_a_family_tree_has_a_curve_for_each_copy(
    tmp_path: Path, figures: list[Any]
) -> None:
    eqrl.draw_family_tree(tmp_path / "x", _population())
    copied = _by_label(figures[0].axes[0], "copied").get_segments()
    assert _ends(copied) == [[0, 2, 1, 1], [1, 1, 2, 0]]
    # The first member is at the top.
    assert figures[0].axes[0].yaxis_inverted()
    norm = _dots(figures[0].axes[0]).norm
    assert (norm.vmin, norm.vmax) == (np.percentile(_MEANS, 25), _MEANS.max())


def test_members_that_failed_are_crosses(tmp_path: Path, figures: list[Any]) -> None:
    returns = np.array(_population().returns)
    returns[1, 2, 0] = np.nan
    eqrl.draw_family_tree(tmp_path / "x", _population(returns))
    axes = figures[0].axes[0]
    failed = _by_label(axes, "not finite").get_offsets()
    np.testing.assert_array_equal(failed, [(1, 2)])
    assert len(_dots(axes).get_offsets()) == 8


@pytest.mark.parametrize("name", ["one generation", "all failed", "not positive"])
def test_edge_cases_are_pngs(tmp_path: Path, name: str) -> None:
    population = {
        "one generation": _population(
            _MEANS[:1, :, None], parents=_PARENTS[:1], a=_RATES[:1]
        ),
        "all failed": _population(np.full((3, 3, 2), np.nan), a=_RATES),
        "not positive": _population(a=_RATES - 0.3),
    }[name]
    eqrl.draw_schedules(tmp_path / "a", population, logarithmic=["a"])
    eqrl.draw_family_tree(tmp_path / "b", population)
    assert _is_png(tmp_path / "a")
    assert _is_png(tmp_path / "b")
