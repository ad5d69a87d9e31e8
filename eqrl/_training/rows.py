"""Rows of metrics: run a compiled chunk of training, and append its averages."""

from collections.abc import Callable, Iterator
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
    return int(counts.rows_written) * trainer.num_envs


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
    rows_before, rows = int(before.rows_written), int(report.kept_rows)
    if trainer.is_on_policy:
        # A rollout begins at the first place of its replay.
        rows -= (rows_before + rows) % trainer.steps_per_iteration
    # Those of an agent that diverged are not kept.
    updates = 0
    if not report.in_agent:
        updates = trainer.schedule.updates_in(
            rows // trainer.steps_per_iteration, rows_written=rows_before
        )
    return Counts(
        updates=jnp.asarray(int(before.updates) + updates, int),
        rows_written=jnp.asarray(rows_before + rows, int),
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
