from collections.abc import Sequence
from typing import Any

import jax.random as jr
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from .._agents import AbstractAgent
from .._custom_types import Mode
from .._evaluate import evaluate
from .._run import load_run, read_config
from ..envs import AbstractEnv
from ._commands import Evaluate


def returns_of_seeds(
    agent: AbstractAgent[Any, Any, Any],
    states: Sequence[Any],
    env: AbstractEnv[Any],
    *,
    num_episodes: int,
    mode: Mode,
    key: PRNGKeyArray,
) -> Float[np.ndarray, "seeds episodes"]:
    """Returns of episodes with each of a number of states of one agent."""
    return np.stack(
        [
            np.asarray(
                evaluate(
                    agent,
                    state,
                    env,
                    num_episodes=num_episodes,
                    mode=mode,
                    key=jr.fold_in(key, seed),
                ).returns
            )
            for seed, state in enumerate(states)
        ]
    )


def run_evaluate(command: Evaluate) -> int:
    """Prints how the policies of a run do."""
    num_seeds = read_config(command.folder).settings.seeds
    loaded = [load_run(command.folder, seed) for seed in range(num_seeds)]
    agent, _, env = loaded[0]
    returns = returns_of_seeds(
        agent,
        [state for _, state, _ in loaded],
        env,
        num_episodes=command.num_episodes,
        mode=command.mode,
        key=jr.key(command.seed),
    )
    print(f"returns of {command.num_episodes} episodes, {command.mode}:")
    print("seed       mean        std        min        max")
    for seed, row in enumerate(returns):
        numbers = (row.mean(), row.std(), row.min(), row.max())
        print(f"{seed:4d} " + " ".join(f"{number:10.2f}" for number in numbers))
    return 0
