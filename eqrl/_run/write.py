"""What `eqrl train` writes."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from .._interaction.evaluate_skills import SkillEvaluation
from .._pytree.stack import take_element
from .._reporting.learning_curve import draw_learning_curve
from .._reporting.skills import draw_skills
from .._storage.checkpoint import Directory
from .._training.mesh import gather
from .._training.rows import append_row
from .._training.solution import AnySolution, History
from .._types.custom_types import Mode
from .config import Run, Training
from .files import (
    append_csv,
    finite,
    policy_folder,
    save_policy,
    write_csv,
    write_json,
    write_picture,
)
from .read_metrics import read_metrics


def states_of_seeds(solution: AnySolution, num_seeds: int) -> list[Any]:
    """The state of the agent of each seed."""
    if num_seeds == 1:
        return [solution.state]
    # On one device, or each would be evaluated on all.
    states = gather(solution.state)
    return [take_element(states, seed) for seed in range(num_seeds)]


class GrowingMetrics:
    """Writes `metrics.csv` row by row; a callback of `train` and `train_seeds`."""

    def __init__(self, folder: Directory, metrics: History) -> None:
        """**Arguments:**

        - `folder`: folder of the run.
        - `metrics`: what there is already, with which the file begins.
        """
        self._folder = Path(folder)
        self._names = list(metrics)
        if metrics:
            _write_metrics(folder, metrics)

    def __call__(self, step: int, metrics: Mapping[str, Any], state: Any) -> None:
        """Writes one row of each seed."""
        del state
        row = {"step": np.asarray(step), **metrics}
        history = {name: np.asarray(value)[None] for name, value in row.items()}
        if {*history} == {*self._names}:
            ordered = {name: history[name] for name in self._names}
            append_csv(self._folder, "metrics.csv", _rows(ordered))
            return
        # What went before may have had other metrics.
        if self._names:
            values = {name: np.asarray(value) for name, value in metrics.items()}
            history = append_row(read_metrics(self._folder), step, values)
        self._names = list(history)
        _write_metrics(self._folder, history)


def write_policies(
    folder: Directory, run: Run[Training], solution: AnySolution
) -> None:
    """Writes `metrics.csv` and the policy of each seed."""
    write_seeds(folder, solution, states_of_seeds(solution, run.schedule.seeds))


def write_seeds(
    folder: Directory, solution: AnySolution, states: Sequence[Any]
) -> None:
    """Writes `metrics.csv` and the policy of each seed, whose states are given."""
    _write_metrics(folder, solution.metrics)
    step = int(solution.metrics["step"][-1])
    for seed, state in enumerate(states):
        save_policy(policy_folder(folder, "seed", seed), step, state)


def draw_solution(folder: Directory, title: str, solution: AnySolution) -> None:
    """Draws `learning_curve.png`."""
    write_picture(
        folder, "learning_curve.png", draw_learning_curve, solution.metrics, title=title
    )


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
        write_picture(folder, name, draw_skills, evaluation, title=run.title)


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
    names = [name for name in metrics if name != "step"]
    write_csv(folder, "metrics.csv", ["seed", "step", *names], _rows(metrics))


def _rows(metrics: History) -> list[list[int | float]]:
    """A row for each step and seed, in the order in which they are reached."""
    steps = metrics["step"]
    columns = [
        values.reshape(len(steps), -1)
        for name, values in metrics.items()
        if name != "step"
    ]
    return [
        [seed, int(step), *(float(column[row, seed]) for column in columns)]
        for row, step in enumerate(steps)
        for seed in range(columns[0].shape[1])
    ]
