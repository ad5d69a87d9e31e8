import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.random as jr

from .._agents import AbstractAgent
from .._agents.base import AnyAgent
from .._disk.store import count_skills, load_skill
from .._storage.checkpoint import Directory, restore
from ..envs import AbstractEnv
from .config import Population, Run, SkillSchedule, read_config
from .files import library_folder, policy_folder


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

    Raises a `ValueError` if there is no such policy, or `agent_type` is not the class
    that was trained.
    """
    run = read_config(folder, agent_type)
    kind, count = run.schedule.kind, run.schedule.count
    if isinstance(run.schedule, SkillSchedule):
        env = run.make_env()
        agent, state = load_skill(library_folder(folder), run.make_agent(), env, seed)
        return agent, state, env
    if not 0 <= seed < count:
        raise ValueError(
            f"`seed={seed}` is not in `{folder}`, which has the {kind}s 0 to "
            f"{count - 1}."
        )
    agent, env = run.make_agent(), run.make_env()
    like = eqx.filter_eval_shape(agent.init, env.spec, key=jr.key(0))
    path = policy_folder(folder, kind, seed)
    if isinstance(run.schedule, Population):
        agent, state = restore(path, (agent, like))
    else:
        state = restore(path, like)
    return agent, state, env


def count_policies(folder: Directory, run: Run) -> int:
    """How many policies a folder holds, of which some skills may be missing."""
    if isinstance(run.schedule, SkillSchedule):
        return count_skills(library_folder(folder))
    return run.schedule.count


def best_policy(folder: Directory) -> int:
    """The index of the best member of a population; 0 for other runs."""
    path = Path(folder) / "evaluation.json"
    if not path.is_file():
        return 0
    return int(json.loads(path.read_text()).get("best", 0))
