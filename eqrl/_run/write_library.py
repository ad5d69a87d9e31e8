"""What `eqrl disk` writes."""

from typing import Any

import numpy as np
from jaxtyping import Float

from .._disk import Skills, save_skills
from .._reporting.skills import draw_skills
from .._skills.distances import (
    nearest_distance,
    pairwise_hausdorff,
    terminal_descriptors,
    union_hausdorff,
)
from .._skills.trajectories import SkillTrajectories
from .._storage.checkpoint import Directory
from .._training.solution import History
from .config import Run, SkillSchedule
from .files import finite, library_folder, write_csv, write_json, write_picture


def write_library(folder: Directory, skills: Skills[Any]) -> None:
    """Writes `metrics.csv` and the library with its training state."""
    write_rows(folder, skills.metrics)
    save_skills(library_folder(folder), skills)


def write_rows(folder: Directory, metrics: History) -> None:
    """Writes `metrics.csv`."""
    names = [name for name in metrics if name not in ("skill", "step")]
    rows = [
        [int(skill), int(step), *(float(metrics[name][row]) for name in names)]
        for row, (skill, step) in enumerate(
            zip(metrics["skill"], metrics["step"], strict=True)
        )
    ]
    write_csv(folder, "metrics.csv", ["skill", "step", *names], rows)


def write_trajectories(
    folder: Directory,
    run: Run[SkillSchedule],
    trajectories: SkillTrajectories,
    mean_returns: Float[np.ndarray, " skills"],
) -> dict[str, float]:
    """Writes `skills.json` and `skills.png`.

    Returns the distances between the ends of the skills, if there are two.
    """
    ends = terminal_descriptors(trajectories.descriptors, trajectories.mask)
    distances = {}
    if len(ends) > 1:
        distances = {
            "pairwise_hausdorff": float(pairwise_hausdorff(ends)),
            "union_hausdorff": float(union_hausdorff(ends)),
            "nearest_distance": float(nearest_distance(ends)),
        }
    content = {
        "num_episodes": ends.shape[1],
        "environment_returns": finite(mean_returns),
        "ends": [finite(end) for end in np.asarray(ends).mean(axis=1)],
        "distances": distances,
    }
    write_json(folder, "skills.json", content)
    write_picture(folder, "skills.png", draw_skills, trajectories, title=run.title)
    return distances
