"""The pipeline behind `eqrl train`, `eqrl pbt` and `eqrl disk`."""

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

import jax.random as jr
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from .._agents.base import AnyAgent
from .._disk import Skills
from .._interaction.evaluate_skills import SkillEvaluation
from .._population import PopulationSolution
from .._run import Run, claim_folder, new_folder, write_config, write_evaluation
from .._training.solution import AnySolution, NonFiniteError, TrainingInterrupted
from .._training.trainer import Trainer
from ..envs._base import AnyEnv
from .evaluate import NUM_EPISODES, returns_of_policies


NUM_SKILL_EPISODES = 8
"""Episodes of each skill by which skills are judged at the end of training."""

Reached = TypeVar("Reached", AnySolution, PopulationSolution, Skills[Any])


@dataclasses.dataclass(frozen=True)
class Policies:
    """What a training ends with: an agent and its state for each seed, member or skill.

    There is none if training ended before the first skill.
    """

    pairs: list[tuple[AnyAgent, Any]]
    step: int
    """Environment steps of each seed or member, or of all skills."""
    best: int | None = None


@runtime_checkable
class Job(Protocol[Reached]):
    """What `eqrl train`, `eqrl pbt` and `eqrl disk` do differently."""

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

    def has_learned(self, reached: Reached) -> bool:
        """Whether any update was made."""
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


def print_skills(evaluations: Sequence[SkillEvaluation]) -> None:
    """Prints how well the skills of each seed or member can be told apart."""
    accuracies = ", ".join(f"{float(each.accuracy):.3f}" for each in evaluations)
    returns = ", ".join(
        f"{np.mean(each.diversity_returns):.1f}" for each in evaluations
    )
    print(f"accuracy of the discriminator: {accuracies}")
    print(
        f"mean diversity return of {NUM_SKILL_EPISODES} episodes of each skill: "
        f"{returns}"
    )


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
    if not job.has_learned(reached):
        _say(
            f"No update was made: the first {job.trainer.warmup_steps} steps act at "
            "random (--warmup-steps)."
        )
    policies = job.write(folder, reached)
    if policies.pairs:
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
    else:
        _say(f"No {run.schedule.kind} was learned to its end, so none is evaluated.")
    print(f"folder: {folder}")
    return exit_code


def _say(message: str) -> None:
    print(f"eqrl: {message}", file=sys.stderr)
