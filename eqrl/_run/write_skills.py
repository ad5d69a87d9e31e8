"""What `eqrl train diayn` writes besides."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .._interaction.evaluate_skills import SkillEvaluation
from .._reporting.skills import draw_skills
from .._storage.checkpoint import Directory
from .._storage.replace import replacing
from .config import Run, Training
from .files import finite, write_json


def write_skills(
    folder: Directory, run: Run[Training], evaluations: Sequence[SkillEvaluation]
) -> None:
    """Writes `skills.json`, and `skills.png` or one such picture for each seed."""
    num_episodes = evaluations[0].returns.shape[1]
    seeds = [_summary(evaluation) for evaluation in evaluations]
    write_json(folder, "skills.json", {"num_episodes": num_episodes, "seeds": seeds})
    for seed, evaluation in enumerate(evaluations):
        name = "skills.png" if len(seeds) == 1 else f"skills_of_seed_{seed}.png"
        with replacing(Path(folder) / name) as path:
            draw_skills(path, evaluation, title=run.title)


def _summary(evaluation: SkillEvaluation) -> dict[str, Any]:
    """Means over the episodes of each skill."""
    (accuracy,) = finite(np.asarray(evaluation.accuracy)[None])
    return {
        "accuracy": accuracy,
        "diversity_returns": finite(
            np.asarray(evaluation.diversity_returns).mean(axis=1)
        ),
        "environment_returns": finite(np.asarray(evaluation.returns).mean(axis=1)),
        "skills": np.asarray(evaluation.skills).tolist(),
    }
