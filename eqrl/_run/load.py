from pathlib import Path
from typing import Any

import equinox as eqx
import jax.random as jr

from .._agents import AbstractAgent
from .._agents.base import AnyAgent
from .._disk.store import count_skills, load_skill
from .._storage.checkpoint import Directory, restore_part
from .._storage.json_file import Content, read_json, reason_of
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from .config import Population, Run, SkillSchedule, read_config
from .files import CONFIG, library_folder, policy_folder


# What to do where a file of a run is damaged.
_ADVICE = "take it from a copy of the run, or train again"


def load_run(
    folder: Directory,
    seed: int = 0,
    *,
    agent_type: type[AnyAgent] | None = None,
) -> tuple[AbstractAgent[Any, Any, Any], Any, AbstractEnv[Any]]:
    """Loads an agent that `eqrl train`, `eqrl pbt` or `eqrl disk` trained.

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

    **Returns:**

    The agent with the hyperparameters of the end of training, its state then, and the
    environment.

    Raises a `ValueError` if a file is missing or is not as it was written, naming it,
    if there is no such policy, or if `agent_type` is not the class that was trained.
    """
    run = read_config(folder, agent_type)
    kind, count = run.schedule.kind, run.schedule.count
    if isinstance(run.schedule, SkillSchedule):
        env = _make_env(folder, run)
        agent, state = load_skill(library_folder(folder), run.make_agent(), env, seed)
        return agent, state, env
    if not 0 <= seed < count:
        raise ValueError(
            f"`seed={seed}` is not in `{folder}`, which has the {kind}s 0 to "
            f"{count - 1}."
        )
    agent, env = run.make_agent(), _make_env(folder, run)
    like = eqx.filter_eval_shape(agent.init, env.spec, key=jr.key(0))
    path = policy_folder(folder, kind, seed)
    if isinstance(run.schedule, Population):
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
