import inspect
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest

import eqrl
from eqrl._reporting.learning_curve import draw_learning_curve
from eqrl._reporting.statistics import moving_average


_NAN = np.nan


def test_an_interquartile_mean_is_that_of_the_middle_half() -> None:
    for values, expected in (
        ([0.0, 1.0, 100.0, 2.0, 3.0], 2.0),
        ([8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 4.5),
        ([0.0, 0.0, 6.0], 2.0),
        # Of those that are known, four.
        ([9.0, _NAN, 0.0, 2.0, 1.0], 1.5),
        ([_NAN, _NAN], _NAN),
    ):
        result = eqrl.interquartile_mean(np.array(values))
        np.testing.assert_allclose(result, expected)
    rows = np.array([[[0.0, 1.0, 2.0, 9.0]], [[4.0, _NAN, 6.0, _NAN]]])
    np.testing.assert_allclose(eqrl.interquartile_mean(rows), [[1.5], [5.0]])
    assert eqrl.interquartile_mean(np.array([0, 1, 2, 9])) == 1.5


def _interval_restated(
    values: np.ndarray, *, level: float, num_resamples: int, seed: int, cut: int
) -> list[float]:
    random = np.random.default_rng(seed)
    size = len(values)
    centers = []
    for _ in range(num_resamples):
        drawn = sorted(values[random.integers(0, size)] for _ in range(size))
        kept = drawn[cut : size - cut]
        centers.append(sum(kept) / len(kept))
    tail = (1 - level) / 2
    return [float(np.quantile(centers, q)) for q in (tail, 1 - tail)]


@pytest.mark.parametrize(("center", "cut"), [("mean", 0), ("iqm", 1)])
def test_an_interval_holds_the_centers_of_drawn_seeds(
    center: Any, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of many rows as of few, which are drawn together.
    monkeypatch.setattr("eqrl._reporting.statistics._MOST_AT_ONCE", 1)
    values = np.array([[3.0, 1.0, 4.0, 1.5, 9.0], [2.0, 7.0, 1.0, 8.0, 2.5]])
    options: dict[str, Any] = {"level": 0.8, "num_resamples": 40, "seed": 3}
    low, high = eqrl.bootstrap_interval(values, center=center, **options)
    for row in range(2):
        expected = _interval_restated(values[row], cut=cut, **options)
        np.testing.assert_allclose([low[row], high[row]], expected)


def test_of_two_seeds_an_interval_is_known_by_heart() -> None:
    # Half of all draws have the mean 0.5, a quarter 0 and a quarter 1.
    values = np.array([[0.0, 1.0, _NAN], [5.0, _NAN, _NAN]])
    for level, expected in ((0.95, (0, 1)), (0.4, (0.5, 0.5))):
        low, high = eqrl.bootstrap_interval(values, level=level)
        # One seed does not say how much seeds differ.
        np.testing.assert_allclose(low, [expected[0], _NAN])
        np.testing.assert_allclose(high, [expected[1], _NAN])


def test_wrong_arguments_of_an_interval_are_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"level": 95.0}, r"`level=95` is out of range.*\(0, 1\]"),
        ({"num_resamples": 1}, "at least 2"),
        ({"seed": -1}, "at least 0"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            eqrl.bootstrap_interval(np.ones((2, 3)), **options)


def test_a_moving_average_looks_back_and_leaves_out_what_is_not_known() -> None:
    values = np.array([[1.0, _NAN], [_NAN, _NAN], [3.0, 5.0], [5.0, _NAN]])
    np.testing.assert_array_equal(moving_average(values, 1), values)
    expected = [[1, _NAN], [1, _NAN], [3, 5], [4, 5]]
    np.testing.assert_allclose(moving_average(values, 2), expected)
    expected = [[1, _NAN], [1, _NAN], [2, 5], [3, 5]]
    np.testing.assert_allclose(moving_average(values, 10**9), expected)


_STEPS = np.array([10, 20, 30])
_ONE = {"step": _STEPS, "episode_return": np.array([_NAN, 2.0, 4.0])}
_FIVE = {
    "step": 2 * _STEPS,
    "episode_return": np.array(
        [[0.0, 1.0, 2.0, 3.0, 100.0], [1.0, 2.0, 3.0, 4.0, 5.0], [_NAN] * 5]
    ),
}


def _lines(axes: Any) -> dict[str, list[list[float]]]:
    return {
        line.get_label(): [list(line.get_xdata()), list(line.get_ydata())]
        for line in axes.lines
    }


def _shaded(axes: Any) -> list[set[tuple[float, float]]]:
    """The corners of what is shaded."""
    return [
        {(float(x), float(y)) for x, y in each.get_paths()[0].vertices}
        for each in axes.collections
    ]


def _legend(axes: Any) -> list[str]:
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_each_run_is_a_line_of_its_center_and_shaded_where_seeds_lie(
    figures: list[Any],
) -> None:
    runs = {"one": _ONE, "five": _FIVE}
    eqrl.draw_learning_curves("x.pdf", runs, center="iqm", interval="range")
    (axes,) = figures[0].axes
    assert _lines(axes) == {
        "one": [[20, 30], [2, 4]],
        "five": [[20, 40], [2, 3]],
    }
    assert _shaded(axes) == [{(20, 0), (20, 100), (40, 1), (40, 5)}]
    assert _legend(axes) == ["one", "five", "interquartile mean and range of 5 seeds"]
    assert axes.get_xlabel() == "environment steps of each seed"
    assert axes.get_ylabel() == "episode return"


def test_infinite_values_make_infinite_ends() -> None:
    inf = np.inf
    rows = np.array([[1.0, 2, inf], [inf, inf, inf], [-inf, 1, 2], [1, 2, 3]])
    low, high = eqrl.bootstrap_interval(rows)
    np.testing.assert_array_equal(low, [1, inf, -inf, 1])
    np.testing.assert_array_equal(high, [inf, inf, 2, 3])
    low, high = eqrl.bootstrap_interval(rows, level=1)
    np.testing.assert_array_equal(low, [1, inf, -inf, 1])
    # The largest of so few is left out, and so are draws that hold it seldom.
    rare = np.array([inf, 1, 2, 3, 4, 5, 6, 7])
    assert eqrl.interquartile_mean(rare) == 4.5
    low, high = eqrl.bootstrap_interval(rare, center="iqm")
    assert low == 2.5 and high == inf
    # Halfway between a draw that holds it and one that does not.
    for seed in range(8):
        draws = np.random.default_rng(seed).integers(2, size=(2, 2))
        number = np.sum(np.any(draws == 0, axis=1))
        for value in (inf, -inf):
            ends = eqrl.bootstrap_interval(
                np.array([value, 1]), level=0.5, num_resamples=2, seed=seed
            )
            assert np.all(np.array(ends) == (value if number > 0 else 1))
    # Of five draws the second and the fourth, whatever is next to them.
    for seed in range(8):
        draws = np.random.default_rng(seed).integers(2, size=(5, 2))
        finite = np.sum(np.all(draws == 1, axis=1))
        ends = eqrl.bootstrap_interval(
            np.array([inf, 1]), level=0.5, num_resamples=5, seed=seed
        )
        assert ends == (1 if finite >= 2 else inf, 1 if finite >= 4 else inf)
    # An infinite value in one row changes nothing in another.
    known = np.array([0.3, 1.7, 2.2, 4.9, 5.1])
    beside = eqrl.bootstrap_interval(np.array([known, [inf] * 5]), num_resamples=10)
    alone = eqrl.bootstrap_interval(known, num_resamples=10)
    assert (beside[0][0], beside[1][0]) == alone
    # There is no mean of both.
    assert np.isnan(eqrl.interquartile_mean(np.array([-inf, inf])))
    assert np.all(np.isnan(eqrl.bootstrap_interval(np.array([-inf, inf, 1]))))


@pytest.mark.parametrize("values", [3.0, None, "a", [[1.0, 2.0], [3.0]]])
def test_what_has_no_axis_of_seeds_is_named(
    values: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for function in (eqrl.interquartile_mean, eqrl.bootstrap_interval):
        with pytest.raises(ValueError, match=r"^`values=.*` must be an array of numb"):
            function(values)


def test_intervals_are_those_of_the_bootstrap_after_smoothing(
    figures: list[Any],
) -> None:
    names = ("frames", "score")
    eqrl.draw_learning_curves(
        "x", {"five": _FIVE}, interval=0.5, smoothing=2, names=names, title="Hopper"
    )
    (axes,) = figures[0].axes
    smooth = moving_average(_FIVE["episode_return"], 2)
    low, high = eqrl.bootstrap_interval(smooth[:2], level=0.5)
    ends = {*zip([20, 40], low, strict=True), *zip([20, 40], high, strict=True)}
    assert _shaded(axes) == [ends]
    # Of rows without a value there is no average, either.
    means = [106 / 5, (0.5 + 1.5 + 2.5 + 3.5 + 52.5) / 5]
    assert _lines(axes)["five"][0] == [20, 40]
    np.testing.assert_allclose(_lines(axes)["five"][1], means)
    assert _legend(axes)[1:] == ["mean and 50 % interval of 5 seeds"]
    shown = (axes.get_xlabel(), axes.get_ylabel(), axes.get_title())
    assert shown == ("frames", "score", "Hopper")


def test_without_an_interval_or_with_one_seed_nothing_is_shaded(
    figures: list[Any],
) -> None:
    eqrl.draw_learning_curves("x", {"one": _ONE})
    eqrl.draw_learning_curves("x", {"five": _FIVE}, interval=None)
    assert [_shaded(figure.axes[0]) for figure in figures] == [[], []]
    assert figures[0].axes[0].get_xlabel() == "environment steps"


def test_axes_are_logarithmic_that_are_named(figures: list[Any]) -> None:
    given: list[Any] = [(), ("x",), {"x", "y"}]
    for axes in given:
        eqrl.draw_learning_curves("x", {"one": _ONE, "five": _FIVE}, logarithmic=axes)
    scales = [(x.axes[0].get_xscale(), x.axes[0].get_yscale()) for x in figures]
    assert scales == [("linear", "linear"), ("log", "linear"), ("log", "log")]


def test_what_cannot_be_compared_is_refused_with_what_there_is(tmp_path: Path) -> None:
    wrong: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({}, {}, "`runs` must be"),
        (_ONE, {}, r"as in `{'SAC': solution\.metrics}`"),
        ({"a": _ONE}, {"metric": "loss"}, r"`runs\['a'\]`, which are episode_return"),
        ({"a": _ONE | {"step": _STEPS[:2]}}, {}, r"has shape \(3,\).*\(2,\)"),
        ({"a": _ONE}, {"interval": 95.0}, "out of range"),
        ({"a": _ONE}, {"smoothing": 0}, "at least 1"),
        (
            {"a": _ONE | {"episode_return": -1.0 * _STEPS}},
            {"logarithmic": ["y"]},
            "no value of `episode_return` is positive",
        ),
    ]
    # Without the checks of types, which would come first.
    draw = inspect.unwrap(eqrl.draw_learning_curves)
    for runs, options, message in wrong:
        with pytest.raises(ValueError, match=message):
            draw(tmp_path / "x.png", runs, **options)
    # A run may have no values yet.
    draw(
        tmp_path / "x.png",
        {"a": _ONE | {"episode_return": _NAN * _STEPS}},
        logarithmic=["x", "y"],
    )


def test_a_run_shows_the_mean_and_range_of_its_rows_with_an_episode(
    figures: list[Any],
) -> None:
    returns = np.array([[_NAN, _NAN], [1.0, _NAN], [2.0, np.inf], [2.0, 4.0]])
    metrics = {"step": np.array([10, 20, 30, 40]), "episode_return": returns}
    draw_learning_curve("x", metrics, title="SAC")
    draw_learning_curve("x", metrics, title="", kind="member", best=True, label="score")
    seeds, members = (figure.axes[0] for figure in figures)
    assert _lines(seeds) == {"mean": [[20, 30, 40], [1, 2, 3]]}
    assert _shaded(seeds) == [{(20, 1), (30, 2), (40, 2), (40, 4)}]
    assert _legend(seeds) == ["mean", "range over 1 to 2 seeds"]
    assert (seeds.get_title(), seeds.get_ylabel()) == ("SAC", "episode return")
    assert _lines(members)["best"] == [[20, 30, 40], [1, 2, 4]]
    assert _legend(members) == ["mean", "range over 1 to 2 members", "best"]
    assert members.get_ylabel() == "score"


def test_evaluations_are_in_front_of_the_episodes_in_training(
    figures: list[Any],
) -> None:
    evaluated = _ONE | {"evaluation_return": np.array([_NAN, _NAN, 9.0])}
    not_yet = _ONE | {"evaluation_return": np.full(3, _NAN)}
    eqrl.draw_learning_curves("x", {"a": evaluated, "b": evaluated})
    draw_learning_curve("x", evaluated, title="")
    eqrl.draw_learning_curves("x", {"a": evaluated, "b": _ONE})
    draw_learning_curve("x", not_yet, title="")
    several, one, mixed, none = (figure.axes[0] for figure in figures)
    shown = {"a": [[30], [9]], "in training": [[20, 30], [2, 4]], "b": [[30], [9]]}
    assert _lines(several) == shown
    front, behind = several.lines[:2]
    assert front.get_color() == behind.get_color()
    assert front.get_alpha() > behind.get_alpha()
    assert front.get_zorder() > behind.get_zorder()
    assert _legend(several) == ["a", "b", "in training"]
    handles = [x.get_legend().get_lines()[-1] for x in (several, one)]
    # Of several runs, in the color of none.
    assert [x.get_color() for x in handles] == ["0.5", one.lines[0].get_color()]
    assert _legend(one) == ["in training"]
    labels = [axes.get_ylabel() for axes in (several, one, mixed, none)]
    assert labels == ["evaluation return"] * 2 + ["episode return"] * 2
    assert _lines(mixed) == {"a": [[20, 30], [2, 4]], "b": [[20, 30], [2, 4]]}
    assert list(_lines(none)) == ["mean"]
    # Both lines are of one center and equally smooth.
    both = _FIVE | {"evaluation_return": _FIVE["episode_return"]}
    eqrl.draw_learning_curves("x", {"five": both}, center="iqm", smoothing=2)
    drawn = _lines(figures[-1].axes[0])
    assert drawn["in training"] == drawn["five"]


def test_a_run_without_an_episode_says_so(figures: list[Any]) -> None:
    metrics = {"step": _STEPS, "episode_return": np.full(3, _NAN)}
    draw_learning_curve("x", metrics, title="SAC")
    assert [text.get_text() for text in figures[0].axes[0].texts] == [
        "no episode has ended"
    ]


@pytest.mark.parametrize(
    ("returns", "shown"),
    [
        (0.0, ["intrinsic reward", "accuracy"]),
        (-3.0, ["intrinsic reward", "accuracy", "episode return"]),
    ],
)
def test_a_run_of_skills_shows_what_it_learned_from(
    returns: float, shown: list[str], figures: list[Any]
) -> None:
    metrics = {
        "step": _STEPS,
        "episode_return": np.array([_NAN, returns, returns]),
        "intrinsic_reward": np.array([_NAN, -1.0, 2.0]),
        "accuracy": np.array([_NAN, 0.25, 0.5]),
    }
    draw_learning_curve("x", metrics, title="DIAYN")
    panels = figures[0].axes
    assert [panel.get_ylabel() for panel in panels] == shown
    assert _lines(panels[0])["mean"] == [[20, 30], [-1, 2]]
