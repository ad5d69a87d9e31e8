import os

import numpy as np
from jaxtyping import Array, Bool

from .._agents import TAACExtras
from .._types.custom_types import Extras
from .._types.data import Transition
from .._types.installed import check_installed
from .figure import save_figure


def draw_repeats(
    path: str | os.PathLike[str],
    transitions: Transition[Extras],
    mask: Bool[Array, "episodes time"],
    *,
    title: str = "When the policy repeats",
) -> None:
    """Plots at which steps of an episode a policy of TAAC repeats.

    The upper panel has a row for each episode, dark where it repeats and light where it
    switches; the lower one shows the share of repeats at each step, among the episodes
    that last that long.

    **Arguments:**

    - `path`: file to write; its suffix decides the format: `.png`, `.pdf` or `.svg`.
    - `transitions`, `mask`: from `eqrl.rollout` of `TAAC`. If a wrapper stores extras
        of its own, replace them by those of `TAAC`, with `dataclasses.replace`.
    - `title`: above the axes.
    """
    check_installed("matplotlib", "`draw_repeats`", extra="plots")
    # Figures are made without pyplot, which keeps a list of them and may open windows.
    from matplotlib.figure import Figure

    extras = transitions.extras
    if not isinstance(extras, TAACExtras):
        raise ValueError(
            f"`transitions.extras` is a {type(extras).__name__}; it must be the "
            "`eqrl.TAACExtras` that `TAAC` stores."
        )
    within = np.asarray(mask)
    repeats = np.where(within, np.asarray(extras.repeats) > 1, np.nan)
    figure = Figure(figsize=(6.4, 4.8), layout="constrained")
    rows, share = figure.subplots(2, sharex=True, height_ratios=(2, 1))
    num_episodes, time = repeats.shape
    rows.imshow(
        repeats,
        aspect="auto",
        interpolation="nearest",
        cmap="Blues",
        vmin=-0.25,
        vmax=1,
        extent=(0, time, num_episodes, 0),
    )
    rows.set_title(title)
    rows.set_ylabel("episode")
    playing = np.any(within, axis=0)
    steps = np.flatnonzero(playing)
    share.step(steps + 0.5, np.nanmean(repeats[:, playing], axis=0), where="mid")
    share.set_ylim(0, 1)
    share.set_ylabel("share repeating")
    share.set_xlabel("step of the episode")
    share.grid(alpha=0.3)
    save_figure(figure, path)
