import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.random as jr

from .._agents import AbstractAgent
from .._agents.base import AnyAgent
from .._storage.checkpoint import Directory, restore
from ..envs import AbstractEnv
from .config import Population, read_config
from .files import policy_folder


def load_run(
    folder: Directory,
    seed: int = 0,
    *,
    agent_type: type[AnyAgent] | None = None,
) -> tuple[AbstractAgent[Any, Any, Any], Any, AbstractEnv[Any]]:
    """Loads an agent that `eqrl train` or `eqrl pbt` trained.

    ```python
    agent, state, env = eqrl.load_run("runs/x")
    eqrl.evaluate(agent, state, env, num_episodes=64, key=jr.key(0))
    ```

    **Arguments:**

    - `folder`: folder of the run.
    - `seed`: index of the seed, or of the member of a population, from 0.
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


def best_policy(folder: Directory) -> int:
    """The index of the best member of a population; 0 for a run of seeds."""
    path = Path(folder) / "evaluation.json"
    if not path.is_file():
        return 0
    return int(json.loads(path.read_text()).get("best", 0))
