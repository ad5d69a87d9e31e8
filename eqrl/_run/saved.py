"""Runs that were trained in Python, as folders like those of the command line."""

import dataclasses
from pathlib import Path
from typing import Literal

import numpy as np

from .._agents import AbstractAgent
from .._disk import Skills
from .._interaction.arguments import check_is_agent
from .._population import PopulationSolution
from .._pytree.stack import take_element
from .._reporting.learning_curve import shown_metrics
from .._storage.checkpoint import Directory
from .._storage.json_file import Content, read_json
from .._training.mesh import gather
from .._training.solution import AnySolution, OfflineSolution, Solution
from .._types.custom_types import EnvState, Extras, Memory, State
from ..envs import AbstractEnv
from ..envs._base import check_is_env
from .files import CONFIG, claim_folder, config_of, versions, write_json
from .solutions import step_of
from .write import draw_solution, write_seeds
from .write_population import draw_scores, write_stack


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """What `config.json` holds of a run that `save_run` wrote.

    - `kind`, `count`: the word for one of its policies, and how many there are.
    - `title`: of the plots.
    - `agent`, `env`: as they are printed, to be read by people.
    """

    kind: Literal["seed", "member"]
    count: int
    title: str
    agent: str
    env: str


def save_run(
    folder: Directory,
    solution: Solution[State, EnvState, Memory, Extras] | PopulationSolution[State],
    agent: AbstractAgent[State, Memory, Extras],
    env: AbstractEnv[EnvState],
    *,
    title: str | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a run that was trained in Python into a folder, as `eqrl train` does.

    ```python
    solution = eqrl.train(agent, env, trainer, num_steps=20_000, key=jr.key(0))
    eqrl.save_run("runs/mine", solution, agent, env)
    # In another process:
    agent, state, env = eqrl.load_run("runs/mine", agent=agent, env=env)
    ```

    There will be `metrics.csv`, the policy of each seed or member, where Matplotlib is
    installed `learning_curve.png`, and `config.json`, in which agent and environment
    stand as they are printed. They are values of a program, of any classes and
    networks, so who loads the run gives them again. To resume training,
    `eqrl.save_solution` saves all of it.

    **Arguments:**

    - `folder`: made with those above it if it does not exist; it must be empty.
    - `solution`: from `train`, `train_seeds` or `train_population`, or of an error that
        one of them raised. For skills of `learn_skills` there is `save_skills`.
    - `agent`, `env`: with which it was trained.
    - `title`: of the plots; by default the names of their classes.
    - `overwrite`: deletes what an earlier run wrote into the folder.

    Raises a `ValueError`, and changes nothing, unless the folder may be written and the
    solution has at least one row of metrics.
    """
    check_is_agent(agent)
    check_is_env("env", env)
    if isinstance(solution, Skills):
        raise ValueError(
            "`solution` holds skills that were learned one after another; "
            "`eqrl.save_skills` saves them."
        )
    if isinstance(solution, OfflineSolution):
        raise ValueError(
            "`solution` is one of `train_offline`, which has no run to resume; "
            "`eqrl.save(directory, step, solution.state)` saves what was learned."
        )
    if isinstance(solution, Solution) and not solution.metrics:
        raise ValueError("`solution` has no row of metrics, so there was no training.")
    if title is None:
        title = f"{type(agent).__name__} on {type(env).__name__}"
    if isinstance(solution, PopulationSolution):
        kind, count = "member", solution.parents.shape[1]
    else:
        kind, count = "seed", max(solution.trainer_state.failed.size, 1)
    saved = SavedRun(
        kind=kind, count=count, title=title, agent=repr(agent), env=repr(env)
    )
    with claim_folder(folder, overwrite=overwrite) as path:
        content = {**versions(), "saved": dataclasses.asdict(saved)}
        write_json(path, CONFIG, content)
        if isinstance(solution, PopulationSolution):
            _write_population(path, title, solution)
        else:
            _write_solution(path, title, solution)


def read_saved(folder: Directory) -> SavedRun | None:
    """What `save_run` wrote; `None` if the run is one of the command line.

    Raises a `ValueError` if there is no run, or the file is damaged.
    """
    return read_json(config_of(folder), _parse, advice="mend it, or save the run again")


def _parse(content: Content) -> SavedRun | None:
    return SavedRun(**content["saved"]) if "saved" in content else None


def _write_population(path: Path, title: str, solution: PopulationSolution) -> None:
    num_generations = len(solution.returns)
    # Generations are of equal length, unless a later call changed that.
    numbers = np.arange(1, num_generations + 1)
    steps = numbers * step_of(solution) // num_generations
    write_stack(path, solution, steps)
    draw_scores(path, title, solution, steps)


def _write_solution(path: Path, title: str, solution: AnySolution) -> None:
    states = [solution.state]
    if solution.trainer_state.failed.ndim == 1:
        stack = gather(solution.state)
        count = solution.trainer_state.failed.size
        states = [take_element(stack, seed) for seed in range(count)]
    write_seeds(path, solution, states)
    if shown_metrics(solution.metrics):
        draw_solution(path, title, solution)
