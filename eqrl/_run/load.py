from pathlib import Path
from typing import Any

import equinox as eqx
import jax.random as jr

from .._agents import AbstractAgent
from .._storage.checkpoint import Directory, restore_part
from .._storage.json_file import Content, read_json, reason_of
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from .config import Population, Run, read_config
from .files import CONFIG, policy_folder


# What to do where a file of a run is damaged.
_ADVICE = "take it from a copy of the run, or train again"


def load_run(
    folder: Directory, seed: int = 0
) -> tuple[AbstractAgent[Any, Any, Any], Any, AbstractEnv[Any]]:
    """Loads an agent that `eqrl train` or `eqrl pbt` trained.

    ```python
    agent, state, env = eqrl.load_run("runs/x")
    eqrl.evaluate(agent, state, env, num_episodes=64, key=jr.key(0))
    ```

    **Arguments:**

    - `folder`: folder of the run.
    - `seed`: index of the seed, or of the member of a population, from 0.

    **Returns:**

    The agent with the hyperparameters of the end of training, its state then, and the
    environment.

    Raises a `ValueError` if a file is missing or is not as it was written, naming it.
    """
    run = read_config(folder)
    kind, count = run.schedule.kind, run.schedule.count
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
