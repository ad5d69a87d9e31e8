"""What `eqrl train` writes."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from .._interaction.evaluate_skills import SkillEvaluation
from .._pytree.stack import take_element
from .._reporting.learning_curve import draw_learning_curve
from .._reporting.skills import draw_skills
from .._storage.checkpoint import Directory, save
from .._storage.replace import atomic_write
from .._training.solution import AnySolution, History
from .._types.custom_types import Mode
from .config import Run, Training
from .files import finite, policy_folder, write_csv, write_json


def states_of_seeds(solution: AnySolution, num_seeds: int) -> list[Any]:
    """The state of the agent of each seed."""
    if num_seeds == 1:
        return [solution.state]
    return [take_element(solution.state, seed) for seed in range(num_seeds)]


def write_solution(
    folder: Directory, run: Run[Training], solution: AnySolution
) -> None:
    """Writes `metrics.csv`, `learning_curve.png` and the policy of each seed."""
    _write_metrics(folder, solution.metrics)
    with atomic_write(Path(folder) / "learning_curve.png") as path:
        draw_learning_curve(path, solution.metrics, title=run.title)
    step = int(solution.metrics["step"][-1])
    for seed, state in enumerate(states_of_seeds(solution, run.schedule.seeds)):
        save(policy_folder(folder, run.schedule.kind, seed), step, state)


def write_evaluation(
    folder: Directory,
    returns: Float[np.ndarray, "policies episodes"],
    *,
    step: int,
    mode: Mode,
    best: int | None = None,
) -> None:
    """Writes `evaluation.json`, with the index of the best member of a population."""
    evaluation = {
        "step": step,
        "mode": mode,
        "num_episodes": returns.shape[1],
        "mean_returns": finite(returns.mean(axis=1)),
        "returns": [finite(row) for row in returns],
    }
    if best is not None:
        evaluation["best"] = best
    write_json(folder, "evaluation.json", evaluation)


def write_skills(
    folder: Directory, run: Run[Training], evaluations: Sequence[SkillEvaluation]
) -> None:
    """Writes `skills.json`, and `skills.png` or one such plot for each seed."""
    num_episodes = evaluations[0].returns.shape[1]
    seeds = [skill_summary(evaluation) for evaluation in evaluations]
    write_json(folder, "skills.json", {"num_episodes": num_episodes, "seeds": seeds})
    for seed, evaluation in enumerate(evaluations):
        name = "skills.png" if len(seeds) == 1 else f"skills_of_seed_{seed}.png"
        with atomic_write(Path(folder) / name) as path:
            draw_skills(path, evaluation, title=run.title)


def skill_summary(evaluation: SkillEvaluation) -> dict[str, Any]:
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


def _write_metrics(folder: Directory, metrics: History) -> None:
    steps = metrics["step"]
    columns = {
        name: values.reshape(len(steps), -1)
        for name, values in metrics.items()
        if name != "step"
    }
    num_seeds = next(iter(columns.values())).shape[1]
    rows = [
        [seed, int(step), *(float(column[row, seed]) for column in columns.values())]
        for seed in range(num_seeds)
        for row, step in enumerate(steps)
    ]
    write_csv(folder, "metrics.csv", ["seed", "step", *columns], rows)
