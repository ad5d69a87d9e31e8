import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from .._agents import AbstractAgent
from .._progress import ProgressBar
from .._run import (
    Run,
    claim_folder,
    states_of_seeds,
    write_config,
    write_evaluation,
    write_solution,
)
from .._tensorboard import TensorBoard
from .._train import (
    Callback,
    NonFiniteError,
    Solution,
    TrainingInterrupted,
    train,
    train_seeds,
)
from .._trainer import Trainer
from ..envs import AbstractEnv
from ._commands import Train
from ._evaluate import returns_of_seeds


_NUM_EPISODES = 64


def run_train(command: Train) -> int:
    """Trains, writes the folder of the run, and gives the exit code."""
    run = command.run
    agent, env, trainer = run.make_agent(), run.make_env(), run.make_trainer()
    train_key, evaluation_key = jr.split(jr.key(run.settings.seed))
    _check(run, agent, env, trainer)
    folder = command.output.folder or _new_folder(run)
    claim_folder(folder)
    write_config(folder, run)
    exit_code = 0
    with ExitStack() as stack:
        callbacks: list[Callback] = [
            stack.enter_context(ProgressBar(run.settings.num_steps))
        ]
        if command.output.tensorboard:
            writer = TensorBoard(folder / "tensorboard", run.settings.seeds)
            callbacks.append(stack.enter_context(writer))
        try:
            solution = _solve(run, agent, env, trainer, callbacks, key=train_key)
        except NonFiniteError as error:
            solution, exit_code = error.solution, 1
            message = (
                f"At environment step {error.step} an observation, an action or a "
                "reward was nan or infinite, so training stopped; what was reached "
                "before it is kept. If the agent diverged, lower its learning rates or "
                "--reward-scale."
            )
        except TrainingInterrupted as error:
            solution, exit_code = error.solution, 130
            message = "Training was interrupted; what was reached is kept."
        else:
            message = _failed_seeds(solution)
    if message:
        print(f"eqrl: {message}", file=sys.stderr)
    if int(solution.counts.updates) == 0:
        print(
            f"eqrl: No update was made: the first {trainer.warmup_steps} steps act at "
            "random (--warmup-steps).",
            file=sys.stderr,
        )
    write_solution(folder, run, solution)
    states = states_of_seeds(solution, run.settings.seeds)
    returns = returns_of_seeds(
        agent,
        states,
        env,
        num_episodes=_NUM_EPISODES,
        mode="greedy",
        key=evaluation_key,
    )
    step = int(solution.metrics["step"][-1])
    write_evaluation(folder, returns, step=step, mode="greedy")
    means = ", ".join(f"{mean:.1f}" for mean in returns.mean(axis=1))
    print(f"mean return of {_NUM_EPISODES} greedy episodes: {means}")
    print(f"folder: {folder}")
    return exit_code


def _check(
    run: Run,
    agent: AbstractAgent[Any, Any, Any],
    env: AbstractEnv[Any],
    trainer: Trainer,
) -> None:
    """Raises what `train` would raise, before anything is written."""
    trainer.check_num_steps(run.settings.num_steps)
    if run.settings.log_every < 1:
        raise ValueError(f"`log_every={run.settings.log_every}` must be at least 1.")
    eqx.filter_eval_shape(trainer.init, agent, env, key=jr.key(0))


def _new_folder(run: Run) -> Path:
    env = run.settings.env.replace("/", "-")
    name = f"{run.agent}-{env}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while True:
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            # Another run began in this second.
            number += 1
        else:
            return folder


def _solve(
    run: Run,
    agent: AbstractAgent[Any, Any, Any],
    env: AbstractEnv[Any],
    trainer: Trainer,
    callbacks: list[Callback],
    *,
    key: PRNGKeyArray,
) -> Solution[Any, Any, Any, Any]:
    def callback(
        step: int, metrics: Mapping[str, np.ndarray | Array], state: Any
    ) -> None:
        for each in callbacks:
            each(step, dict(metrics), state)

    settings = run.settings
    if settings.seeds == 1:
        return train(
            agent,
            env,
            trainer,
            num_steps=settings.num_steps,
            key=key,
            log_every=settings.log_every,
            callback=callback,
        )
    return train_seeds(
        agent,
        env,
        trainer,
        num_seeds=settings.seeds,
        num_steps=settings.num_steps,
        key=key,
        log_every=settings.log_every,
        callback=callback,
    )


def _failed_seeds(solution: Solution[Any, Any, Any, Any]) -> str | None:
    """Of some seeds among several; where all failed there was an error."""
    failed = np.any(solution.metrics["nonfinite"] > 0, axis=0)
    if not np.any(failed):
        return None
    seeds = ", ".join(str(seed) for seed in np.flatnonzero(failed))
    return (
        "An observation, an action or a reward became nan or infinite in the seeds "
        f"{seeds}, which have stayed as they were before."
    )
