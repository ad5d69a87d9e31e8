"""The pipeline that `eqrl train`, `eqrl pbt` and `eqrl disk` share."""

import abc
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Generic, TypeVar

import jax.random as jr
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray, PyTree

from .._agents.base import AnyAgent
from .._disk.library import Skills
from .._population.solution import PopulationSolution
from .._pytree.tree import giving_away
from .._run.config import Run, Schedule, write_config
from .._run.files import checkpoints_folder, claim_folder, new_folder
from .._run.solutions import Checkpoints, step_of
from .._run.write import write_evaluation
from .._storage.checkpoint import saved_steps
from .._storage.files import locked
from .._training.host_loop import (
    Interrupt,
    NonFiniteError,
    TrainingInterrupted,
    deferred_interrupt,
)
from .._training.replay import replay_size
from .._training.rows import AnySolution, History, Solution
from .._training.trainer import AnyTrainerState, Trainer
from .._types.installed import is_installed, not_installed
from ..envs._base import AnyEnv
from ..envs._host import SimulatorError, are_present, is_host
from .commands import Evaluate, Place, tell
from .finished import (
    WHOLE_GAMES,
    evaluation_env,
    evaluation_key,
    num_episodes_of,
    returns_of_policies,
)


def say(message: str) -> None:
    """Writes one line to standard error, if it is still open."""
    with contextlib.suppress(OSError, ValueError):
        print(f"eqrl: {message}", file=sys.stderr, flush=True)


class Reporter:
    """A callback that prints its first error, after which training continues.

    If the wrapped callback is a context manager, this enters and leaves it.
    """

    def __init__(self, name: str, report: Callable[..., object]) -> None:
        """**Arguments:**

        - `name`: a name for the message, in words.
        - `report`: the callback.
        """
        self._name = name
        self._report = report
        self._has_failed = False

    def __enter__(self) -> "Reporter":
        if isinstance(self._report, AbstractContextManager):
            self._try(self._report.__enter__)
        return self

    def __exit__(self, *exception: object) -> None:
        del exception
        if isinstance(self._report, AbstractContextManager):
            self._try(self._report.__exit__, None, None, None)

    def __call__(self, *arguments: object) -> None:
        if not self._has_failed:
            self._try(self._report, *arguments)

    def _try(self, function: Callable[..., object], *arguments: object) -> None:
        try:
            function(*arguments)
        except Exception as error:
            if not self._has_failed:
                say(f"{self._name} failed, and training continues: {message_of(error)}")
            self._has_failed = True


@contextlib.contextmanager
def reporting(reports: Mapping[str, Callable[..., object]]) -> Iterator[list[Reporter]]:
    """The callbacks, by their names for messages, each as a `Reporter`."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Reporter(*report)) for report in reports.items()]


@contextlib.contextmanager
def without_ending(name: str) -> Iterator[None]:
    """Prints an error raised inside the block and continues."""
    try:
        yield
    except Exception as error:
        say(f"{name} failed: {message_of(error)}")


def message_of(error: BaseException) -> str:
    """The message of an error, or its name if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def open_checkpoints(folder: Path, *, every_steps: int | None = None) -> Checkpoints:
    """Opens the checkpoints of a run; only the first failure is printed."""
    return Checkpoints(
        checkpoints_folder(folder),
        every_steps=every_steps,
        on_error=lambda error: say(
            "A checkpoint could not be written, and training continues: "
            + message_of(error)
        ),
    )


def warn_without_reward(metrics: History, returns: Float[np.ndarray, "..."]) -> None:
    """Warns if neither training nor its evaluation had any reward to learn from."""
    trained = [x for name, x in metrics.items() if name.startswith("episode_return")]
    # Skills are learned from their own reward.
    if (
        trained
        and "intrinsic_reward" not in metrics
        and not any(np.any(np.nan_to_num(x)) for x in [*trained, returns])
    ):
        say(
            "Every return was 0, so there was no reward to learn from. `eqrl/Point` "
            "gives one with a goal: --env-option 'goal=(1,2)'."
        )


Result = TypeVar("Result", AnySolution, PopulationSolution, Skills[PyTree])


@dataclasses.dataclass(frozen=True)
class Policies:
    """Result of a training: an agent and its state for each seed, member or skill.

    There is none if training ended before the first skill.
    """

    pairs: list[tuple[AnyAgent, PyTree]]
    step: int
    """Environment steps of each seed or member, or of all skills."""
    best: int | None = None


@dataclasses.dataclass(frozen=True)
class AbstractJob(abc.ABC, Generic[Schedule, Result]):
    """Steps in which `eqrl train`, `eqrl pbt` and `eqrl disk` differ."""

    run: Run[Schedule]
    agent: AnyAgent
    env: AnyEnv
    trainer: Trainer

    @property
    def key(self) -> PRNGKeyArray:
        """The key of the training, from which no evaluation key is derived."""
        return jr.split(jr.key(self.run.settings.seed))[0]

    @abc.abstractmethod
    def check(self) -> None:
        """Checks all arguments, before anything is written."""

    @abc.abstractmethod
    def shapes(self) -> tuple[AnyTrainerState, int]:
        """Shapes of a training state, and how many such states are trained together."""

    @abc.abstractmethod
    def load(self, folder: Path) -> Result | None:
        """Loads the last checkpoint in the folder; `None` if there is none."""

    @abc.abstractmethod
    def train(
        self, folder: Path, initial: Result | None, every_steps: int | None
    ) -> Result:
        """Trains from the beginning or resumes, and writes checkpoints and metrics."""

    @abc.abstractmethod
    def failed(self, reached: Result) -> Bool[np.ndarray, " policies"]:
        """Which seeds or members met a value that is not finite."""

    @abc.abstractmethod
    def has_learned(self, reached: Result) -> bool:
        """Whether any update was made."""

    @abc.abstractmethod
    def write(self, folder: Path, reached: Result) -> Policies:
        """Writes metrics and policies, and returns the policies."""

    @abc.abstractmethod
    def draw(self, folder: Path, reached: Result) -> None:
        """Draws the results."""

    @abc.abstractmethod
    def report(
        self,
        folder: Path,
        reached: Result,
        policies: Policies,
        returns: Float[np.ndarray, "policies episodes"],
        *,
        key: PRNGKeyArray,
    ) -> None:
        """Prints the results."""


def run_training(job: AbstractJob[Any, Result], place: Place) -> int:
    """Trains, writes the folder of the run, and returns the exit code."""
    job.check()
    if evaluation_env(job.env).spec.max_steps is None:
        raise ValueError(
            "The environment has no time limit (`spec.max_steps` is None), so an "
            "episode of the evaluation after training might never end; give "
            "`--max-steps`, or put an `eqrl.envs.TimeLimit` around your own."
        )
    tell(f"settings of {job.run}")
    state, number = job.shapes()
    transitions, num_bytes = replay_size(state)
    each = "" if number == 1 else f"{number} x "
    size = f"{number * num_bytes / 1e9:.2f} GB"
    if number * num_bytes < 1e8:
        size = f"{number * num_bytes / 1e6:.1f} MB"
    tell(f"replay: {each}{transitions:,} transitions, {size}")
    if evaluation_env(job.env) is not job.env:
        tell(f"Evaluations are {WHOLE_GAMES}.")
    if place.resume and place.folder is not None:
        with locked(place.folder), deferred_interrupt() as interrupt, giving_away():
            initial = job.load(place.folder)
            run = _run_as_resumed(job, initial)
            if place.lengthens or run != job.run:
                write_config(place.folder, run)
            return _train_into(place.folder, job, initial, place, interrupt)
    folder = place.folder or new_folder(job.run.name)
    with (
        claim_folder(folder, overwrite=place.overwrite),
        deferred_interrupt() as interrupt,
        giving_away(),
    ):
        # A run that repeats another has not been resumed itself.
        write_config(folder, dataclasses.replace(job.run, episodes_resumed=None))
        return _train_into(folder, job, None, place, interrupt)


def _run_as_resumed(job: AbstractJob[Any, Result], initial: Result | None) -> Run:
    """The run, with whether simulators outside JAX continue their episodes.

    If they do not, that is printed.
    """
    if initial is None or not is_host(job.env):
        return job.run
    schedule = job.run.schedule
    if isinstance(initial, Solution):
        has_ended = step_of(initial) >= schedule.num_steps
    elif isinstance(initial, PopulationSolution):
        has_ended = len(initial.scores) >= schedule.num_generations
    else:
        # Each skill begins its own episodes.
        training = initial.training
        has_ended = training is not None and int(training.skill) < int(initial.count)
    if has_ended:
        return job.run
    resumed = bool(np.all(are_present(job.env, initial)))
    if not resumed:
        say(
            f"A simulator of `{job.run.settings.env}` cannot return into the middle of "
            "an episode, so training resumes with new ones; `config.json` says so."
        )
    resumed = resumed and job.run.episodes_resumed is not False
    return dataclasses.replace(job.run, episodes_resumed=resumed)


def _train_into(
    folder: Path,
    job: AbstractJob[Any, Result],
    initial: Result | None,
    place: Place,
    interrupt: Interrupt,
) -> int:
    exit_code, keeps_last = 0, False
    resumes = f"`{job.run.resuming(folder)}` resumes it"
    try:
        reached = job.train(folder, initial, place.checkpoint_every)
    except NonFiniteError as error:
        reached, exit_code = error.solution, 1
        say(
            f"At environment step {error.step} {error.what} was nan or infinite, so "
            "training stopped; what was reached before it is kept. If the agent "
            "diverged, lower its learning rates or --reward-scale."
        )
    except SimulatorError as error:
        if error.solution is None:
            raise
        reached, exit_code = error.solution, 1
        # A seed whose simulator failed could not be trained further.
        is_lost = bool(np.any(job.failed(reached)))
        keeps_last = is_lost and bool(saved_steps(checkpoints_folder(folder)))
        failure, _, _ = str(error).rpartition("\n")
        say(
            f"{' '.join(failure.split())}. So training stopped; what was reached "
            f"before it is kept, and {resumes}"
            f"{' from its last checkpoint' if keeps_last else ''}."
        )
    except TrainingInterrupted as error:
        # Shells report a process killed by a signal as 128 plus its number.
        reached, exit_code = error.solution, 128 + error.signal
        say(f"Training was interrupted; what was reached is kept, and {resumes}.")
    # A signal must not leave the folder half written.
    with interrupt.hold():
        # On a full disk the checkpoint may fail, but the smaller policies still fit.
        # Skills resume from their library, which `write` saves.
        with without_ending("The last checkpoint"):
            solution: object = reached
            if isinstance(solution, (Solution, PopulationSolution)) and not keeps_last:
                with open_checkpoints(folder) as checkpoints:
                    checkpoints.save(solution)
        policies = job.write(folder, reached)
    # A second signal, or a first one after training, skips the rest.
    if interrupt.insisted or (interrupt.first is not None and exit_code < 128):
        raise KeyboardInterrupt(interrupt.first)
    interrupt.raises_at_once = True
    failed = np.flatnonzero(job.failed(reached))
    # The error behind exit code 1 has already named the step.
    if exit_code != 1 and len(failed) > 0:
        names = ", ".join(str(index) for index in failed)
        simulator = ", or a simulator failed," if is_host(job.env) else ""
        say(
            f"Something became nan or infinite{simulator} in the "
            f"{job.run.schedule.kind}s {names}; what they reached before it is kept."
        )
    if exit_code != 1 and not job.has_learned(reached):
        warmup = job.trainer.warmup_steps
        reason = f"the first {warmup} steps are the warm-up (--warmup-steps)"
        reason = reason if warmup > 0 else "training ended within the first rollout"
        say(f"No update was made: {reason}.")
    _report(folder, job, reached, policies)
    with without_ending("The standard output"):
        print(f"folder: {folder}", flush=True)
    return exit_code


def _report(
    folder: Path, job: AbstractJob[Any, Result], reached: Result, policies: Policies
) -> None:
    """Draws what was reached, and writes and prints how good the policies are."""
    if not is_installed("matplotlib"):
        say(f"There are no pictures: {not_installed('drawing', 'matplotlib', 'plots')}")
    with without_ending("A picture"):
        job.draw(folder, reached)
    if not policies.pairs:
        kind = job.run.schedule.kind
        say(f"No {kind} was learned to its end, so none is evaluated.")
        return
    # `eqrl evaluate` uses the same default seed, so it reproduces these returns.
    key = evaluation_key(Evaluate.seed)
    # An evaluation may take longer than training, so the folder is completed first.
    returns = returns_of_policies(
        policies.pairs,
        evaluation_env(job.env),
        num_episodes=num_episodes_of(job.run.settings.env, job.env),
        mode="greedy",
        key=key,
    )
    write_evaluation(
        folder, returns, step=policies.step, mode="greedy", best=policies.best
    )
    with without_ending("The report"):
        job.report(folder, reached, policies, returns, key=key)
        warn_without_reward(reached.metrics, returns)
