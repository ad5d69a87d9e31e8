import os

import numpy as np
from jaxtyping import Float, Int

from .._training.solution import History
from .figure import save_figure


def draw_learning_curve(
    path: str | os.PathLike[str],
    metrics: History,
    *,
    title: str,
    kind: str = "seed",
    best: bool = False,
    label: str = "episode return",
) -> None:
    """Plots the episode return over the steps.

    **Arguments:**

    - `path`: file to write.
    - `metrics`: of a `Solution`. For several seeds it plots the mean and, shaded, the
        range from minimum to maximum.
    - `title`: above the axes.
    - `kind`: the name of what the range is taken over, in the singular.
    - `best`: whether to plot the maximum as a line of its own.
    - `label`: what the values are, if they are no returns.
    """
    check_installed("matplotlib", "A learning curve", extra="plots")
    # Figures are made without pyplot, which keeps a list of them and may open windows.
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    steps, returns = _known_returns(metrics)
    num_seeds = returns.shape[1]
    figure = Figure(figsize=(6.4, 4), layout="constrained")
    axes = figure.add_subplot()
    (line,) = axes.plot(steps, np.nanmean(returns, axis=1), label="mean")
    if len(steps) == 1:
        line.set_marker("o")
    if num_seeds > 1:
        axes.fill_between(
            steps,
            np.nanmin(returns, axis=1),
            np.nanmax(returns, axis=1),
            color=line.get_color(),
            alpha=0.25,
            linewidth=0,
            label=f"range over {num_seeds} {kind}s",
        )
        if best:
            (line,) = axes.plot(steps, np.nanmax(returns, axis=1), label="best")
            if len(steps) == 1:
                line.set_marker("o")
        axes.legend(loc="best", frameon=False)
    if len(steps) == 0:
        axes.text(
            *(0.5, 0.5, "no episode has ended"),
            ha="center",
            va="center",
            transform=axes.transAxes,
        )
    axes.set_title(title)
    axes.set_xlabel(
        "environment steps" if num_seeds == 1 else f"environment steps of each {kind}"
    )
    axes.set_ylabel(label)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    save_figure(figure, path)


def _known_returns(
    metrics: History,
) -> tuple[Int[np.ndarray, " rows"], Float[np.ndarray, "rows seeds"]]:
    """Steps and returns of the rows in which an episode of any seed ended."""
    steps = metrics["step"]
    returns = metrics["episode_return"].reshape(len(steps), -1)
    returns = np.where(np.isfinite(returns), returns, np.nan)
    known = np.any(np.isfinite(returns), axis=1)
    return steps[known], returns[known]
