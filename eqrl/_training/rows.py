"""Training in rows of metrics, between which the host has a say."""

from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from .replay import Counts
from .solution import History, NonFiniteError, Solution, TrainingInterrupted
from .trainer import Trainer


Run = Callable[[Any, Counts, int], tuple[Any, Counts, dict[str, Array]]]
Report = Callable[[int, dict[str, Any], Solution[Any, Any, Any, Any]], None]


def train_rows(
    run: Run,
    trainer: Trainer,
    solution: Solution[Any, Any, Any, Any],
    *,
    num_steps: int,
    log_every: int,
    interrupted: Callable[[], bool],
    report: Report | None = None,
    first_step: int = 0,
    columns: Mapping[str, int] | None = None,
) -> Solution[Any, Any, Any, Any]:
    """Goes on from a solution, which is donated.

    **Arguments:**

    - `run`: `Trainer.run`, of so many steps.
    - `trainer`, `solution`, `num_steps`, `log_every`: as in `eqrl.train`.
    - `interrupted`: whether to stop at the end of a row.
    - `report`: called with the step, the row and the solution after each row.
    - `first_step`: environment steps before those that `solution.counts` counts.
    - `columns`: what else to put into each row.
    """
    if log_every < 1:
        raise ValueError(f"`log_every={log_every}` must be at least 1.")
    size = trainer.steps_of_iteration
    row_steps = -(-log_every // size) * size
    end = steps_taken(trainer, solution.counts) + num_steps
    while (step := steps_taken(trainer, solution.counts)) < end:
        # Rows end at multiples of their length, so that a training in two calls has the
        # rows of one.
        to_end_of_row = row_steps - step % row_steps
        num_row_steps = min(-(-to_end_of_row // size) * size, end - step)
        metrics = solution.metrics
        solution, row = _after(run, trainer, solution, num_row_steps, columns)
        reached = first_step + steps_taken(trainer, solution.counts)
        solution = _with_row(solution, metrics, reached, row)
        _raise_where_lost(reached, row, solution)
        if report is not None:
            report(reached, row, solution)
        if interrupted():
            raise TrainingInterrupted(solution)
    return solution


def finish_episode(
    run: Run,
    trainer: Trainer,
    solution: Solution[Any, Any, Any, Any],
    *,
    since: int,
    report: Report | None = None,
    first_step: int = 0,
    columns: Mapping[str, int] | None = None,
) -> Solution[Any, Any, Any, Any]:
    """Goes on, in one more row, until an episode of the first environment has ended.

    Ctrl-C has to wait for it, so that the row is whole. The arguments are those of
    `train_rows` except for `since`: at which step, of those that `solution.counts`
    counts, or after which the end of an episode counts.
    """
    metrics = solution.metrics
    rows: list[dict[str, np.ndarray]] = []
    while not _has_ended(trainer, solution, since=since):
        solution, row = _after(
            run, trainer, solution, trainer.steps_of_iteration, columns
        )
        rows.append(row)
        reached = first_step + steps_taken(trainer, solution.counts)
        solution = _with_row(solution, metrics, reached, _mean_row(rows))
        _raise_where_lost(reached, row, solution)
    if report is not None and rows:
        reached = first_step + steps_taken(trainer, solution.counts)
        report(reached, _mean_row(rows), solution)
    return solution


def _has_ended(
    trainer: Trainer, solution: Solution[Any, Any, Any, Any], *, since: int
) -> bool:
    # An episode that is under way began where the one before it ended.
    steps = int(solution.trainer_state.actors.timestep[0]) * trainer.num_envs
    return steps_taken(trainer, solution.counts) - steps >= since


def _after(
    run: Run,
    trainer: Trainer,
    solution: Solution[Any, Any, Any, Any],
    num_steps: int,
    columns: Mapping[str, int] | None,
) -> tuple[Solution[Any, Any, Any, Any], dict[str, np.ndarray]]:
    """What is reached after so many steps, or before what is not finite; and a row."""
    before = jax.device_get(solution.counts)
    state, counts, averages = run(solution.trainer_state, solution.counts, num_steps)
    row = {name: np.asarray(value) for name, value in averages.items()}
    row |= {name: np.asarray(value) for name, value in (columns or {}).items()}
    lost = row["nonfinite"]
    if lost.ndim == 0 and lost > 0:
        # Nothing is lost, so another call may go on from here.
        state = eqx.tree_at(lambda state: state.failed, state, jnp.array(False))
        counts = _counts_before_failure(trainer, before, counts, int(lost.max()))
    reached = Solution(trainer_state=state, counts=counts, metrics=solution.metrics)
    return reached, row


def _raise_where_lost(
    reached: int,
    row: dict[str, np.ndarray],
    solution: Solution[Any, Any, Any, Any],
) -> None:
    if np.all(row["nonfinite"] > 0):
        raise NonFiniteError(reached, solution)


def steps_taken(trainer: Trainer, counts: Counts) -> int:
    """Environment steps that are counted."""
    return int(counts.rows_written) * trainer.num_envs


def _mean_row(rows: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Without what is nan in some of them."""

    def mean(values: np.ndarray) -> np.ndarray:
        known = ~np.isnan(values)
        total = np.where(known, values, 0).sum(axis=0)
        number = known.sum(axis=0)
        average = np.where(number > 0, total / np.maximum(number, 1), np.nan)
        return average.astype(values.dtype)

    return {name: mean(np.stack([row[name] for row in rows])) for name in rows[0]}


def _counts_before_failure(
    trainer: Trainer, before: Counts, after: Counts, lost_steps: int
) -> Counts:
    rows_written = int(after.rows_written) - lost_steps // trainer.num_envs
    rows = rows_written - int(before.rows_written)
    counts = trainer.counts_after(
        jax.tree.map(jnp.asarray, before), rows // trainer.steps_per_iteration
    )
    return eqx.tree_at(
        lambda counts: counts.rows_written, counts, jnp.asarray(rows_written, int)
    )


def _with_row(
    solution: Solution[Any, Any, Any, Any],
    history: History,
    step: int,
    row: dict[str, np.ndarray],
) -> Solution[Any, Any, Any, Any]:
    """With the metrics `history` and one more row."""
    row = {"step": np.asarray(step), **row}
    rows = {name: value[None] for name, value in row.items()}
    if history:
        rows = {name: np.concatenate([history[name], rows[name]]) for name in row}
    return Solution(
        trainer_state=solution.trainer_state, counts=solution.counts, metrics=rows
    )
