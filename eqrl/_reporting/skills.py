import os

import numpy as np
from jaxtyping import Float

from .._interaction.evaluate_skills import SkillEvaluation
from .._skills.distances import SkillTrajectories
from .._types.custom_types import EnvState
from ..envs import AbstractEnv, Point
from ..envs._base import AnyEnv
from .figure import as_rgb, new_figure, numbered_colors, save_figure
from .render import innermost


def draw_skills(
    path: str | os.PathLike[str],
    evaluation: SkillEvaluation | SkillTrajectories,
    *,
    dimensions: tuple[int, ...] = (0, 1),
    title: str = "",
    names: tuple[str, ...] | None = None,
    env: AbstractEnv[EnvState] | None = None,
) -> None:
    """Plots the trajectories of each skill in descriptor space.

    Every episode is a line from the state in which it began to its last, which has a
    dot; every skill has a color. Skills in the plane are colored by their direction,
    all others by their number.

    **Arguments:**

    - `path`: file to write; its suffix decides the format: `.png`, `.pdf` or `.svg`.
    - `evaluation`: from `evaluate_skills`; or trajectories alone, which are colored by
        number.
    - `dimensions`: which two elements of the descriptor to draw, or the one to draw
        over the steps. Descriptors of one element are drawn over the steps.
    - `title`: above the axes.
    - `names`: of the elements that are drawn, such as `("x", "y")`, instead of their
        numbers.
    - `env`: an `eqrl.envs.Point`, inside any wrappers, whose closed walls are drawn, as
        far as the trajectories reach. The descriptor is then the position, and both of
        its elements are drawn.

    Raises a `ValueError` unless a descriptor has these elements, unless there are as
    many `names`, and if `env` has no walls to draw.
    """
    figure = new_figure("`draw_skills`", 6.4, 5.4)
    from matplotlib.collections import LineCollection
    from matplotlib.lines import Line2D

    descriptors = np.asarray(evaluation.descriptors)
    mask = np.asarray(evaluation.mask)
    size = descriptors.shape[-1]
    if size == 1:
        dimensions = (0,)
    names = _checked_names(dimensions, names, size)
    walls = None if env is None else _walls(env, dimensions)
    first = evaluation.first_descriptors
    first = None if first is None else np.asarray(first)
    colors = _colors(evaluation)
    axes = figure.add_subplot()
    if walls is not None:
        # They have no part in the limits of the axes, since some are all but endless.
        drawn = LineCollection(list(walls), colors="black", linewidths=2)
        axes.add_collection(drawn, autolim=False)
    for skill, color in enumerate(colors):
        for episode in range(descriptors.shape[1]):
            visited = descriptors[skill, episode][mask[skill, episode]]
            steps = np.arange(1, len(visited) + 1)
            if first is not None:
                visited = np.concatenate([first[skill, episode][None], visited])
                steps = np.arange(len(visited))
            elements = visited[:, list(dimensions)].T
            x, y = elements if len(elements) == 2 else (steps, elements[0])
            axes.plot(x, y, color=color, alpha=0.8, linewidth=1.2)
            # Slices, since there may be no step at all.
            axes.plot(x[-1:], y[-1:], ".", color=color, markersize=7)
    if len(dimensions) == 2:
        axes.set_xlabel(names[0])
        # Distances and directions are what skills differ in.
        axes.set_aspect("equal", adjustable="datalim")
    else:
        axes.set_xlabel("step")
    axes.set_ylabel(names[-1])
    # More colors than that nobody can tell apart.
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


def _checked_names(
    dimensions: tuple[int, ...], names: tuple[str, ...] | None, size: int
) -> tuple[str, ...]:
    """The names of the elements that are drawn, of a descriptor of `size`."""
    if len(dimensions) not in (1, 2) or not all(
        0 <= each < size for each in dimensions
    ):
        raise ValueError(
            f"`dimensions={dimensions}` must be one or two of the {size} elements of a "
            f"descriptor, 0 to {size - 1}."
        )
    if names is None:
        return tuple(f"descriptor {each}" for each in dimensions)
    # A string has a length, too, and would give a letter to each.
    if isinstance(names, str) or len(names) != len(dimensions):
        raise ValueError(
            f"`names={names!r}` must be {len(dimensions)}: one for each of "
            f"`dimensions={dimensions}`."
        )
    return names


def _walls(
    env: AnyEnv, dimensions: tuple[int, ...]
) -> Float[np.ndarray, "walls ends xy"]:
    inner = innermost(env)
    if not isinstance(inner, Point):
        raise ValueError(
            f"`env` has no walls: it is a `{type(inner).__name__}`, not an "
            "`eqrl.envs.Point`. Leave it out."
        )
    if set(dimensions) != {0, 1}:
        raise ValueError(
            f"`env` gives the walls in the plane, but `dimensions={dimensions}`; draw "
            "(0, 1), or leave `env` out."
        )
    closed = np.array(inner.walls[int(inner.num_open) :]).reshape(-1, 2, 2)
    return closed[..., list(dimensions)]


def _colors(
    evaluation: SkillEvaluation | SkillTrajectories,
) -> list[tuple[float, float, float]]:
    from matplotlib.colors import hsv_to_rgb

    if isinstance(evaluation, SkillEvaluation):
        skills = np.asarray(evaluation.skills)
        # Two skills that are one-hot are in the plane as well, but have no direction.
        if skills.shape[1] == 2 and not set(np.unique(skills)) <= {0.0, 1.0}:
            angles = np.arctan2(skills[:, 1], skills[:, 0])
            hues = (angles / (2 * np.pi)) % 1
            return [as_rgb(hsv_to_rgb((hue, 0.9, 0.8))) for hue in hues]
    return numbered_colors(evaluation.mask.shape[0])
