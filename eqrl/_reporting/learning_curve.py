import os

import numpy as np
from jaxtyping import Float, Int

from .._training.solution import History


def draw_learning_curve(
    path: str | os.PathLike[str],
    metrics: History,
    *,
    title: str,
    kind: str = "seed",
    best: bool = False,
) -> None:
    """Draws the episodes' return over the steps, as a PNG.

    **Arguments:**

    - `path`: where to.
    - `metrics`: of a `Solution`. Of several seeds it draws the mean and, shaded, the
        range from the least to the greatest.
    - `title`: above the axes.
    - `kind`: what to call those over which the range is.
    - `best`: whether to draw the greatest as a line of its own.
    """
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
    axes.set_ylabel("episode return")
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.3)
    figure.savefig(path, format="png", dpi=150)


def _known_returns(
    metrics: History,
) -> tuple[Int[np.ndarray, " rows"], Float[np.ndarray, "rows seeds"]]:
    """The rows in which an episode of some seed ended."""
    steps = metrics["step"]
    returns = metrics["episode_return"].reshape(len(steps), -1)
    returns = np.where(np.isfinite(returns), returns, np.nan)
    known = np.any(np.isfinite(returns), axis=1)
    return steps[known], returns[known]
