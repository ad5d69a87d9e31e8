"""The result of a sweep over hyperparameters: its table and its figure."""

import csv
import dataclasses
import math
import os
import re
from pathlib import Path
from typing import Generic

import numpy as np
from jaxtyping import Float

from .._storage.files import atomic_write
from .._training.rows import History
from .._types.custom_types import Agents, State
from .figure import new_figure, numbered_colors, save_figure
from .learning_curve import NAMES_OF_CENTERS
from .statistics import Center, bootstrap_interval, center_of


Cell = float | int | bool | str | None


def as_cell(value: object) -> Cell:
    """A value of a hyperparameter as a table and a JSON file show it."""
    if isinstance(value, np.generic) or getattr(value, "shape", None) == ():
        value = np.asarray(value).item()
    is_finite = not isinstance(value, float) or math.isfinite(value)
    if value is None or (isinstance(value, (float, int, bool, str)) and is_finite):
        return value
    return as_text(value)


def as_text(value: object) -> str:
    """The `repr` of a value in one line, without addresses of this process."""
    return re.sub(" at 0x[0-9a-f]+", "", " ".join(repr(value).split()))


@dataclasses.dataclass(frozen=True)
class SweepSolution(Generic[State, Agents]):
    """The result of `eqrl.sweep`: each setting with the scores of its seeds.

    **Attributes:**

    - `settings`: the values of the hyperparameters of each setting, by their names.
    - `scores`: the score of each setting and seed, by default the mean return of the
        greedy episodes after training; `nan` where a seed diverged.
    - `fresh_scores`: new scores of the best setting, in episodes that were not used to
        choose it, and with fresh seeds if there were any; `nan` if they are unknown.
    - `metrics`: the metrics of each setting, as in a `Solution` of `train_seeds`; `nan`
        after a seed diverged.
    - `center`: the statistic by which settings are compared.
    - `agents`: the agents, with the hyperparameters of each setting.
    - `states`: for each setting, the stack of the agents' states of its seeds.
    """

    settings: tuple[dict[str, object], ...]
    scores: Float[np.ndarray, "settings seeds"]
    fresh_scores: Float[np.ndarray, " fresh"]
    metrics: tuple[History, ...]
    center: Center
    agents: tuple[Agents, ...]
    states: tuple[State, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """The settings from the best to the worst.

        The best one has the highest center of its scores, with ties broken by the mean.
        Settings with fewer diverged seeds come first, whatever their scores.
        """
        lost = np.isnan(self.scores).sum(axis=1)
        values = [center_of(self.scores, center) for center in ("mean", self.center)]
        ranks = [-np.nan_to_num(each, nan=-np.inf) for each in values]
        # `lexsort` sorts by the last key first.
        return tuple(np.lexsort([*ranks, lost]).tolist())

    @property
    def best(self) -> int | None:
        """The first of the `order`; `None` if all seeds of all settings diverged."""
        return None if np.all(np.isnan(self.scores)) else self.order[0]

    @property
    def labels(self) -> tuple[str, ...]:
        """Each setting in words, such as `lr=0.001, num_epochs=4`."""
        return tuple(
            ", ".join(f"{name}={as_cell(value)}" for name, value in setting.items())
            or "as given"
            for setting in self.settings
        )

    @property
    def curves(self) -> dict[str, History]:
        """The metrics by their labels, as `eqrl.draw_learning_curves` draws them.

        Those of the best setting are first.
        """
        labels = [
            # Two functions may have one name.
            label if self.labels.count(label) == 1 else f"{label} ({index})"
            for index, label in enumerate(self.labels)
        ]
        return {labels[index]: self.metrics[index] for index in self.order}

    @property
    def table(self) -> dict[str, list[Cell]]:
        """The table by its columns, with a row for each setting.

        After the hyperparameters come `diverged`, the number of seeds that did; `mean`
        and `iqm` of the scores of the others; `low` and `high`, the ends of the 95 %
        bootstrap interval of the `center` over seeds; and, for the best setting only,
        `fresh_mean`, `fresh_iqm`, `fresh_low` and `fresh_high`. The best of many
        settings looks better than it is, since it was chosen for its score. Its fresh
        scores remove the bias from the choice of episodes; that from the choice of
        seeds remains unless there were fresh seeds. A hyperparameter with one of these
        names is called `hyperparameter_low`, and so on.
        """
        diverged = np.isnan(self.scores).sum(axis=1)
        columns: dict[str, list[Cell]] = {
            "diverged": [int(number) for number in diverged]
        }
        fresh = np.full((len(self.settings), len(self.fresh_scores)), np.nan)
        if self.best is not None:
            fresh[self.best] = self.fresh_scores
        for prefix, scores in (("", self.scores), ("fresh_", fresh)):
            low, high = bootstrap_interval(scores, center=self.center)
            values = {
                "mean": center_of(scores, "mean"),
                "iqm": center_of(scores, "iqm"),
                "low": low,
                "high": high,
            }
            for name, numbers in values.items():
                columns[f"{prefix}{name}"] = [float(number) for number in numbers]
        names = dict.fromkeys(name for each in self.settings for name in each)
        hyperparameters: dict[str, list[Cell]] = {
            f"hyperparameter_{name}" if name in {"setting", *columns} else name: [
                as_cell(setting.get(name)) for setting in self.settings
            ]
            for name in names
        }
        return hyperparameters | columns

    def write_csv(self, path: str | os.PathLike[str]) -> None:
        """Writes the `table` as CSV. Unknown values are empty."""
        columns = self.table
        with (
            atomic_write(Path(path)) as partial,
            open(partial, "w", newline="") as file,
        ):
            writer = csv.writer(file)
            writer.writerow(["setting", *columns])
            for index, row in enumerate(zip(*columns.values(), strict=True)):
                # `nan` is the only value that does not equal itself.
                writer.writerow([index, *("" if x != x else x for x in row)])

    def __str__(self) -> str:
        """The table, as text in columns."""
        columns: dict[str, list[Cell]] = {
            "": ["*" if x == self.best else "" for x in range(len(self.settings))]
        }
        columns |= self.table
        texts = [
            [
                name,
                *(
                    f"{x:.5g}".replace("nan", "") if isinstance(x, float) else str(x)
                    for x in cells
                ),
            ]
            for name, cells in columns.items()
        ]
        widths = [max(map(len, column)) for column in texts]
        return "\n".join(
            "  ".join(
                text.rjust(width) for text, width in zip(row, widths, strict=True)
            ).rstrip()
            for row in zip(*texts, strict=True)
        )


def draw_sweep(
    path: str | os.PathLike[str],
    sweep: SweepSolution,
    *,
    title: str = "",
) -> None:
    """Plots the scores of each setting of a sweep, with an interval over its seeds.

    Settings are ordered from the best to the worst. Each seed is a dot, the center a
    diamond, and its 95 % bootstrap interval a line. The fresh scores of the best one,
    if there are any, are drawn beside it.

    **Arguments:**

    - `path`: file to write; its suffix decides the format: `.png`, `.pdf` or `.svg`.
    - `sweep`: from `eqrl.sweep`.
    - `title`: above the axes.
    """
    order = sweep.order
    labels = [sweep.labels[index] for index in order]
    # The labels are beside the axes, which keep their width.
    width = 4.4 + 0.08 * max(map(len, labels))
    figure = new_figure("A sweep", max(6.4, width), 1.6 + 0.32 * len(order))
    axes = figure.subplots()
    color, fresh_color = numbered_colors(2)
    lines = [
        (float(place), sweep.scores[index], color, "center of seeds")
        for place, index in enumerate(order)
    ]
    if np.isfinite(sweep.fresh_scores).any():
        lines.append((0.3, sweep.fresh_scores, fresh_color, "fresh scores"))
    for place, scores, own_color, label in lines:
        ends = bootstrap_interval(scores, center=sweep.center)
        seeds = np.full(len(scores), place)
        axes.plot(scores, seeds, ".", color=own_color, alpha=0.4)
        axes.plot(ends, [place, place], color=own_color, linewidth=2)
        middle = center_of(scores, sweep.center)
        axes.plot(middle, place, "D", color=own_color, label=label)
    axes.set_yticks(range(len(order)), labels)
    axes.invert_yaxis()
    axes.grid(alpha=0.3, axis="x")
    # Each kind has one entry.
    handles, kinds = axes.get_legend_handles_labels()
    of_kinds = dict(zip(kinds, handles, strict=True))
    if len(of_kinds) > 1:
        axes.legend(of_kinds.values(), of_kinds.keys(), loc="best", frameon=False)
    center = NAMES_OF_CENTERS[sweep.center]
    axes.set_xlabel(f"score of each seed, {center} and 95 % interval")
    axes.set_title(title)
    save_figure(figure, path)
