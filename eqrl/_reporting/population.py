"""Plots of the history of a population."""

import math
import os
from collections.abc import Collection
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from .._population.solution import (
    PopulationSolution,
    ancestors_of,
    are_mean_returns,
    scores_of,
    winner_of,
)
from .figure import new_figure, save_figure


_LINE = "0.75"
_COPIED = "0.45"
_ANCESTORS = "crimson"
_COLORS = "viridis"
_MOST_COLUMNS = 3


def draw_schedules(
    path: str | os.PathLike[str],
    population: PopulationSolution,
    *,
    logarithmic: Collection[str] = (),
    one_minus: Collection[str] = (),
    scores: Float[np.ndarray, "generations population"] | None = None,
    title: str = "",
) -> None:
    """Plots the hyperparameters of each member in each generation.

    Each hyperparameter has a panel. Every member of every generation is a dot, colored
    by its score and joined to its parent in the generation before; the best member of
    the last generation is joined to its ancestors by a thick line, which is the
    schedule that led to it.

    **Arguments:**

    - `path`: file to write; its suffix decides the format: `.png`, `.pdf` or `.svg`.
    - `population`: from `train_population`, with a `PBT` or with agents that differ.
    - `logarithmic`: names of the hyperparameters to plot on a logarithmic axis, without
        their values that are not positive.
    - `one_minus`: names of those to plot as one minus the value, such as a discount
        near one; `logarithmic` may name them, too.
    - `scores`: determine colors and the best member, higher is better; by default the
        scores by which members were ranked.
    - `title`: above the panels.

    Raises a `ValueError` if there are no hyperparameters, or a name is unknown.
    """
    figure = new_figure("`draw_schedules`")
    scores = scores_of(population, scores)
    label = _label(population, scores)
    names = list(population.hyperparameters)
    if not names:
        raise ValueError(
            "`population` has no hyperparameters to draw: it was trained without a "
            "`PBT`, and its members do not differ in any."
        )
    for argument, given in (("logarithmic", logarithmic), ("one_minus", one_minus)):
        unknown = [name for name in given if name not in names]
        if unknown:
            raise ValueError(
                f"`{argument}` names {unknown}, but the hyperparameters are {names}."
            )
    line = ancestors_of(winner_of(scores), population.parents)
    count = len(names)
    rows = math.ceil(count / _MOST_COLUMNS)
    columns = math.ceil(count / rows)
    figure.set_size_inches(1.4 + 4.2 * columns, 0.9 + 3.1 * rows)
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    dots = None
    # The last row may have more panels than there are hyperparameters left.
    for axes, (name, values) in zip(
        panels, population.hyperparameters.items(), strict=False
    ):
        if name in one_minus:
            values = 1 - values
        if name in logarithmic:
            values = np.where(values > 0, values, np.nan)
            axes.set_yscale("log")
        dots = _draw_lines(axes, values, population.parents, scores, line)
        axes.set_title(f"1 - {name}" if name in one_minus else name)
        axes.set_xlabel("generation")
        axes.set_xlim(-0.5, len(scores) - 0.5)
        _mark_integers(axes.xaxis)
        axes.grid(alpha=0.2)
    for axes in panels[count:]:
        axes.set_visible(False)
    _finish(figure, dots, path, title=title, label=label)


def draw_family_tree(
    path: str | os.PathLike[str],
    population: PopulationSolution,
    *,
    scores: Float[np.ndarray, "generations population"] | None = None,
    title: str = "",
) -> None:
    """Plots the family tree of a population.

    Generations go from left to right and every member has a row; a line leads from each
    parent to its copies, level if a member was kept. The ancestors of the
    best member of the last generation are joined by a thick line.

    **Arguments:**

    - `path`: file to write; its suffix decides the format: `.png`, `.pdf` or `.svg`.
    - `population`: from `train_population`.
    - `scores`: determine colors and the best member, higher is better; by default the
        scores by which members were ranked.
    - `title`: above the axes.
    """
    figure = new_figure("`draw_family_tree`")
    scores = scores_of(population, scores)
    label = _label(population, scores)
    num_generations, size = population.parents.shape
    line = ancestors_of(winner_of(scores), population.parents)
    # At least what the legend needs, at most what fits on a screen.
    width = min(max(4.5, 1.8 + 0.55 * num_generations), 16.0)
    height = min(max(3.0, 1.2 + 0.36 * size), 12.0)
    figure.set_size_inches(width, height)
    axes = figure.add_subplot()
    places = np.broadcast_to(np.arange(size), (num_generations, size))
    dots = _draw_lines(
        axes, places, population.parents, scores, line, size=70.0, curved=True
    )
    axes.set_xlabel("generation")
    axes.set_ylabel("member")
    axes.set_xlim(-0.5, num_generations - 0.5)
    # The first member is at the top, as in a table.
    axes.set_ylim(size - 0.5, -0.5)
    for axis in (axes.xaxis, axes.yaxis):
        _mark_integers(axis)
    for side in ("top", "right", "left", "bottom"):
        axes.spines[side].set_visible(False)
    axes.tick_params(length=0)
    _finish(figure, dots, path, title=title, label=label)


def _mark_integers(axis: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    # With few generations or members, all ticks could lie between whole numbers.
    axis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _label(
    population: PopulationSolution, scores: Float[np.ndarray, "generations population"]
) -> str:
    return "mean return" if are_mean_returns(population, scores) else "score"


def _draw_lines(
    axes: Any,
    values: Float[np.ndarray, "generations population"]
    | Int[np.ndarray, "generations population"],
    parents: Int[np.ndarray, "generations population"],
    scores: Float[np.ndarray, "generations population"],
    line: Int[np.ndarray, " generations"],
    *,
    size: float = 22.0,
    curved: bool = False,
) -> Any:
    """Draws dots, lines from parents and the line of ancestors; returns the dots."""
    from matplotlib.collections import LineCollection

    num_generations = len(values)
    generations = np.arange(num_generations)
    kept, copied, pieces = [], [], []
    for generation in range(1, num_generations):
        for member, parent in enumerate(parents[generation]):
            before, after = values[generation - 1, parent], values[generation, member]
            x = np.linspace(0.0, 1.0, 25 if curved else 2)
            # A curve which is level at both ends.
            rise = x**2 * (3 - 2 * x)
            y = float(before) + (float(after) - float(before)) * rise
            piece = np.stack([generation - 1 + x, y], axis=1)
            # Copies are few and of most interest, so they are drawn on top.
            (kept if parent == member else copied).append(piece)
            if member == line[generation]:
                pieces.append(piece)
    axes.add_collection(
        LineCollection(kept, colors=_LINE, linewidths=1.0, zorder=1, label="kept")
    )
    axes.add_collection(
        LineCollection(copied, colors=_COPIED, linewidths=1.0, zorder=2, label="copied")
    )
    ancestors = values[generations, line]
    # The end is repeated, since a single generation has no pieces.
    axes.plot(
        *np.concatenate([*pieces, [(generations[-1], ancestors[-1])]]).T,
        color=_ANCESTORS,
        linewidth=2.5,
        zorder=3,
        label="the best and its ancestors",
    )
    dots = _draw_dots(axes, values, scores, size=size)
    # A ring shows which of the last dots won, where several lie close together.
    axes.scatter(
        generations[-1:],
        ancestors[-1:],
        s=2.6 * size,
        facecolors="none",
        edgecolors=_ANCESTORS,
        linewidths=1.8,
        zorder=5,
    )
    return dots


def _draw_dots(
    axes: Any,
    values: Float[np.ndarray, "generations population"]
    | Int[np.ndarray, "generations population"],
    scores: Float[np.ndarray, "generations population"],
    *,
    size: float,
) -> Any:
    """Draws a dot in the color of its score, or a cross where it failed."""
    generations = np.arange(len(values))
    x = np.broadcast_to(generations[:, None], values.shape)
    failed = np.isnan(scores)
    known = scores[~failed]
    low, high = 0.0, 1.0
    if known.size > 0:
        # On a scale that includes the worst quarter, all others would look the same.
        low, high = float(np.percentile(known, 25)), float(known.max())
    dots = axes.scatter(
        x[~failed],
        values[~failed],
        c=known,
        s=size,
        cmap=_COLORS,
        vmin=low,
        vmax=high,
        zorder=4,
        edgecolors="white",
        linewidths=0.6,
    )
    if np.any(failed):
        axes.scatter(
            x[failed],
            values[failed],
            s=size,
            color="black",
            marker="x",
            zorder=4,
            label="not finite",
        )
    return dots


def _finish(
    figure: Any, dots: Any, path: str | os.PathLike[str], *, title: str, label: str
) -> None:
    # If all members failed, a bar of colors would have no score to show.
    known = np.ma.compressed(dots.get_array())
    if known.size > 0:
        # Scores below the range of colors all have its lowest.
        extend = "min" if known.min() < dots.norm.vmin else "neither"
        figure.colorbar(dots, ax=figure.axes, extend=extend, label=label, aspect=30)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    # Over two columns where the figure is too narrow for one row.
    figure.legend(
        handles,
        labels,
        loc="outside lower center",
        ncols=len(labels) if figure.get_figwidth() > 6 else 2,
        frameon=False,
    )
    if title:
        figure.suptitle(title)
    save_figure(figure, path)
