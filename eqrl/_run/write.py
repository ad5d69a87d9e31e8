"""Files that runs write."""

import csv
import dataclasses
import math
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

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
from .._reporting.learning_curve import draw_learning_curve, draw_learning_curves
from .._reporting.population import draw_family_tree, draw_schedules
from .._reporting.statistics import Center
from .._reporting.sweep import SweepSolution, draw_sweep
from .._skills.distances import (
    SkillTrajectories,
    nearest_distance,
    pairwise_hausdorff,
    terminal_descriptors,
    union_hausdorff,
)
from .._storage.checkpoint import Directory
from .._storage.files import Content, atomic_write, read_json
from .._training.mesh import gather
from .._training.rows import AnySolution, History, append_row
from .._types.custom_types import Mode, PyTree
from ..envs._base import AnyEnv
from ..envs._make import descriptor_names
from .config import Population, Run, SkillSchedule, Training
from .files import (
    finite,
    policy_folder,
    save_policy,
    write_json,
    write_picture,
)
from .rewards import PREFIX
from .solutions import step_of


# Columns that identify the owner of a row, if several train side by side.
_OWNERS = ("seed", "member")

# Columns that only count and do not measure anything.
_COUNTERS = {*_OWNERS, "generation", "parent"}


def read_metrics(folder: Directory) -> History:
    """Reads `metrics.csv` of a run, which may still be in training.

    **Returns:**

    Arrays by name, like the metrics of a solution, of shape (logs,) or, for several
    seeds or the members of a population, (logs, seeds). An incomplete row is ignored.

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
    # The last step may be incomplete, with rows of its first owners only.
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
    """Writes `metrics.csv`, with columns in the form that `_rows` takes."""
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
    ordered = {name: metrics[name] for name in ("skill", "step")} | metrics
    write_table(folder, {_column(name): values for name, values in ordered.items()})


def write_generations(folder: Directory, solution: PopulationSolution) -> None:
    """Writes `metrics.csv` of a population."""
    num_generations, size = solution.parents.shape
    metrics = dict(solution.metrics)
    columns = {
        "generation": np.arange(num_generations),
        "member": np.arange(size)[None],
        "step": metrics.pop("step"),
        "parent": solution.parents,
        "score": solution.scores,
    }
    # An agent may use any names for its hyperparameters and metrics, but none may
    # replace another column.
    for kind, given in (
        ("hyperparameter", solution.hyperparameters),
        ("metric", metrics),
    ):
        for name, values in given.items():
            while name in columns or name in _COUNTERS:
                name = f"{kind}_{name}"
            columns[name] = values
    write_table(folder, columns)


def _with_seeds(metrics: History) -> History:
    """The columns of the metrics of seeds, beginning with the index of the seed."""
    num_seeds = max(values[0].size for values in metrics.values())
    owners = {"seed": np.arange(num_seeds)[None], "step": metrics["step"]}
    return owners | {_column(name): values for name, values in metrics.items()}


def _column(name: str) -> str:
    """The column of a metric, which may not replace one that tells rows apart."""
    return f"metric_{name}" if name in _COUNTERS else name


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
    # On one device, since each would otherwise be evaluated on all.
    states = gather(solution.state)
    return [take_element(states, seed) for seed in range(stack_size(states))]


class GrowingMetrics:
    """Writes `metrics.csv` row by row; a callback of `train` and `train_seeds`."""

    def __init__(self, folder: Directory, metrics: History) -> None:
        """**Arguments:**

        - `folder`: folder of the run.
        - `metrics`: the rows so far, with which the file begins.
        """
        self._folder = Path(folder)
        self._names = [_column(name) for name in metrics]
        if metrics:
            write_metrics(folder, metrics)

    def __call__(self, step: int, metrics: Mapping[str, Any], solution: object) -> None:
        """Writes one row of each seed."""
        del solution
        values = {_column(name): np.asarray(x) for name, x in metrics.items()}
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
    folder: Directory,
    run: Run[Training],
    env: AnyEnv,
    evaluations: Sequence[SkillEvaluation],
) -> None:
    """Writes `skills.json`, and `skills.png` or one such plot for each seed."""
    num_episodes = evaluations[0].returns.shape[1]
    seeds = [skill_summary(evaluation) for evaluation in evaluations]
    write_json(folder, "skills.json", {"num_episodes": num_episodes, "seeds": seeds})
    for seed, evaluation in enumerate(evaluations):
        name = "skills.png" if len(seeds) == 1 else f"skills_of_seed_{seed}.png"
        draw_skills_of(folder, name, run, env, evaluation)


def draw_skills_of(
    folder: Directory,
    name: str,
    run: Run,
    env: AnyEnv,
    played: SkillEvaluation | SkillTrajectories,
) -> None:
    """Draws the skills of a run, with the names that `env` knows for the axes."""
    # If the discriminator sees something else, that is shown instead.
    name_of_option = f"{PREFIX}descriptor" if run.agent == "smerl" else "descriptor"
    descriptor = run.reward_options.get(name_of_option, "state_descriptor")
    is_of_env = descriptor == "state_descriptor"
    names = (descriptor_names(env) if is_of_env else None) or ()
    # A name is of an info, which may be a vector. Two elements are drawn.
    are_known = len(names) == np.shape(played.descriptors)[-1]
    names = names[:2] if are_known else None
    write_picture(folder, name, draw_skills, played, title=run.title, names=names)


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


def write_members(folder: Directory, solution: PopulationSolution) -> None:
    """Writes `metrics.csv` and the policy of each member."""
    # It names the best member among policies that are about to change.
    (Path(folder) / "evaluation.json").unlink(missing_ok=True)
    write_generations(folder, solution)
    step = step_of(solution)
    for index in range(solution.parents.shape[1]):
        policy = (member(solution.agents, index), member(solution.states, index))
        save_policy(policy_folder(folder, "member", index), step, policy)


def by_given_names(
    run: Run[Population], solution: PopulationSolution
) -> PopulationSolution:
    """A solution whose hyperparameters have the names that the run's priors give."""
    hyperparameters = run.by_given_names(solution.hyperparameters)
    return dataclasses.replace(solution, hyperparameters=hyperparameters)


def draw_population(
    folder: Directory, run: Run[Population], solution: PopulationSolution
) -> None:
    """Draws the plots."""
    solution = by_given_names(run, solution)
    draw_scores(folder, run.title, solution)
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


def draw_scores(folder: Directory, title: str, solution: PopulationSolution) -> None:
    """Draws the learning curve of a population, and the family tree of its members."""
    scores = scores_of(solution, None)
    write_picture(
        folder,
        "learning_curve.png",
        draw_learning_curve,
        {"step": solution.metrics["step"], "episode_return": scores},
        title=title,
        kind="member",
        best=True,
        label="evaluation return" if are_mean_returns(solution, scores) else "score",
    )
    write_picture(folder, "family_tree.png", draw_family_tree, solution, title=title)


def write_skills_of_member(
    folder: Directory,
    run: Run[Population],
    env: AnyEnv,
    index: int,
    evaluation: SkillEvaluation,
) -> None:
    """Writes `skills.json` and `skills.png` of one member of a population."""
    num_episodes = evaluation.returns.shape[1]
    content = {"num_episodes": num_episodes, "member": index}
    write_json(folder, "skills.json", {**content, **skill_summary(evaluation)})
    draw_skills_of(folder, "skills.png", run, env, evaluation)


def write_trajectories(
    folder: Directory,
    run: Run[SkillSchedule],
    env: AnyEnv,
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
    draw_skills_of(folder, "skills.png", run, env, trajectories)
    return distances


SWEEP = "sweep.json"
"""The file that describes a sweep, and marks its folder."""

SEARCH = "search.json"
"""The file that describes the search of the command line."""

TABLE = "settings.csv"
"""The file with the table of a sweep that has ended."""

_TRAINED, POLICIES, UNFINISHED = "trained", "policy", "unfinished"
_FRESH = "fresh.json"

ADVICE = "take it from a copy of the sweep, or train again"

Pair = tuple[int, int]
"""A member of a sweep: the indices of its setting and of its seed."""


@dataclasses.dataclass(frozen=True)
class TrainedPart:
    """The result of some members of a sweep, which trained side by side.

    - `pairs`: which members.
    - `scores`: the score of each, `None` if it diverged.
    - `steps`: the steps at the end of each row of the metrics.
    - `metrics`: by name, for each member and row, `None` if there is no number.
    - `states`: the stack of the agents' states.
    """

    pairs: list[Pair]
    scores: list[float | None]
    steps: list[int]
    metrics: dict[str, list[list[float | None]]]
    states: PyTree


def name_of_part(pairs: Sequence[Pair]) -> str:
    """The name of the files of a part: its first member, and how many there are."""
    (setting, seed), count = pairs[0], len(pairs)
    return f"{setting}_{seed}_{count}"


def scores_of_parts(parts: Sequence[TrainedPart]) -> dict[Pair, float]:
    """The score of each member that has trained; `nan` if it has diverged."""
    return {
        pair: math.nan if score is None else score
        for part in parts
        for pair, score in zip(part.pairs, part.scores, strict=True)
    }


def joined(
    parts: Sequence[TrainedPart],
    values: Sequence[dict[str, object]],
    num_seeds: int,
    center: Center,
) -> SweepSolution:
    """The scores and metrics of the settings whose seeds are all in the parts."""
    scores = scores_of_parts(parts)
    places = {
        pair: (part, place) for part in parts for place, pair in enumerate(part.pairs)
    }
    metrics = []
    for index in range(len(values)):
        members = [places[index, seed] for seed in range(num_seeds)]
        part, _ = members[0]
        columns = {
            name: np.array([part.metrics[name][i] for part, i in members], float).T
            for name in part.metrics
        }
        metrics.append({"step": np.array(part.steps), **columns})
    return SweepSolution(
        settings=tuple(values),
        scores=np.array(
            [[scores[i, seed] for seed in range(num_seeds)] for i in range(len(values))]
        ),
        fresh_scores=np.full(num_seeds, np.nan),
        metrics=tuple(metrics),
        center=center,
        agents=(),
        states=(),
    )


def write_part(folder: Path, part: TrainedPart) -> None:
    """Writes a part without the states of its agents."""
    (folder / _TRAINED).mkdir(exist_ok=True)
    content = {
        "pairs": [list(pair) for pair in part.pairs],
        "scores": part.scores,
        "steps": part.steps,
        "metrics": part.metrics,
    }
    write_json(folder / _TRAINED, f"{name_of_part(part.pairs)}.json", content)


def read_parts(folder: Path) -> list[TrainedPart]:
    """Reads all parts that a sweep has trained to the end, without states."""

    def parse(content: Content) -> TrainedPart:
        pairs = [(int(setting), int(seed)) for setting, seed in content.pop("pairs")]
        return TrainedPart(pairs=pairs, states=None, **content)

    return [
        read_json(path, parse, "delete it to train these members again")
        for path in sorted((folder / _TRAINED).glob("*.json"))
    ]


def read_sweep(folder: Path) -> SweepSolution:
    """Reads the settings of a sweep that have trained, without agents and states.

    Raises a `ValueError` if there is no sweep, or none of them has trained.
    """
    saved = read_json(folder / SWEEP, dict, ADVICE)
    parts, num_seeds = read_parts(folder), saved["num_seeds"]
    found = scores_of_parts(parts)
    complete = [
        index
        for index in range(len(saved["settings"]))
        if all((index, seed) in found for seed in range(num_seeds))
    ]
    if not complete:
        raise ValueError(f"No setting of the sweep in `{folder}` has trained yet.")
    numbers = {index: number for number, index in enumerate(complete)}
    kept = [
        dataclasses.replace(
            part, pairs=[(numbers.get(i, -1), s) for i, s in part.pairs]
        )
        for part in parts
    ]
    values = [saved["settings"][index] for index in complete]
    solution = joined(kept, values, num_seeds, saved["center"])
    if (folder / _FRESH).exists():
        fresh = read_json(folder / _FRESH, lambda content: content["scores"], ADVICE)
        solution = dataclasses.replace(solution, fresh_scores=np.array(fresh, float))
    return solution


def best_curves(solution: SweepSolution) -> tuple[dict[str, History], str]:
    """As many curves as can be told apart in a figure, and a title that says so."""
    curves = dict([*solution.curves.items()][:_MOST_CURVES])
    number = len(solution.settings)
    title = f"the best {len(curves)} of {number} settings"
    return curves, title if len(curves) < number else ""


_MOST_CURVES = 6


def write_sweep(folder: Path, solution: SweepSolution) -> None:
    """Writes the table and the figures of a sweep that has ended, once."""
    if (folder / TABLE).exists():
        return
    write_json(folder, _FRESH, {"scores": finite(solution.fresh_scores)})
    write_picture(folder, "sweep.png", draw_sweep, solution)
    curves, title = best_curves(solution)
    if all("episode_return" in metrics for metrics in curves.values()):
        write_picture(
            folder,
            "learning_curves.png",
            draw_learning_curves,
            curves,
            center=solution.center,
            title=title,
        )
    shutil.rmtree(folder / UNFINISHED, ignore_errors=True)
    # Last, since it marks the sweep as complete.
    solution.write_csv(folder / TABLE)
