from collections.abc import Sequence
from typing import Any

import jax.random as jr
import numpy as np
from jaxtyping import Float, PRNGKeyArray

from .._agents.base import AnyAgent
from .._interaction.evaluate import evaluate
from .._run.config import read_config
from .._run.load import count_policies, load_run
from .._types.custom_types import Mode
from ..envs._base import AnyEnv
from .commands import Evaluate, import_given


def num_episodes_of(env: str) -> int:
    """Number of episodes to evaluate each policy at the end of training.

    The random starting states move the mean return of 64 episodes of Pendulum-v1 by
    about 10. A step of brax costs about a thousand times as much as one of another
    environment.
    """
    return 64 if env.startswith("brax/") else 1_024


def evaluation_key(seed: int) -> PRNGKeyArray:
    """The key of evaluations, which no training derives from any seed."""
    return jr.split(jr.key(seed))[1]


def returns_of_policies(
    policies: Sequence[tuple[AnyAgent, Any]],
    env: AnyEnv,
    *,
    num_episodes: int,
    mode: Mode,
    key: PRNGKeyArray,
) -> Float[np.ndarray, "policies episodes"]:
    """Returns of episodes with each agent and its state."""
    return np.stack(
        [
            np.asarray(
                evaluate(
                    agent,
                    state,
                    env,
                    num_episodes=num_episodes,
                    mode=mode,
                    key=jr.fold_in(key, index),
                ).returns
            )
            for index, (agent, state) in enumerate(policies)
        ]
    )


def run_evaluate(command: Evaluate) -> int:
    """Prints statistics of the returns of each policy of a run."""
    agent_type = import_given(command.agent)
    run = read_config(command.folder, agent_type)
    schedule = run.schedule
    loaded = [
        load_run(command.folder, index, agent_type=agent_type)
        for index in range(count_policies(command.folder, run))
    ]
    if not loaded:
        raise ValueError(f"There is no {schedule.kind} in `{command.folder}` yet.")
    _, _, env = loaded[0]
    num_episodes = command.num_episodes
    if num_episodes is None:
        num_episodes = num_episodes_of(run.settings.env)
    returns = returns_of_policies(
        [(agent, state) for agent, state, _ in loaded],
        env,
        num_episodes=num_episodes,
        mode=command.mode,
        key=evaluation_key(command.seed),
    )
    print(f"returns of {num_episodes} episodes, {command.mode}:")
    width = len(schedule.kind)
    print(f"{schedule.kind}       mean        std        min        max")
    for index, row in enumerate(returns):
        numbers = (row.mean(), row.std(), row.min(), row.max())
        columns = " ".join(f"{number:10.2f}" for number in numbers)
        print(f"{index:{width}d} {columns}")
    return 0
