"""The pipeline behind `eqrl train` and `eqrl pbt`."""

import dataclasses
import sys
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax.random as jr
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from .._agents.base import AnyAgent
from .._population import PopulationSolution
from .._run import Run, claim_folder, new_folder, write_config, write_evaluation
from .._training.solution import AnySolution, NonFiniteError, TrainingInterrupted
from .._training.trainer import Trainer
from ..envs._base import AnyEnv
from .evaluate import NUM_EPISODES, returns_of_policies


Reached = TypeVar("Reached", AnySolution, PopulationSolution)


@dataclasses.dataclass(frozen=True)
class Policies:
    """What a training ends with: an agent and its state for each seed or member."""

    pairs: list[tuple[AnyAgent, Any]]
    step: int
    """Environment steps of each."""
    best: int | None = None


@runtime_checkable
class Job(Protocol[Reached]):
    """What `eqrl train` and `eqrl pbt` do differently."""

    @property
    def run(self) -> Run: ...

    @property
    def env(self) -> AnyEnv: ...

    @property
    def trainer(self) -> Trainer: ...

    def check(self) -> None:
        """Raises what training would raise, before anything is written."""
        ...

    def train(self, folder: Path, *, key: PRNGKeyArray) -> Reached: ...

    def failed(self, reached: Reached) -> Bool[np.ndarray, " policies"]:
        """Which seeds or members met a value that is not finite."""
        ...

    def write(self, folder: Path, reached: Reached) -> Policies:
        """Writes metrics, pictures and policies, and returns the last."""
        ...

    def report(
        self,
        folder: Path,
        reached: Reached,
        policies: Policies,
        mean_returns: Float[np.ndarray, " policies"],
        *,
        key: PRNGKeyArray,
    ) -> None:
        """Prints what was reached."""
        ...


def run_training(
    job: Job[Reached], folder: Path | None, *, overwrite: bool = False
) -> int:
    """Trains, writes the folder of the run, and returns the exit code."""
    job.check()
    folder = folder or new_folder(job.run.name)
    with claim_folder(folder, overwrite=overwrite):
        return _train_into(folder, job)


def _train_into(folder: Path, job: Job[Reached]) -> int:
    run = job.run
    train_key, evaluation_key = jr.split(jr.key(run.settings.seed))
    write_config(folder, run)
    exit_code = 0
    try:
        reached = job.train(folder, key=train_key)
    except NonFiniteError as error:
        reached, exit_code = error.solution, 1
        _say(
            f"At environment step {error.step} {error.what} was nan or infinite, so "
            "training stopped; what was reached before it is kept. If the agent "
            "diverged, lower its learning rates or --reward-scale."
        )
    except TrainingInterrupted as error:
        reached, exit_code = error.solution, 130
        _say("Training was interrupted; what was reached is kept.")
    failed = np.flatnonzero(job.failed(reached))
    if exit_code != 1 and len(failed) > 0:
        names = ", ".join(str(index) for index in failed)
        _say(
            f"Something became nan or infinite in the {run.schedule.kind}s {names}; "
            "what they reached before it is kept."
        )
    if int(reached.counts.updates) == 0:
        _say(
            f"No update was made: the first {job.trainer.warmup_steps} steps act at "
            "random (--warmup-steps)."
        )
    policies = job.write(folder, reached)
    returns = returns_of_policies(
        policies.pairs,
        job.env,
        num_episodes=NUM_EPISODES,
        mode="greedy",
        key=evaluation_key,
    )
    write_evaluation(
        folder, returns, step=policies.step, mode="greedy", best=policies.best
    )
    job.report(folder, reached, policies, returns.mean(axis=1), key=evaluation_key)
    print(f"folder: {folder}")
    return exit_code


def _say(message: str) -> None:
    print(f"eqrl: {message}", file=sys.stderr)
