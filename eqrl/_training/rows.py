"""Host loop: run a compiled chunk of training, log one row of metrics."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from signal import SIGINT, Signals
from types import FrameType
from typing import Any, Generic

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Shaped

from .._pytree.fields import check_integer
from .._types.custom_types import EnvState, Extras, Memory, State
from .iteration import FailureReport
from .schedule import Counts
from .trainer import AnyTrainerState, Trainer, TrainerState


History = dict[str, Shaped[np.ndarray, "_ ..."]]
"""By name, with a leading axis `logs` that grows as training goes on."""


class Solution(eqx.Module, Generic[State, EnvState, Memory, Extras]):
    """The result of training, and all that is needed to resume it."""

    trainer_state: TrainerState[State, EnvState, Memory, Extras]
    counts: Counts
    metrics: History

    @property
    def state(self) -> State:
        """The agent's state."""
        return self.trainer_state.agent


Solution.__init__.__doc__ = """**Arguments:**

- `trainer_state`: agent, environments and replay.
- `counts`: the progress counters.
- `metrics`: of the whole training, earlier calls included, a row every `log_every`
    steps. `step` is the number of environment steps at the row's end; the others are
    averages over the row, `nan` if there was nothing to average. `episode_return` and
    `episode_length` are of the episodes that ended in the row, averaged first over
    those that ended at the same step.
"""

AnySolution = Solution[Any, Any, Any, Any]


class OfflineSolution(eqx.Module, Generic[State]):
    """The result of training from a data set."""

    state: State
    metrics: History


OfflineSolution.__init__.__doc__ = """**Arguments:**

- `state`: the agent's state.
- `metrics`: a row every `log_every` updates. `step` is the number of updates at the
    row's end; the others are averages over the row, `nan` if there was nothing to
    average.
"""


class NonFiniteError(ValueError):
    """Something became `nan` or infinite in training.

    **Attributes:**

    - `step`: environment steps before that at which it happened; of `train_offline`,
        updates before those of the row in which it did.
    - `solution`: the result up to that step, from which `train` can resume. If it is
        the agent that was not finite, its state is that of the beginning of the row:
        with a lower learning rate it can go on. Of `train_offline` it is an
        `OfflineSolution`.
    - `what`: what it was, in words: the metric of the updates that turned first, the
        agent's state or action, or an observation or a reward.
    """

    def __init__(
        self, step: int, solution: Any, what: str, *, counted: str = "environment step"
    ) -> None:
        super().__init__(
            f"At {counted} {step} {what} was nan or infinite. Training stopped "
            "before it; what was reached is the `solution` of this error. If it is the "
            "environment's doing, bound what it gives; if the agent diverged, lower "
            "its learning rates or `reward_scale`."
        )
        self.step = step
        self.solution = solution
        self.what = what


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C was pressed while training, or SIGTERM or SIGHUP asked to stop.

    **Attributes:**

    - `solution`: the result so far; from a `Solution`, `train` can resume.
    - `signal`: which of the signals it was.
    """

    def __init__(self, solution: Any, signal: Signals = SIGINT) -> None:
        super().__init__(
            "Training was interrupted; the `solution` of this error is what it reached."
        )
        self.solution = solution
        self.signal = signal


class Interrupt:
    """Whether a signal asked training to stop, and which one was the first."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.held = False
        self.insisted = False

    def __call__(self) -> signal.Signals | None:
        """The first signal; `None` before there is one."""
        return self.first

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Takes note of a signal; raises `KeyboardInterrupt` at a second one."""
        del frame
        if self.first is None:
            self.first = signal.Signals(number)
        elif self.held:
            self.insisted = True
        else:
            raise KeyboardInterrupt

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """While what was reached is written, a second signal is only noted."""
        before, self.held = self.held, True
        try:
            yield
        finally:
            self.held = before


# Within `deferred_interrupt`, its own.
_outer: Interrupt | None = None


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Interrupt]:
    """Turns Ctrl-C into a flag, to be read at points where stopping loses nothing.

    So it does the signals that end a process of which a scheduler or a terminal has no
    more need, SIGTERM and SIGHUP. A second signal raises `KeyboardInterrupt` at once.
    Nothing changes outside the main thread, where no signal arrives, nor for a signal
    for which another handler is installed. Within another such block it is that one's
    flag.
    """
    global _outer
    if _outer is not None:
        yield _outer
        return
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    replaced = [number for number in _signals() if _is_untouched(number)]
    before = {number: signal.signal(number, interrupt.handle) for number in replaced}
    _outer = interrupt
    try:
        yield interrupt
    finally:
        _outer = None
        for number, handler in before.items():
            signal.signal(number, handler)


def _signals() -> list[signal.Signals]:
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    # Not all systems have all of them.
    return [getattr(signal, name) for name in names if hasattr(signal, name)]


def _is_untouched(number: signal.Signals) -> bool:
    return signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)


RunChunk = Callable[
    [AnyTrainerState, Counts, int],
    tuple[AnyTrainerState, Counts, dict[str, Array], FailureReport],
]
"""`run_trainer` with all but state, counts and number of steps filled in."""

Row = dict[str, np.ndarray]
"""Metrics averaged over one chunk: scalars, or one value per member."""

Chunk = tuple[AnyTrainerState, Counts, Row, str | None]
"""State, counts, averages, and what was not finite if that ended it."""


def run_chunks(
    run: RunChunk,
    trainer: Trainer,
    state: AnyTrainerState,
    counts: Counts,
    *,
    num_steps: int,
    log_every: int,
) -> Iterator[Chunk]:
    """Trains for `num_steps`, yielding state, counts and metrics after each row.

    The state that was yielded is donated when the next row is asked for. The last row
    is one in which every member failed (see `has_failed`), if there is one; its state
    and counts are those from before the failure.
    """
    check_integer("log_every", log_every, least=1)
    size = trainer.steps_of_iteration
    row_steps = -(-log_every // size) * size
    trainer.schedule.check_call("log_every", min(row_steps, num_steps))
    end = steps_taken(trainer, counts) + num_steps
    while (step := steps_taken(trainer, counts)) < end:
        # Rows end at multiples of their length, so that a training in two calls has the
        # rows of one.
        to_end_of_row = row_steps - step % row_steps
        num_row_steps = min(-(-to_end_of_row // size) * size, end - step)
        state, counts, row, what = _run_chunk(
            run, trainer, state, counts, num_row_steps
        )
        yield state, counts, row, what
        if has_failed(row):
            return


def finish_episode(
    run: RunChunk,
    trainer: Trainer,
    state: AnyTrainerState,
    counts: Counts,
    *,
    since: int,
) -> Iterator[Chunk]:
    """Trains until an episode of the first environment ends, yielding at most one row.

    An episode that ended at or after step `since`, in the steps of `counts`, suffices.
    """
    rows: list[Row] = []
    what = None
    while not _has_ended(trainer, state, counts, since=since):
        state, counts, row, what = _run_chunk(
            run, trainer, state, counts, trainer.steps_of_iteration
        )
        rows.append(row)
        if has_failed(row):
            break
    if rows:
        yield state, counts, _mean_row(rows), what


def has_failed(row: Row) -> bool:
    """Whether something was not finite, in every member."""
    return bool(np.all(row["nonfinite"] > 0))


def steps_taken(trainer: Trainer, counts: Counts) -> int:
    """Environment steps that are counted."""
    return trainer.schedule.rows_taken(counts) * trainer.num_envs


def append_row(history: History, step: int, row: Row) -> History:
    """A copy of `history` with one more row, which ended at `step`."""
    row = {"step": np.asarray(step), **row}
    rows = {name: value[None] for name, value in row.items()}
    if not history:
        return rows
    # A solution of an earlier version, or of another agent, may have other metrics.
    names = [*rows, *(name for name in history if name not in rows)]
    return {
        name: np.concatenate(
            [
                history[name] if name in history else _absent(rows[name], like=history),
                rows[name] if name in rows else _absent(history[name], like=rows),
            ]
        )
        for name in names
    }


def _absent(values: np.ndarray, *, like: History) -> np.ndarray:
    """`nan`, as often as there are rows."""
    return np.full((len(like["step"]), *values.shape[1:]), np.nan)


def _has_ended(
    trainer: Trainer, state: AnyTrainerState, counts: Counts, *, since: int
) -> bool:
    # An episode that is under way began where the one before it ended.
    steps = int(state.actors.timestep[0]) * trainer.num_envs
    return steps_taken(trainer, counts) - steps >= since


def _run_chunk(
    run: RunChunk,
    trainer: Trainer,
    state: AnyTrainerState,
    counts: Counts,
    num_steps: int,
) -> Chunk:
    before = jax.device_get(counts)
    state, counts, averages, report = run(state, counts, num_steps)
    row = {name: np.asarray(value) for name, value in averages.items()}
    if not has_failed(row):
        return state, counts, row, None
    if row["nonfinite"].ndim == 0:
        # The state is the one from before the failure, so another call may go on.
        state = eqx.tree_at(lambda state: state.failed, state, jnp.array(False))
        counts = _counts_before_failure(trainer, before, counts, report)
    return state, counts, row, what_failed(report)


def what_failed(report: FailureReport) -> str:
    """What was not finite first, in any of the members, in words."""
    if not np.any(report.in_agent):
        return "an observation or a reward"
    names = [name for name, turned in report.turned.items() if np.any(turned)]
    return f"`{names[0]}`" if names else "the agent's state or action"


def _counts_before_failure(
    trainer: Trainer, before: Counts, after: Counts, report: FailureReport
) -> Counts:
    schedule = trainer.schedule
    rows_before, rows = schedule.rows_taken(before), int(report.kept_rows)
    if trainer.is_on_policy:
        # A rollout begins at the first place of its replay.
        rows -= (rows_before + rows) % trainer.steps_per_iteration
    # Those of an agent that has turned are not kept.
    updates = 0
    if not report.in_agent:
        updates = schedule.updates_in(
            rows // trainer.steps_per_iteration, rows_written=rows_before
        )
    return schedule.counts_of(
        updates=schedule.updates_taken(before) + int(updates),
        rows_written=rows_before + rows,
        rows_kept=after.rows_kept,
    )


def _mean_row(rows: list[Row]) -> Row:
    """Means over rows, ignoring `nan`."""

    def mean(values: np.ndarray) -> np.ndarray:
        known = ~np.isnan(values)
        total = np.where(known, values, 0).sum(axis=0)
        number = known.sum(axis=0)
        average = np.where(number > 0, total / np.maximum(number, 1), np.nan)
        return average.astype(values.dtype)

    return {name: mean(np.stack([row[name] for row in rows])) for name in rows[0]}
