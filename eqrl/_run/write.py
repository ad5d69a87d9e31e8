"""Files that runs write."""

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from .._disk.library import Skills, save_skills
from .._interaction.evaluate_skills import SkillEvaluation
from .._population.solution import (
    PopulationSolution,
    are_mean_returns,
    member,
    scores_of,
)
from .._pytree.tree import take_element
from .._reporting.learning_curve import draw_learning_curve
from .._reporting.population import draw_family_tree, draw_schedules
from .._reporting.skills import draw_skills
from .._skills.distances import (
    nearest_distance,
    pairwise_hausdorff,
    terminal_descriptors,
    union_hausdorff,
)
from .._skills.trajectories import SkillTrajectories
from .._storage.checkpoint import Directory
from .._training.mesh import gather
from .._training.rows import AnySolution, History, append_row
from .._types.custom_types import Mode
from .config import Population, Run, SkillSchedule, Training
from .files import (
    append_csv,
    finite,
    library_folder,
    policy_folder,
    save_policy,
    write_csv,
    write_json,
    write_picture,
)
from .solutions import step_of


# Columns that say whose row it is, where several train side by side.
_OWNERS = ("seed", "member")

# Columns that count and measure nothing.
_COUNTERS = {*_OWNERS, "skill", "generation", "parent"}


def read_metrics(folder: Directory) -> History:
    """Reads `metrics.csv` of a run, which may still be in training.

    **Returns:**

    As the metrics of a solution: by name, of shape (logs,) or, of several seeds or the
    members of a population, (logs, seeds). An incomplete row is ignored.

    Raises a `ValueError` that names the file unless it is a table of metrics.
    """
    path = Path(folder) / "metrics.csv"
    try:
        text = path.read_text()
        # A line that is being written has no end yet.
        header, *lines = csv.reader(text[: text.rfind("\n") + 1].splitlines())
        table = np.array([[float(cell) for cell in line] for line in lines])
        columns = table.reshape(-1, len(header)).T
        return _by_owner(dict(zip(header, columns, strict=True)))
    except OSError as error:
        raise ValueError(
            f"`{path}` cannot be read: {error.strerror}. A run writes it when it has "
            "reached the first row of its metrics."
        ) from error
    except (ArithmeticError, KeyError, ValueError, csv.Error) as error:
        raise ValueError(
            f"`{path}` is damaged: it is not the table of metrics that a run writes. "
            "Take it from a copy of the run."
        ) from error


def _by_owner(columns: dict[str, Float[np.ndarray, " rows"]]) -> History:
    """The metrics, in which those who train side by side have an axis."""
    steps = columns["step"]
    owners = next((columns[name] for name in _OWNERS if name in columns), 0 * steps)
    count = int(owners.max(initial=0)) + 1
    if np.any(owners != np.arange(len(steps)) % count):
        raise ValueError("Some rows are missing.")
    logs = len(steps) // count
    metrics = {
        name: values[: logs * count].reshape(logs, count)
        for name, values in columns.items()
        if name not in _COUNTERS
    }
    if count == 1:
        metrics = {name: values[:, 0] for name, values in metrics.items()}
    return metrics | {"step": steps[: logs * count : count].astype(int)}


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

    def __call__(self, step: int, metrics: Mapping[str, Any], solution: object) -> None:
        """Writes one row of each seed."""
        del solution
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
    if solution.metrics:
        _write_metrics(folder, solution.metrics)
    step = step_of(solution)
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


def write_members(
    folder: Directory, run: Run[Population], solution: PopulationSolution
) -> None:
    """Writes `metrics.csv` and the policy of each member."""
    write_stack(folder, _with_given_names(run, solution), _steps(run, solution))


def write_stack(
    folder: Directory,
    solution: PopulationSolution,
    steps: Int[np.ndarray, " generations"],
) -> None:
    """Writes `metrics.csv` and the policy of each member."""
    _write_generation_table(folder, solution, steps)
    step = step_of(solution)
    for index in range(solution.parents.shape[1]):
        policy = (member(solution.agents, index), member(solution.states, index))
        save_policy(policy_folder(folder, "member", index), step, policy)


def write_generations(
    folder: Directory, run: Run[Population], solution: PopulationSolution
) -> None:
    """Writes `metrics.csv` of all generations so far."""
    _write_generation_table(
        folder, _with_given_names(run, solution), _steps(run, solution)
    )


def draw_population(
    folder: Directory, run: Run[Population], solution: PopulationSolution
) -> None:
    """Draws the plots."""
    solution = _with_given_names(run, solution)
    draw_scores(folder, run.title, solution, _steps(run, solution))
    kinds = {name: kind for name, kind, *_ in run.priors}
    write_picture(
        folder,
        "hyperparameters.png",
        draw_schedules,
        solution,
        logarithmic=[name for name in kinds if "loguniform" in kinds[name]],
        one_minus=[name for name in kinds if "oneminus" in kinds[name]],
        title=run.title,
    )


def draw_scores(
    folder: Directory,
    title: str,
    solution: PopulationSolution,
    steps: Int[np.ndarray, " generations"],
) -> None:
    """Draws the learning curve of a population, and who was copied from whom."""
    scores = scores_of(solution, None)
    write_picture(
        folder,
        "learning_curve.png",
        draw_learning_curve,
        {"step": steps, "episode_return": scores},
        title=title,
        kind="member",
        best=True,
        label="episode return" if are_mean_returns(solution, scores) else "score",
    )
    write_picture(folder, "family_tree.png", draw_family_tree, solution, title=title)


def _with_given_names(
    run: Run[Population], solution: PopulationSolution
) -> PopulationSolution:
    return dataclasses.replace(
        solution, hyperparameters=run.by_given_names(solution.hyperparameters)
    )


def _steps(
    run: Run[Population], solution: PopulationSolution
) -> Int[np.ndarray, " generations"]:
    """Environment steps of a member at the end of each generation."""
    return run.schedule.steps_per_generation * np.arange(1, 1 + len(solution.returns))


def write_skills_of_member(
    folder: Directory, run: Run[Population], index: int, evaluation: SkillEvaluation
) -> None:
    """Writes `skills.json` and `skills.png` of one member of a population."""
    num_episodes = evaluation.returns.shape[1]
    content = {"num_episodes": num_episodes, "member": index}
    write_json(folder, "skills.json", {**content, **skill_summary(evaluation)})
    write_picture(folder, "skills.png", draw_skills, evaluation, title=run.title)


def _write_generation_table(
    folder: Directory,
    solution: PopulationSolution,
    steps: Int[np.ndarray, " generations"],
) -> None:
    means = solution.returns.mean(axis=2)
    # Of a vector of rewards there is one for each element.
    named = (
        {"mean_return": means}
        if means.ndim == 2
        else {f"mean_return_{i}": means[..., i] for i in range(means.shape[2])}
    )
    columns = {**named, "score": solution.scores}
    counters = ["generation", "member", "step", "parent"]
    # An agent names its hyperparameters and metrics as it likes; none may take the
    # place of another column.
    for kind, given in (
        ("hyperparameter", solution.hyperparameters),
        ("metric", solution.metrics),
    ):
        for name, values in given.items():
            while name in columns or name in counters:
                name = f"{kind}_{name}"
            columns[name] = values
    num_generations, size = solution.parents.shape
    rows = [
        [
            generation,
            member,
            int(steps[generation]),
            int(solution.parents[generation, member]),
            *(float(column[generation, member]) for column in columns.values()),
        ]
        for generation in range(num_generations)
        for member in range(size)
    ]
    write_csv(folder, "metrics.csv", [*counters, *columns], rows)


def write_library(folder: Directory, skills: Skills[Any]) -> None:
    """Writes `metrics.csv` and the library with its training state."""
    if skills.metrics:
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
