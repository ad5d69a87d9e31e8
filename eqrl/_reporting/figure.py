"""Shared parts of figures: files whose suffix decides the format, and colors."""

import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._storage.files import PARTIAL
from .._types.installed import check_installed


# The first import on a slow machine logs a warning that Matplotlib looks for fonts.
logging.getLogger("matplotlib.font_manager").addFilter(
    lambda record: "building the font cache" not in record.getMessage()
)

# Each takes a tenth of a second to draw.
MOST_IMAGES = 100

# By suffix, the metadata that would hold the time at which the file was written.
_FORMATS: dict[str, dict[str, None]] = {
    ".png": {},
    ".pdf": {"CreationDate": None},
    ".svg": {"Date": None},
}

FIGURE_SUFFIXES = tuple(_FORMATS)
"""Suffixes of the files into which figures can be written."""


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
    """A list of suffixes in words."""
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
    """Writes a figure in the format of the suffix. Equal figures give equal bytes.

    Missing folders above `path` are created.

    Raises a `ValueError` if figures are not written in that format.
    """
    from matplotlib import rc_context

    suffix = figure_suffix(path)
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    # Publishers refuse the Type 3 fonts that Matplotlib embeds by default, and without
    # a salt the names within an SVG are random.
    with rc_context({"pdf.fonttype": 42, "svg.hashsalt": "eqrl"}):
        figure.savefig(path, format=suffix[1:], dpi=150, metadata=_FORMATS[suffix])


def images_of_paths(figure: Any) -> list[np.ndarray]:
    """At most `MOST_IMAGES` images of a figure whose paths grow step by step.

    Every second line of its axes is the dot at the end of the path before it.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    # The limits of the axes are those of whole paths.
    canvas.draw()
    lines = figure.axes[0].lines
    pairs = [
        (path, dot, path.get_xydata().T)
        for path, dot in zip(lines[::2], lines[1::2], strict=True)
    ]
    longest = max(places.shape[1] for *_, places in pairs)
    images = []
    for number in np.unique(np.linspace(1, longest, MOST_IMAGES).astype(int)):
        for path, dot, places in pairs:
            so_far = places[:, :number]
            path.set_data(so_far)
            dot.set_data(so_far[:, -1:])
        canvas.draw()
        images.append(np.array(canvas.buffer_rgba())[..., :3])
    return images


def numbered_colors(count: int) -> list[tuple[float, float, float]]:
    """Colors of numbered things."""
    from matplotlib import colormaps

    # `tab10` has ten colors.
    if count <= 10:
        return [as_rgb(colormaps["tab10"](index)) for index in range(count)]
    # At both of its ends this map is too dark to tell colors apart.
    return [as_rgb(colormaps["turbo"](x)) for x in np.linspace(0.03, 0.97, count)]


def as_rgb(color: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """A color without its opacity."""
    red, green, blue = color[:3]
    return float(red), float(green), float(blue)
