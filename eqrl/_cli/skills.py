from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from .._agents import AbstractAgent
from .._interaction.evaluate_skills import evaluate_skills
from .._run import Run, Training, write_skills
from ..envs import AbstractEnv


_NUM_EPISODES = 8


def report_skills(
    folder: Path,
    run: Run[Training],
    agent: AbstractAgent[Any, Any, Any],
    states: Sequence[Any],
    env: AbstractEnv[Any],
    *,
    key: PRNGKeyArray,
) -> None:
    """Writes and prints how well the skills of each seed can be told apart."""
    evaluations = [
        evaluate_skills(
            agent,
            state,
            env,
            num_episodes=_NUM_EPISODES,
            key=jr.fold_in(key, seed),
        )
        for seed, state in enumerate(states)
    ]
    write_skills(folder, run, evaluations)
    accuracies = ", ".join(f"{float(each.accuracy):.3f}" for each in evaluations)
    returns = ", ".join(
        f"{np.mean(each.diversity_returns):.1f}" for each in evaluations
    )
    print(f"accuracy of the discriminator: {accuracies}")
    print(f"mean diversity return of {_NUM_EPISODES} episodes of each skill: {returns}")
