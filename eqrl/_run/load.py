import dataclasses
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, overload

import equinox as eqx
import jax.random as jr
from typing_extensions import TypeVar

from .._agents.base import AbstractAgent, AgentOfKind, AnyAgent, layers
from .._agents.wrappers.intrinsic import Intrinsic
from .._disk.library import Skills, count_skills, load_skill
from .._interaction.fit import check_is_agent
from .._population.solution import PopulationSolution
from .._reporting.learning_curve import shown_metrics
from .._storage.checkpoint import Directory, restore_part, saved_steps
from .._storage.files import Content, read_json, reason_of
from .._training.rows import OfflineSolution, Solution
from .._types.custom_types import Agents, EnvState, Extras, Memory, State
from ..envs import AbstractEnv
from ..envs._base import AnyEnv, check_is_env
from ..envs._make import name_of
from .config import (
    Population,
    Run,
    SkillSchedule,
    read_config,
    read_schedule,
    read_title,
)
from .files import (
    CONFIG,
    checkpoints_folder,
    claim_folder,
    config_of,
    library_folder,
    policy_folder,
    versions,
    write_json,
)
from .write import SWEEP, draw_scores, draw_solution, write_members, write_policies


Env = TypeVar("Env", bound=AnyEnv, default=AnyEnv)


@dataclasses.dataclass(frozen=True)
class SavedRun:
    """Contents of the `config.json` that `save_run` writes.

    - `kind`, `count`: the word for one of its policies, and how many there are.
    - `title`: of the plots.
    - `agent`, `env`: their printed forms, for people to read.
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

    It writes `metrics.csv`, the policy of each seed or member, `learning_curve.png` if
    Matplotlib is installed, and `config.json`, which holds agent and environment as
    they are printed. They cannot be rebuilt from the file; pass them to `load_run`. To
    resume training, save the solution with `eqrl.save_solution`.

    **Arguments:**

    - `folder`: created with its parents if it does not exist; it must be empty.
    - `solution`: from `train`, `train_seeds` or `train_population`, or from an error
        that one of them raised. For the skills of `learn_skills`, use `save_skills`.
    - `agent`, `env`: those it was trained with.
    - `title`: title of the plots; by default the names of the agent and the environment
        inside their wrappers, such as "SAC on eqrl/Point", after those of intrinsic
        rewards.
    - `overwrite`: deletes what an earlier run wrote into the folder.

    Raises a `ValueError`, and changes nothing, unless the folder may be written and the
    solution has at least one row of metrics or, of a population, one generation.
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
    if isinstance(solution, PopulationSolution) and len(solution.scores) == 0:
        raise ValueError(
            "`solution` has no complete generation, so there are no scores to write; "
            "resume its training, for which `eqrl.save_solution` saves it."
        )
    if title is None:
        *outer, inner = layers(agent)
        rewards = [each.reward for each in outer if isinstance(each, Intrinsic)]
        names = [type(each).__name__ for each in (*rewards, inner)]
        title = f"{' with '.join(names)} on {name_of(env)}"
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
            write_members(path, solution)
            draw_scores(path, title, solution)
        else:
            write_policies(path, solution)
            if shown_metrics(solution.metrics):
                draw_solution(path, title, solution)


def read_saved(folder: Directory) -> SavedRun | None:
    """Reads a run that `save_run` wrote; `None` if the command line wrote it.

    Raises a `ValueError` if there is no run, or the file is damaged.
    """
    return read_json(
        config_of(folder),
        lambda content: SavedRun(**content["saved"]) if "saved" in content else None,
        advice="mend it, or save the run again",
    )


def read_summary(folder: Directory) -> tuple[str, str]:
    """The title of a run, and the kind of its policies: `seed`, `member` or `skill`."""
    saved = read_saved(folder)
    if saved is not None:
        return saved.title, saved.kind
    return read_title(folder), read_schedule(folder).kind


@overload
def load_run(
    folder: Directory,
    seed: int = 0,
    *,
    agent: AgentOfKind[State, Agents],
    env: Env,
) -> tuple[Agents, State, Env]: ...


@overload
def load_run(
    folder: Directory,
    seed: int = 0,
    *,
    agent_type: type[AnyAgent] | None = None,
    make_env: Callable[..., AnyEnv] | None = None,
) -> tuple[AnyAgent, Any, AnyEnv]: ...


def load_run(
    folder: Directory,
    seed: int = 0,
    *,
    agent_type: type[AnyAgent] | None = None,
    make_env: Callable[..., AnyEnv] | None = None,
    agent: Any = None,
    env: Any = None,
) -> tuple[Any, Any, Any]:
    """Loads an agent that `eqrl train`, `eqrl pbt` or `eqrl disk` trained.

    For a run of `eqrl.save_run`, pass its agent and environment.

    ```python
    agent, state, env = eqrl.load_run("runs/x")
    eqrl.evaluate(agent, state, env, num_episodes=64, key=jr.key(0))
    ```

    **Arguments:**

    - `folder`: folder of the run.
    - `seed`: index of the seed, of the member of a population, or of the skill of
        `eqrl disk`, from 0.
    - `agent_type`: the class that was trained with `--agent package.module:Class`. It
        is never imported because the folder names it.
    - `make_env`: likewise the function given as `--env package.module:make`.
    - `agent`, `env`: only for a run that `eqrl.save_run` wrote: those passed to it. The
        hyperparameters of the members of a population are loaded.

    **Returns:**

    The agent with its hyperparameters at the end of training, its final state, and the
    environment.

    Raises a `ValueError` if a file is missing or is not as it was written, naming it,
    if there is no such policy, or if the agent is not of the kind that was trained.
    """
    saved = read_saved(folder)
    if saved is None:
        if agent is not None or env is not None:
            raise ValueError(
                f"`{folder}` is a run of the command line, which holds its agent and "
                "its environment; leave `agent` and `env` out."
            )
        run = read_config(folder, agent_type, make_env)
        kind, count = run.schedule.kind, run.schedule.count
        agent = run.make_agent()
        try:
            env = run.make_env()
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"The environment in `{Path(folder) / CONFIG}` cannot be made: "
                f"{reason_of(error)}."
            ) from error
        if isinstance(run.schedule, SkillSchedule):
            # A library may have fewer skills than its run will have at the end.
            agent, state = load_skill(library_folder(folder), agent, env, seed)
            return agent, state, env
        check_has_policies(folder, run)
    else:
        if agent is None or env is None:
            raise ValueError(
                f"`{folder}` was written by `eqrl.save_run`; give the agent and the "
                "environment of the program that did: `eqrl.load_run(folder, "
                "agent=agent, env=env)`. The agent was "
                f"{' '.join(saved.agent.split())}."
            )
        check_is_agent(agent)
        check_is_env("env", env)
        kind, count = saved.kind, saved.count
    if not 0 <= seed < count:
        raise ValueError(
            f"`seed={seed}` is not in `{folder}`, which has the {kind}s 0 to "
            f"{count - 1}."
        )
    path = policy_folder(folder, kind, seed)
    like = eqx.filter_eval_shape(agent.init, env.spec, key=jr.key(0))
    advice = "take it from a copy of the run, or train again"
    if kind == "member":
        agent, state = restore_part(path, (agent, like), None, None, advice=advice)
    else:
        state = restore_part(path, like, None, None, advice=advice)
    return agent, state, env


def check_has_policies(folder: Directory, run: Run) -> None:
    """Checks that a folder is that of a run whose training has ended.

    Warns if its checkpoints are newer than its policies.
    """
    folder = Path(folder)
    if (folder / SWEEP).exists():
        raise ValueError(
            f"`{folder}` is the folder of a sweep, not of a run; `eqrl export` takes a "
            "policy from it, and `eqrl.sweep` gives all of them."
        )
    if not (folder / "policy").exists():
        raise ValueError(
            f"There is no `{folder / 'policy'}`, so the training has not ended. "
            f"`{run.resuming(folder)}` resumes it, if it was stopped."
        )
    # Training was resumed after it had ended or failed, and was stopped again.
    saved = saved_steps(policy_folder(folder, run.schedule.kind, 0))
    newest = max(saved_steps(checkpoints_folder(folder)), default=0)
    if newest > max(saved, default=newest):
        warnings.warn(
            f"The policies in `{folder}` are those of step {saved[-1]}, but its "
            f"checkpoints reach step {newest}; `{run.resuming(folder)}` resumes it.",
            # Python shows it once if all are from the same line.
            stacklevel=1,
        )


def count_policies(folder: Directory, run: Run) -> int:
    """Number of policies in a folder, where some skills may be missing."""
    if isinstance(run.schedule, SkillSchedule):
        return count_skills(library_folder(folder))
    return run.schedule.count


def best_policy(folder: Directory, run: Run) -> int:
    """The index of the best member of a population; 0 for a run of seeds."""
    if not isinstance(run.schedule, Population):
        return 0

    def parse(content: Content) -> int:
        known = {"step", "mode", "num_episodes", "mean_returns", "returns", "best"}
        if content.keys() - known:
            raise TypeError(f"it holds {sorted(content.keys() - known)} too")
        if not isinstance(content["best"], int):
            raise TypeError(f"`best` is {content['best']!r}")
        return content["best"]

    path = Path(folder) / "evaluation.json"
    best = read_json(path, parse, advice="give `--seed`, the index of a member")
    if not 0 <= best < run.schedule.size:
        raise ValueError(f"`best` in `{path}` is {best}, which is not a member.")
    return best
