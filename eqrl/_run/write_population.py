"""What `eqrl pbt` writes."""

import dataclasses

import numpy as np
from jaxtyping import Int

from .._interaction.evaluate_skills import SkillEvaluation
from .._population import PopulationSolution, member
from .._population.history import are_mean_returns, scores_of
from .._reporting.learning_curve import draw_learning_curve
from .._reporting.population import draw_family_tree, draw_schedules
from .._reporting.skills import draw_skills
from .._storage.checkpoint import Directory
from .config import Population, Run
from .files import policy_folder, save_policy, write_csv, write_json, write_picture
from .write import skill_summary


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
    _write_metrics(folder, solution, steps)
    for index in range(solution.parents.shape[1]):
        policy = (member(solution.agents, index), member(solution.states, index))
        save_policy(policy_folder(folder, "member", index), int(steps[-1]), policy)


def write_generations(
    folder: Directory, run: Run[Population], solution: PopulationSolution
) -> None:
    """Writes `metrics.csv` of all generations so far."""
    _write_metrics(folder, _with_given_names(run, solution), _steps(run, solution))


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


def _write_metrics(
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
