import sys
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import equinox as eqx
import jax.random as jr
import numpy as np
from jaxtyping import Array, PRNGKeyArray

from .._agents import AbstractAgent
from .._reporting.progress import ProgressBar
from .._reporting.tensorboard import TensorBoard
from .._run import (
    Run,
    Training,
    claim_folder,
    states_of_seeds,
    write_config,
    write_evaluation,
    write_solution,
)
from .._training.solution import NonFiniteError, Solution, TrainingInterrupted
from .._training.train import Callback, train, train_seeds
from .._training.trainer import Trainer
from ..envs import AbstractEnv
from .commands import Train
from .evaluate import NUM_EPISODES, returns_of_policies
from .folder import new_folder
from .skills import report_skills


def run_train(command: Train) -> int:
    """Trains, writes the folder of the run, and gives the exit code."""
    run = command.run
    agent, env, trainer = run.make_agent(), run.make_env(), run.make_trainer()
    train_key, evaluation_key = jr.split(jr.key(run.settings.seed))
    skill_key = jr.fold_in(evaluation_key, run.schedule.seeds)
    _check(run, agent, env, trainer)
    folder = command.folder or new_folder(run)
    claim_folder(folder)
    write_config(folder, run)
    exit_code = 0
    with ExitStack() as stack:
        callbacks: list[Callback] = [
            stack.enter_context(ProgressBar(run.schedule.num_steps))
        ]
        if command.tensorboard:
            writer = TensorBoard(folder / "tensorboard", run.schedule.seeds)
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
    states = states_of_seeds(solution, run.schedule.seeds)
    returns = returns_of_policies(
        [(agent, state) for state in states],
        env,
        num_episodes=NUM_EPISODES,
        mode="greedy",
        key=evaluation_key,
    )
    step = int(solution.metrics["step"][-1])
    write_evaluation(folder, returns, step=step, mode="greedy")
    means = ", ".join(f"{mean:.1f}" for mean in returns.mean(axis=1))
    print(f"mean return of {NUM_EPISODES} greedy episodes: {means}")
    if run.skills is not None:
        report_skills(folder, run, agent, states, env, key=skill_key)
    print(f"folder: {folder}")
    return exit_code


def _check(
    run: Run[Training],
    agent: AbstractAgent[Any, Any, Any],
    env: AbstractEnv[Any],
    trainer: Trainer,
) -> None:
    """Raises what `train` would raise, before anything is written."""
    trainer.check_num_steps(run.schedule.num_steps)
    if run.schedule.log_every < 1:
        raise ValueError(f"`log_every={run.schedule.log_every}` must be at least 1.")
    eqx.filter_eval_shape(trainer.init, agent, env, key=jr.key(0))


def _solve(
    run: Run[Training],
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

    schedule = run.schedule
    if schedule.seeds == 1:
        return train(
            agent,
            env,
            trainer,
            num_steps=schedule.num_steps,
            key=key,
            log_every=schedule.log_every,
            callback=callback,
        )
    return train_seeds(
        agent,
        env,
        trainer,
        num_seeds=schedule.seeds,
        num_steps=schedule.num_steps,
        key=key,
        log_every=schedule.log_every,
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
