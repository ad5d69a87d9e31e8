"""Shared parts of figures: files whose suffix decides the format, and colors."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Array, Bool

from .._agents.taac.policy import TAACExtras
from .._storage.files import PARTIAL
from .._types.custom_types import Extras
from .._types.data import Transition
from .._types.installed import check_installed


# The first import on a slow machine logs a warning that Matplotlib looks for fonts.
logging.getLogger("matplotlib.font_manager").addFilter(
    lambda record: "building the font cache" not in record.getMessage()
)

# By suffix, the metadata that would hold the time at which the file was written.
_FORMATS: dict[str, dict[str, None]] = {
    ".png": {},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}

FIGURE_SUFFIXES = tuple(_FORMATS)
"""Of the files that figures can be written into."""


def figure_suffix(path: str | os.PathLike[str]) -> str:
    """The suffix that decides the format of a figure; without one it is a PNG.

    Raises a `ValueError` if figures are not written in the format of the suffix.
    """
    # A file that replaces another when complete has a name after its suffix.
    suffix = Path(os.fspath(path).removesuffix(PARTIAL)).suffix.lower()
    if suffix and suffix not in _FORMATS:
        raise ValueError(
            f"`path={os.fspath(path)!r}` ends in `{suffix}`, but the suffix decides "
            f"the format of a figure: {one_of(FIGURE_SUFFIXES)}. Give one of these."
        )
    return suffix or ".png"


def one_of(suffixes: Sequence[str]) -> str:
    """Suffixes in words."""
    *others, last = (f"`{suffix}`" for suffix in suffixes)
    return f"{', '.join(others)} or {last}" if others else last


def new_figure(what: str, width: float = 6.4, height: float = 4.8) -> Any:
    """An empty figure; its size is in inches.

    Raises a `NotInstalledError` if Matplotlib, which `what` needs, is missing.
    """
    check_installed("matplotlib", what, extra="plots")
    # Figures are made without pyplot, which keeps a list of them and may open windows.
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Writes a figure in the format of the path's suffix. Equal figures, equal bytes.

    Raises a `ValueError` if figures are not written in that format.
    """
    from matplotlib import rc_context

    suffix = figure_suffix(path)
    # Publishers refuse the fonts of type 3 that Matplotlib embeds by default; and
    # without a salt the names within an SVG are drawn at random.
    with rc_context({"pdf.fonttype": 42, "svg.hashsalt": "eqrl"}):
        figure.savefig(path, format=suffix[1:], dpi=150, metadata=_FORMATS[suffix])


def numbered_colors(count: int) -> list[tuple[float, float, float]]:
    """Colors of numbered things."""
    from matplotlib import colormaps

    # There are ten colors in that map.
    if count <= 10:
        return [as_rgb(colormaps["tab10"](index)) for index in range(count)]
    # At both of its ends this map is too dark to tell colors apart.
    return [as_rgb(colormaps["turbo"](x)) for x in np.linspace(0.03, 0.97, count)]


def as_rgb(color: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """A color without its opacity."""
    red, green, blue = color[:3]
    return float(red), float(green), float(blue)


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
    figure = new_figure("`draw_repeats`")
    extras = transitions.extras
    if not isinstance(extras, TAACExtras):
        raise ValueError(
            f"`transitions.extras` is a {type(extras).__name__}; it must be the "
            "`eqrl.TAACExtras` that `TAAC` stores."
        )
    within = np.asarray(mask)
    repeats = np.where(within, np.asarray(extras.repeats) > 1, np.nan)
    rows, share = figure.subplots(2, sharex=True, height_ratios=(2, 1))
    num_episodes, time = repeats.shape
    # Below 0, so that a switch is not as white as what comes after the end.
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
    # In the upper panel, a step takes the room from its number to the next.
    share.step(steps + 0.5, np.nanmean(repeats[:, playing], axis=0), where="mid")
    share.set_ylim(0, 1)
    share.set_ylabel("share repeating")
    share.set_xlabel("step of the episode")
    share.grid(alpha=0.3)
    save_figure(figure, path)
