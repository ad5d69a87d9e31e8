import os

import numpy as np

from .._interaction.evaluate_skills import SkillEvaluation
from .._skills.trajectories import SkillTrajectories
from .figure import as_rgb, numbered_colors, save_figure


def draw_skills(
    path: str | os.PathLike[str],
    evaluation: SkillEvaluation | SkillTrajectories,
    *,
    dimensions: tuple[int, ...] = (0, 1),
    title: str = "",
) -> None:
    """Plots the trajectories of each skill in descriptor space.

    Every episode is a line from its first state to its last, which has a dot; every
    skill has a color. Skills in the plane are colored by their direction, all others
    by their number.

    **Arguments:**

    - `path`: file to write; its suffix decides the format: `.png`, `.pdf` or `.svg`.
    - `evaluation`: from `evaluate_skills`; or trajectories alone, which are colored by
        number.
    - `dimensions`: which two elements of the descriptor to draw, or the one to draw
        over the steps. Descriptors of one element are drawn over the steps.
    - `title`: above the axes.

    Raises a `ValueError` unless a descriptor has these elements.
    """
    check_installed("matplotlib", "`draw_skills`", extra="plots")
    # Figures are made without pyplot, which keeps a list of them and may open windows.
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    descriptors = np.asarray(evaluation.descriptors)
    mask = np.asarray(evaluation.mask)
    size = descriptors.shape[-1]
    if size == 1:
        dimensions = (0,)
    _check_dimensions(dimensions, size)
    colors = _colors(evaluation)
    figure = Figure(figsize=(6.4, 5.4), layout="constrained")
    axes = figure.add_subplot()
    for skill, color in enumerate(colors):
        for episode in range(descriptors.shape[1]):
            visited = descriptors[skill, episode][mask[skill, episode]]
            drawn = visited[:, list(dimensions)].T
            x, y = (
                drawn if len(drawn) == 2 else (np.arange(1, len(visited) + 1), drawn[0])
            )
            axes.plot(x, y, color=color, alpha=0.8, linewidth=1.2)
            axes.plot(x[-1:], y[-1:], ".", color=color, markersize=7)
    if len(dimensions) == 2:
        axes.set_xlabel(f"descriptor {dimensions[0]}")
        axes.set_ylabel(f"descriptor {dimensions[1]}")
        axes.set_aspect("equal", adjustable="datalim")
    else:
        axes.set_xlabel("step")
        axes.set_ylabel(f"descriptor {dimensions[0]}")
    if len(colors) <= _MOST_IN_LEGEND:
        handles = [Line2D([], [], color=color) for color in colors]
        labels = [f"{skill}" for skill in range(len(colors))]
        figure.legend(
            handles, labels, title="skill", loc="outside right upper", frameon=False
        )
    axes.set_title(title)
    axes.grid(alpha=0.3)
    save_figure(figure, path)


_MOST_IN_LEGEND = 20


def _check_dimensions(dimensions: tuple[int, ...], size: int) -> None:
    if len(dimensions) not in (1, 2) or not all(
        0 <= each < size for each in dimensions
    ):
        raise ValueError(
            f"`dimensions={dimensions}` must be one or two of the {size} elements of a "
            f"descriptor, 0 to {size - 1}."
        )


def _colors(
    evaluation: SkillEvaluation | SkillTrajectories,
) -> list[tuple[float, float, float]]:
    from matplotlib.colors import hsv_to_rgb

    if isinstance(evaluation, SkillEvaluation):
        skills = np.asarray(evaluation.skills)
        if skills.shape[1] == 2 and not set(np.unique(skills)) <= {0.0, 1.0}:
            angles = np.arctan2(skills[:, 1], skills[:, 0])
            hues = (angles / (2 * np.pi)) % 1
            return [as_rgb(hsv_to_rgb((hue, 0.9, 0.8))) for hue in hues]
    return numbered_colors(evaluation.mask.shape[0])
