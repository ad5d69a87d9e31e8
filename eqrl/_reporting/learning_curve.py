"""Plots of metrics over the steps of training."""

import copy
import dataclasses
import math
import os
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float, Int

from .._pytree.fields import Range, check_choice, check_integer
from .._training.rows import History
from .figure import new_figure, numbered_colors, save_figure
from .statistics import Center, bootstrap_interval, center_of, moving_average


Interval = float | int | Literal["range"] | None
"""A level of confidence, the range from minimum to maximum, or neither."""

LogarithmicAxis = Literal["x", "y"]

Kind = Literal["seed", "member"]
"""Whether the columns of a metric are seeds or members of populations."""

_Curve = tuple[Int[np.ndarray, " rows"], Float[np.ndarray, "rows seeds"]]

# The most entries of a legend on the axes; a longer one is below them.
_MOST_INSIDE = 5

# How a member of a population is drawn.
_MEMBER = {"alpha": 0.4, "linewidth": 0.7}

NAMES_OF_CENTERS: dict[Center, str] = {"mean": "mean", "iqm": "interquartile mean"}


def draw_learning_curves(
    path: str | os.PathLike[str],
    runs: Mapping[str, History],
    *,
    metric: str | None = None,
    center: Center = "mean",
    interval: Interval = 0.95,
    smoothing: int = 1,
    logarithmic: Collection[LogarithmicAxis] = (),
    kind: Kind = "seed",
    title: str = "",
    names: tuple[str, str] | None = None,
) -> None:
    """Plots a metric of several runs over training, as a PNG, PDF or SVG.

    ```python
    runs = {"SAC": sac.metrics, "TD3": td3.metrics}
    eqrl.draw_learning_curves("curves.pdf", runs, center="iqm", smoothing=5)
    ```

    Each run is a line, the center of its seeds at each step. If it has several seeds, a
    confidence interval for the center is shaded. Behind the returns of evaluations,
    those of the episodes in training are drawn in a paler color. A dotted line marks
    where a skill of `learn_skills` begins.

    **Arguments:**

    - `path`: file to write, whose suffix decides the format: `.png`, `.pdf` or `.svg`.
    - `runs`: the `metrics` of the `Solution`s of `train` and `train_seeds`, by the
        labels of the runs.
    - `metric`: the name of one of the metrics. By default it is `evaluation_return` if
        all runs have it, `intrinsic_reward` if they learn skills without a return, and
        else `episode_return`.
    - `center`: `"mean"`, or `"iqm"` for the `eqrl.interquartile_mean`.
    - `interval`: level of the `eqrl.bootstrap_interval` over seeds, in (0, 1];
        `"range"` to shade from their minimum to their maximum; or `None`.
    - `smoothing`: the number of rows of the metrics that are averaged, for each seed
        separately: the row at a step and those right before it. Rows in which the
        metric is not finite are left out of the average.
    - `logarithmic`: which axes are logarithmic: `"x"`, of the steps, `"y"`, of the
        metric, or both. Values that are not positive are below the axis.
    - `kind`: `"member"` if the runs are populations. Members copy each other, so each
        is a thin line, not part of an interval; with `interval=None`, none is drawn.
    - `title`: above the axes.
    - `names`: labels of the two axes; by default what they show.

    Raises a `ValueError` if there is no run, if one does not have the metric, if the
    metric is not one number per seed, or if it has no value that a logarithmic axis
    could show.
    """
    # Neither a solution nor the metrics of one run are runs by name.
    named = isinstance(runs, Mapping) and [isinstance(x, dict) for x in runs.values()]
    if not named or not all(named):
        raise ValueError(
            "`runs` must be the metrics of at least one run, by what to call each, as "
            "in `{'SAC': solution.metrics}`."
        )
    draw_facets(
        path,
        {title: runs},
        metric=metric,
        center=center,
        interval=interval,
        smoothing=smoothing,
        logarithmic=logarithmic,
        kind=kind,
        names=names,
    )


def draw_facets(
    path: str | os.PathLike[str],
    facets: Mapping[str, Mapping[str, History]],
    *,
    metric: str | None,
    center: Center,
    interval: Interval,
    smoothing: int,
    logarithmic: Collection[LogarithmicAxis],
    kind: Kind = "seed",
    names: tuple[str, str] | None = None,
) -> None:
    """Plots learning curves on axes one below another, by their titles."""
    check_choice("center", center, NAMES_OF_CENTERS)
    if isinstance(interval, str):
        check_choice("interval", interval, ("range",))
    elif interval is not None:
        Range(low=0, high=1, low_open=True).check("interval", interval)
    check_integer("smoothing", smoothing, least=1)
    check_choice("kind", kind, get_args(Kind))
    for axis in logarithmic:
        check_choice("logarithmic", axis, get_args(LogarithmicAxis))
    if metric is None:
        metric = default_metric(
            [run for runs in facets.values() for run in runs.values()]
        )
    figure, panels = _new_panels(len(facets), share_steps=False)
    for axes, (title, runs) in zip(panels, facets.items(), strict=True):
        drawn = _draw_curves(
            axes,
            runs,
            metric,
            center=center,
            interval=interval,
            smoothing=smoothing,
            kind=kind,
        )
        values = [values for _, values in drawn.curves.values() if values.size > 0]
        if "y" in logarithmic and values and not any(np.any(x > 0) for x in values):
            raise ValueError(
                f"`logarithmic` names `y`, but no value of `{metric}` is positive; "
                "leave it out."
            )
        if values:
            axes.set(**{f"{axis}scale": "log" for axis in logarithmic})
        sizes = _sizes(drawn.curves)
        if interval is not None and sizes:
            shown = "range" if interval == "range" else f"{100 * interval:g} % interval"
            shown = "each" if kind == "member" else shown
            number = "" if len(sizes) > 1 else f"{_number_known(drawn.curves)} "
            label = f"{NAMES_OF_CENTERS[center]} and {shown} of {number}{kind}s"
            # One entry represents the shades of all runs, in a neutral color.
            color = "0.5" if len(runs) > 1 else drawn.lines[0].get_color()
            entry = _shade(label, color)
            if kind == "member":
                (entry,) = axes.plot([], color=color, label=label, **_MEMBER)
            drawn = dataclasses.replace(drawn, others=[entry, *drawn.others])
        _draw_legend(axes, drawn)
        axes.set_title(title)
        default = (_name_of_steps(sizes, kind), metric.replace("_", " "))
        along, upward = default if names is None else names
        axes.set_xlabel(along)
        axes.set_ylabel(upward)
    save_figure(figure, path)


def draw_learning_curve(
    path: str | os.PathLike[str],
    metrics: History,
    *,
    title: str,
    kind: str = "seed",
    best: bool = False,
    label: str | None = None,
) -> None:
    """Plots the `shown_metrics` of a run over its steps, one below another.

    **Arguments:**

    - `path`: file to write.
    - `metrics`: the metrics of a `Solution`. For several seeds it plots the mean and,
        shaded, the range from minimum to maximum.
    - `title`: above the axes.
    - `kind`: the name of what the range is taken over, in the singular.
    - `best`: whether to plot the maximum as a separate line.
    - `label`: a label for the values, if the name of their metric does not fit.
    """
    shown = shown_metrics(metrics)
    figure, panels = _new_panels(len(shown))
    sizes = []
    for axes, metric in zip(panels, shown, strict=True):
        drawn = _draw_curves(
            axes, {"mean": metrics}, metric, center="mean", interval="range"
        )
        handles, sizes = drawn.lines, _sizes(drawn.curves)
        if sizes:
            text = f"range over {_number_known(drawn.curves)} {kind}s"
            handles = [*handles, _shade(text, handles[0].get_color())]
            if best:
                steps, values = drawn.curves["mean"]
                color = numbered_colors(2)[1]
                highest = np.nanmax(values, axis=1)
                handles.append(_draw_line(axes, steps, highest, color, "best"))
        # A single line only needs the label of its axis.
        _draw_legend(axes, dataclasses.replace(drawn, lines=handles if sizes else []))
        axes.set_ylabel(metric.replace("_", " ") if label is None else label)
    panels[0].set_title(title)
    panels[-1].set_xlabel(_name_of_steps(sizes, kind))
    save_figure(figure, path)


_EVALUATED = "evaluation_return"
_INTRINSIC = ("intrinsic_reward", "accuracy")


def shown_metrics(metrics: Mapping[str, np.ndarray]) -> list[str]:
    """The names of the metrics that show what a run has learned.

    They are the return, that of evaluations if there were any, or each element of a
    vector of returns. If there is an intrinsic reward or the accuracy of a
    discriminator, these come first, and a return that was 0 throughout is left out.
    """
    returns = [name for name in metrics if name.startswith("episode_return")]
    if np.any(np.isfinite(metrics.get(_EVALUATED, np.nan))):
        returns = [_EVALUATED]
    if "intrinsic_reward" not in metrics:
        return returns
    return [
        *(name for name in _INTRINSIC if name in metrics),
        *(name for name in returns if np.any(np.nan_to_num(metrics[name]))),
    ]


def default_metric(runs: Sequence[History]) -> str:
    """The name of the metric that shows what all runs have learned."""
    shown = [shown_metrics(metrics) for metrics in runs]
    if any(shown) and all({*names} <= {*_INTRINSIC} for names in shown):
        return "intrinsic_reward"
    is_evaluated = all(_EVALUATED in names for names in shown)
    return _EVALUATED if is_evaluated else "episode_return"


def _curve(
    metrics: Mapping[str, np.ndarray],
    metric: str,
    *,
    smoothing: int = 1,
    run: str | None = None,
) -> _Curve:
    """Steps and values of the rows in which any seed has a value."""
    where = "" if run is None else f" of `runs[{run!r}]`"
    if metric not in metrics or "step" not in metrics:
        missing = metric if "step" in metrics else "step"
        raise ValueError(
            f"`metric={metric!r}` cannot be drawn: `{missing}` is not among the "
            f"metrics{where}, which are {', '.join(sorted(metrics))}."
        )
    steps, values = np.asarray(metrics["step"]), np.asarray(metrics[metric])
    if steps.ndim != 1 or values.ndim not in (1, 2) or len(values) != len(steps):
        raise ValueError(
            f"`metric={metric!r}`{where} has shape {values.shape}, and `step` has "
            f"{steps.shape}; they must be of shape (logs,) or (logs, seeds), and "
            "(logs,), as in the `metrics` of a `Solution`."
        )
    # `reshape` cannot infer the number of seeds if there is no row.
    values = values if values.ndim == 2 else values[:, None]
    # Other rows would break the line between the ends of two episodes.
    known = np.any(np.isfinite(values), axis=1)
    values = moving_average(np.where(np.isfinite(values), values, np.nan), smoothing)
    return steps[known], values[known]


def _new_panels(
    num_panels: int, *, share_steps: bool = True
) -> tuple[Any, Sequence[Any]]:
    """A figure with panels, by default over the same steps, one below another."""
    figure = new_figure("A learning curve", 6.4, 1.4 + 2.6 * num_panels)
    from matplotlib.ticker import EngFormatter

    if share_steps:
        panels = figure.subplots(num_panels, sharex=True, squeeze=False)[:, 0]
    else:
        # Each may have a legend outside its axes.
        parts = figure.subfigures(num_panels, squeeze=False)[:, 0]
        panels = [part.subplots() for part in parts]
    for axes in panels:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.grid(alpha=0.3)
    return figure, list(panels)


@dataclasses.dataclass(frozen=True)
class _Drawn:
    """The contents of some axes, with entries of a legend for lines and the rest."""

    curves: dict[str, _Curve]
    lines: list[Any]
    others: list[Any]


def _draw_curves(
    axes: Any,
    runs: Mapping[str, History],
    metric: str,
    *,
    center: Center,
    interval: Interval,
    smoothing: int = 1,
    kind: Kind = "seed",
) -> _Drawn:
    """Draws lines and, where there are several seeds or members, shades or lines."""
    curves = {
        label: _curve(metrics, metric, smoothing=smoothing, run=label)
        for label, metrics in runs.items()
    }
    lines, others = [], {}
    colors = numbered_colors(len(curves))
    for (label, metrics), color in zip(runs.items(), colors, strict=True):
        steps, values = curves[label]
        lines.append(_draw_line(axes, steps, center_of(values, center), color, label))
        # A single seed does not show how much seeds differ.
        is_several = values.shape[1] > 1
        if interval is not None and is_several and kind == "member":
            axes.plot(steps, values, color=color, **_MEMBER)
        elif interval is not None and is_several:
            if interval == "range":
                ends = np.nanmin(values, axis=1), np.nanmax(values, axis=1)
            else:
                ends = bootstrap_interval(values, center=center, level=interval)
            axes.fill_between(steps, *ends, color=color, alpha=0.25, linewidth=0)
        if metric == _EVALUATED and "episode_return" in metrics:
            steps, values = _curve(metrics, "episode_return", smoothing=smoothing)
            middle, name = center_of(values, center), "in training"
            others[name] = _draw_line(axes, steps, middle, color, name, alpha=0.35)
        for step in _beginnings(metrics):
            name = "a skill begins"
            others[name] = axes.axvline(
                step, color=color, linestyle=":", linewidth=1, label=name
            )
    if len(runs) > 1:
        # One entry represents those of all runs, in a neutral color.
        others = {name: copy.copy(line) for name, line in others.items()}
        for line in others.values():
            line.set_color("0.5")
    if all(len(steps) == 0 for steps, _ in curves.values()):
        is_of_episodes = metric.startswith("episode_")
        text = (
            "no episode has ended" if is_of_episodes else f"there is no `{metric}` yet"
        )
        axes.text(0.5, 0.5, text, ha="center", va="center", transform=axes.transAxes)
    return _Drawn(curves, lines, list(others.values()))


def _beginnings(metrics: History) -> Int[np.ndarray, " skills"]:
    """The steps at which skills after the first begin, if any do."""
    skills = np.asarray(metrics.get("skill", ()))
    if skills.ndim != 1:
        return np.zeros(0, int)
    return np.asarray(metrics["step"])[:-1][np.diff(skills) > 0]


def _draw_line(
    axes: Any,
    steps: Int[np.ndarray, " rows"],
    values: Float[np.ndarray, " rows"],
    color: tuple[float, float, float],
    label: str,
    *,
    alpha: float = 1.0,
) -> Any:
    # A line through a single point would be invisible.
    marker = "o" if len(steps) == 1 else None
    # Paler lines are drawn behind the others.
    (line,) = axes.plot(
        steps,
        values,
        color=color,
        marker=marker,
        label=label,
        alpha=alpha,
        zorder=1 + alpha,
    )
    return line


def _draw_legend(axes: Any, drawn: _Drawn) -> None:
    handles = [*drawn.lines, *drawn.others]
    if len(handles) > _MOST_INSIDE:
        # On the axes it would cover curves, and beside them it would take their width.
        longest = max(len(line.get_label()) for line in drawn.lines)
        columns = min(3, max(1, 80 // (longest + 6)))
        axes.figure.legend(
            handles=handles,
            loc="outside lower center",
            ncols=columns,
            fontsize="small",
            frameon=False,
        )
        width, height = axes.figure.figure.get_size_inches()
        height += 0.2 * math.ceil(len(handles) / columns)
        axes.figure.figure.set_size_inches(max(width, 0.075 * longest), height)
    elif drawn.others or len(drawn.lines) > 1:
        axes.legend(handles=handles, loc="best", frameon=False)


def _shade(label: str, color: str | tuple[float, float, float]) -> Any:
    """Legend entry of the shades."""
    from matplotlib.patches import Patch

    return Patch(facecolor=color, alpha=0.25, linewidth=0, label=label)


def _sizes(curves: Mapping[str, _Curve]) -> list[int]:
    """Numbers of seeds of the runs that have several."""
    return sorted({values.shape[1] for _, values in curves.values()} - {1})


def _number_known(curves: Mapping[str, _Curve]) -> str:
    """The number of seeds that have a value, which some may not have in every row."""
    several = [values for _, values in curves.values() if values.shape[1] > 1]
    counts = np.concatenate([np.isfinite(x).sum(axis=1) for x in several])
    low = counts.min(initial=several[0].shape[1])
    high = counts.max(initial=low)
    return f"{low}" if low == high else f"{low} to {high}"


def _name_of_steps(sizes: list[int], kind: str) -> str:
    return f"environment steps of each {kind}" if sizes else "environment steps"
