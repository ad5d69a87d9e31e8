"""Files that runs write."""

import csv
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from .._disk.library import Skills
from .._interaction.evaluate_skills import SkillEvaluation
from .._population.solution import (
    PopulationSolution,
    are_mean_returns,
    member,
    scores_of,
)
from .._pytree.tree import stack_size, take_element
from .._reporting.episodes import draw_skills
from .._reporting.learning_curve import draw_learning_curve
from .._reporting.population import draw_family_tree, draw_schedules
from .._skills.distances import (
    SkillTrajectories,
    nearest_distance,
    pairwise_hausdorff,
    terminal_descriptors,
    union_hausdorff,
)
from .._storage.checkpoint import Directory
from .._storage.files import atomic_write
from .._training.mesh import gather
from .._training.rows import AnySolution, History, append_row
from .._types.custom_types import Mode, PyTree
from .config import Population, Run, SkillSchedule, Training
from .files import (
    finite,
    policy_folder,
    save_policy,
    write_json,
    write_picture,
)
from .solutions import step_of


# Columns that say whose row it is, where several train side by side.
_OWNERS = ("seed", "member")

# Columns that count and measure nothing.
_COUNTERS = {*_OWNERS, "generation", "parent"}


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
        cells = table.reshape(-1, len(header)).T
        columns = dict(zip(header, cells, strict=True))
        steps = columns["step"]
        owners = next((columns[name] for name in _OWNERS if name in columns), 0 * steps)
        count = int(owners.max(initial=0)) + 1
        if np.any(owners != np.arange(len(steps)) % count):
            raise ValueError("Some rows are missing.")
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
    # The last step may still be being written, with rows of its first owners only.
    logs = len(steps) // count
    metrics = {
        name: values[: logs * count].reshape(logs, count)
        for name, values in columns.items()
        if name not in _COUNTERS
    }
    if count == 1:
        metrics = {name: values[:, 0] for name, values in metrics.items()}
    return metrics | {"step": steps[: logs * count : count].astype(int)}


def write_table(folder: Directory, columns: History) -> None:
    """Writes `metrics.csv`, whose columns are as `_rows` takes them."""
    with (
        atomic_write(Path(folder) / "metrics.csv") as path,
        open(path, "w", newline="") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(_rows(columns))


def write_metrics(folder: Directory, metrics: History) -> None:
    """Writes `metrics.csv` of one seed or several."""
    write_table(folder, _with_seeds(metrics))


def write_rows(folder: Directory, metrics: History) -> None:
    """Writes `metrics.csv` of skills that are learned one after another."""
    write_table(folder, {name: metrics[name] for name in ("skill", "step")} | metrics)


def write_generations(
    folder: Directory,
    solution: PopulationSolution,
    steps: Int[np.ndarray, " generations"],
) -> None:
    """Writes `metrics.csv` of a population, whose generations end at `steps`."""
    means = solution.returns.mean(axis=2)
    # A vector of rewards has one mean for each element.
    named = (
        {"mean_return": means}
        if means.ndim == 2
        else {f"mean_return_{i}": means[..., i] for i in range(means.shape[2])}
    )
    num_generations, size = solution.parents.shape
    columns = {
        "generation": np.arange(num_generations),
        "member": np.arange(size)[None],
        "step": steps,
        "parent": solution.parents,
        **named,
        "score": solution.scores,
    }
    # An agent names its hyperparameters and metrics as it likes; none may take the
    # place of another column.
    for kind, given in (
        ("hyperparameter", solution.hyperparameters),
        ("metric", solution.metrics),
    ):
        for name, values in given.items():
            while name in columns:
                name = f"{kind}_{name}"
            columns[name] = values
    write_table(folder, columns)


def _with_seeds(metrics: History) -> History:
    """The columns of the metrics of seeds, beginning with the index of the seed."""
    num_seeds = max(values[0].size for values in metrics.values())
    return {"seed": np.arange(num_seeds)[None], "step": metrics["step"]} | metrics


def _rows(columns: History) -> Iterable[Sequence[int | float]]:
    """A row for each step and owner, in the order in which they are reached.

    Columns have the shape (steps, owners), or (steps,) if all owners share them.
    """
    tables = [x if x.ndim == 2 else x[:, None] for x in columns.values()]
    cells = [
        table if np.issubdtype(table.dtype, np.integer) else table.astype(float)
        for table in np.broadcast_arrays(*tables)
    ]
    return zip(*(table.reshape(-1).tolist() for table in cells), strict=True)


def states_of_seeds(solution: AnySolution) -> list[PyTree]:
    """The state of the agent of each seed, of one training or of several seeds."""
    if solution.trainer_state.failed.ndim == 0:
        return [solution.state]
    # On one device, or each would be evaluated on all.
    states = gather(solution.state)
    return [take_element(states, seed) for seed in range(stack_size(states))]


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
            write_metrics(folder, metrics)

    def __call__(self, step: int, metrics: Mapping[str, Any], solution: object) -> None:
        """Writes one row of each seed."""
        del solution
        values = {name: np.asarray(value) for name, value in metrics.items()}
        row = append_row({}, step, values)
        if {*row} == {*self._names}:
            ordered = {name: row[name] for name in self._names}
            with open(self._folder / "metrics.csv", "a", newline="") as file:
                csv.writer(file).writerows(_rows(_with_seeds(ordered)))
            return
        # Earlier rows had other metrics, so all of them get the new columns.
        if self._names:
            row = append_row(read_metrics(self._folder), step, values)
        self._names = list(row)
        write_metrics(self._folder, row)


def write_policies(folder: Directory, solution: AnySolution) -> None:
    """Writes `metrics.csv` and the policy of each seed."""
    if solution.metrics:
        write_metrics(folder, solution.metrics)
    step = step_of(solution)
    for seed, state in enumerate(states_of_seeds(solution)):
        save_policy(policy_folder(folder, "seed", seed), step, state)


def draw_solution(
    folder: Directory, title: str, solution: AnySolution | Skills[PyTree]
) -> None:
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
        write_picture(
            folder,
            name,
            draw_skills,
            evaluation,
            title=run.title,
            names=names_of_axes(run, run.skills and run.skills.descriptor),
        )


def names_of_axes(run: Run[Any], descriptor: str | None) -> tuple[str, str] | None:
    """What the axes of a picture of skills are called, if the environment knows."""
    is_position = run.settings.env == "eqrl/Point" and descriptor == "state_descriptor"
    return ("x", "y") if is_position else None


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


def write_members(
    folder: Directory,
    solution: PopulationSolution,
    steps: Int[np.ndarray, " generations"],
) -> None:
    """Writes `metrics.csv` and the policy of each member."""
    write_generations(folder, solution, steps)
    step = step_of(solution)
    for index in range(solution.parents.shape[1]):
        policy = (member(solution.agents, index), member(solution.states, index))
        save_policy(policy_folder(folder, "member", index), step, policy)


def draw_population(
    folder: Directory, run: Run[Population], solution: PopulationSolution
) -> None:
    """Draws the plots."""
    solution, steps = named_and_dated(run, solution)
    draw_scores(folder, run.title, solution, steps)
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


def named_and_dated(
    run: Run[Population], solution: PopulationSolution
) -> tuple[PopulationSolution, Int[np.ndarray, " generations"]]:
    """A solution whose hyperparameters have the names that the run's priors give them.

    With it the environment steps of a member at the end of each generation.
    """
    hyperparameters = run.by_given_names(solution.hyperparameters)
    named = dataclasses.replace(solution, hyperparameters=hyperparameters)
    steps = run.schedule.steps_per_generation * np.arange(1, 1 + len(solution.returns))
    return named, steps


def write_skills_of_member(
    folder: Directory, run: Run[Population], index: int, evaluation: SkillEvaluation
) -> None:
    """Writes `skills.json` and `skills.png` of one member of a population."""
    num_episodes = evaluation.returns.shape[1]
    content = {"num_episodes": num_episodes, "member": index}
    write_json(folder, "skills.json", {**content, **skill_summary(evaluation)})
    write_picture(folder, "skills.png", draw_skills, evaluation, title=run.title)


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
    names = names_of_axes(run, run.reward_options.get("descriptor", "state_descriptor"))
    write_picture(
        folder, "skills.png", draw_skills, trajectories, title=run.title, names=names
    )
    return distances
