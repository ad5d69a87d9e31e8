from pathlib import Path
from typing import Any, overload

import equinox as eqx
import jax.random as jr

from .._agents import AbstractAgent
from .._agents.base import AnyAgent
from .._disk.store import count_skills, load_skill
from .._interaction.arguments import check_is_agent
from .._storage.checkpoint import Directory, restore_part
from .._storage.json_file import Content, read_json, reason_of
from .._types.custom_types import EnvState, Extras, Memory, State
from ..envs import AbstractEnv
from ..envs._base import AnyEnv, check_is_env
from .config import Population, Run, SkillSchedule, read_config
from .files import CONFIG, library_folder, policy_folder
from .saved import SavedRun, read_saved


# What to do where a file of a run is damaged.
_ADVICE = "take it from a copy of the run, or train again"


@overload
def load_run(
    folder: Directory,
    seed: int = 0,
    *,
    agent: AbstractAgent[State, Memory, Extras],
    env: AbstractEnv[EnvState],
) -> tuple[AbstractAgent[State, Memory, Extras], State, AbstractEnv[EnvState]]: ...


@overload
def load_run(
    folder: Directory,
    seed: int = 0,
    *,
    agent_type: type[AnyAgent] | None = None,
) -> tuple[AbstractAgent[Any, Any, Any], Any, AbstractEnv[Any]]: ...


def load_run(
    folder: Directory,
    seed: int = 0,
    *,
    agent_type: type[AnyAgent] | None = None,
    agent: AnyAgent | None = None,
    env: AnyEnv | None = None,
) -> tuple[AbstractAgent[Any, Any, Any], Any, AbstractEnv[Any]]:
    """Loads an agent that `eqrl train`, `eqrl pbt` or `eqrl disk` trained.

    Or one of a run that `eqrl.save_run` wrote, whose agent and environment are given.

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
    - `agent`, `env`: of a run that `eqrl.save_run` wrote, and of no other: as they were
        given to it. The hyperparameters of the members of a population are loaded.

    **Returns:**

    The agent with the hyperparameters of the end of training, its state then, and the
    environment.

    Raises a `ValueError` if a file is missing or is not as it was written, naming it,
    if there is no such policy, or if the agent is not of the kind that was trained.
    """
    saved = read_saved(folder)
    if saved is not None:
        return _load_saved(folder, saved, seed, agent, env)
    if agent is not None or env is not None:
        raise ValueError(
            f"`{folder}` is a run of the command line, which holds its agent and its "
            "environment; leave `agent` and `env` out."
        )
    run = read_config(folder, agent_type)
    kind, count = run.schedule.kind, run.schedule.count
    if isinstance(run.schedule, SkillSchedule):
        env = _make_env(folder, run)
        agent, state = load_skill(library_folder(folder), run.make_agent(), env, seed)
        return agent, state, env
    _check_seed(folder, seed, kind, count)
    return _load_policy(folder, kind, seed, run.make_agent(), _make_env(folder, run))


def _load_saved(
    folder: Directory,
    saved: SavedRun,
    seed: int,
    agent: AnyAgent | None,
    env: AnyEnv | None,
) -> tuple[AnyAgent, Any, AnyEnv]:
    if agent is None or env is None:
        raise ValueError(
            f"`{folder}` was written by `eqrl.save_run`; give the agent and the "
            "environment of the program that did: `eqrl.load_run(folder, agent=agent, "
            f"env=env)`. The agent was {' '.join(saved.agent.split())}."
        )
    check_is_agent(agent)
    check_is_env("env", env)
    _check_seed(folder, seed, saved.kind, saved.count)
    return _load_policy(folder, saved.kind, seed, agent, env)


def _check_seed(folder: Directory, seed: int, kind: str, count: int) -> None:
    if not 0 <= seed < count:
        raise ValueError(
            f"`seed={seed}` is not in `{folder}`, which has the {kind}s 0 to "
            f"{count - 1}."
        )


def _load_policy(
    folder: Directory, kind: str, index: int, agent: AnyAgent, env: AnyEnv
) -> tuple[AnyAgent, Any, AnyEnv]:
    like = eqx.filter_eval_shape(agent.init, env.spec, key=jr.key(0))
    path = policy_folder(folder, kind, index)
    if kind == "member":
        agent, state = restore_part(path, (agent, like), None, None, advice=_ADVICE)
    else:
        state = restore_part(path, like, None, None, advice=_ADVICE)
    return agent, state, env


def count_policies(folder: Directory, run: Run) -> int:
    """How many policies a folder holds, of which some skills may be missing."""
    if isinstance(run.schedule, SkillSchedule):
        return count_skills(library_folder(folder))
    return run.schedule.count


def _make_env(folder: Directory, run: Run) -> AnyEnv:
    try:
        return run.make_env()
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The environment in `{Path(folder) / CONFIG}` cannot be made: "
            f"{reason_of(error)}."
        ) from error


def best_policy(folder: Directory, run: Run) -> int:
    """The index of the best member of a population; 0 for a run of seeds."""
    path = Path(folder) / "evaluation.json"
    if not isinstance(run.schedule, Population):
        return 0
    best = read_json(path, _parse_best, advice="give `--seed`, the index of a member")
    if not 0 <= best < run.schedule.size:
        raise ValueError(f"`best` in `{path}` is {best}, which is no member.")
    return best


def _parse_best(content: Content) -> int:
    known = {"step", "mode", "num_episodes", "mean_returns", "returns", "best"}
    if content.keys() - known:
        raise TypeError(f"it holds {sorted(content.keys() - known)} too")
    if not isinstance(content["best"], int):
        raise TypeError(f"`best` is {content['best']!r}")
    return content["best"]
