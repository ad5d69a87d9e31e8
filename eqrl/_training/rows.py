"""Rows of metrics: run a part of training, and append its averages."""

import dataclasses
import logging
import time
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Shaped

from .._pytree.tree import Flat, check_same_shapes, flatten, tree_copy
from .._types.custom_types import EnvState, Extras, Memory, PyTree, State
from ..envs._base import AnyEnv
from ..envs._host import (
    SimulatorFailure,
    are_present,
    failure_of,
    has_failed,
    is_host,
)
from .iteration import UnfinishedRow
from .mesh import largest_on_any_process, to_host
from .schedule import Counts
from .trainer import (
    AnyTrainerState,
    Piece,
    Ran,
    Trainer,
    TrainerState,
    without_rows,
)


_logger = logging.getLogger("eqrl")

# Target duration of a piece: a signal waits for the piece to end, and for the writing.
_SECONDS_OF_PIECE = 1.0

# The factor by which a piece may be longer than those before it.
_GROWTH = 16

# A piece also has a fixed cost: with members in turn on one device, it copies the
# replays. Its iterations should take at least `_TIMES_THE_FIXED` times this cost, but
# the whole piece at most `_TIMES_THE_SECONDS` times `_SECONDS_OF_PIECE`.
_TIMES_THE_FIXED = 4
_TIMES_THE_SECONDS = 10

# One in this many pieces is twice as long as the last, to tell the two costs apart.
_PIECES_OF_A_LENGTH = 8


History = dict[str, Shaped[np.ndarray, "_ ..."]]
"""By name, with a leading axis `logs` that grows during training."""


class Solution(eqx.Module, Generic[State, EnvState, Memory, Extras]):
    """The result of training, and all that is needed to resume it."""

    trainer_state: TrainerState[State, EnvState, Memory, Extras]
    counts: Counts
    metrics: History
    unfinished: UnfinishedRow | None = None

    @property
    def state(self) -> State:
        """The agent's state."""
        return self.trainer_state.agent


Solution.__init__.__doc__ = """**Arguments:**

- `trainer_state`: agent, environments and replay.
- `counts`: the progress counters.
- `metrics`: those of the whole training, earlier calls included, with a row every
    `log_every` steps. `step` is the number of environment steps at the row's end; the
    others are averages over the row, `nan` if there was nothing to average.
    `episode_return` and `episode_length` are of the episodes that ended in the row,
    averaged first over those that ended at the same step; vector rewards have
    `episode_return_0` and so on. `nonfinite` is the number of steps lost to a value
    that was not finite. The others are those of the agent.
- `unfinished`: if training was interrupted within a row, that row so far; `None`
    between two rows.
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


Restart = Callable[[AnyTrainerState, Counts, Bool[Array, "*members"]], AnyTrainerState]
"""Takes a state, counts, and which members begin new episodes. The state is donated."""

RunPiece = Callable[
    [Flat[AnyTrainerState], Counts, Flat[PyTree], Piece],
    tuple[Flat[AnyTrainerState], Counts, Ran],
]
"""`run_piece` with all other arguments filled in. State and counts are donated."""

Row = dict[str, np.ndarray]
"""Metrics averaged over one row: scalars, or one value per member."""


class Position(NamedTuple):
    """A point of a training between two pieces.

    - `reached`, `counts`: what it has reached; `reached.tree` is the state.
    - `first`: the agent's state at the beginning of the row, kept to reset an agent
        that diverges; any value between two rows.
    - `first_updates`: the number of its updates.
    - `unfinished`: the row so far; `None` between two rows.
    - `row`: the averages of the row that ended here, if one did.
    - `ended`: the row itself, which another run can end again.
    - `failed`: describes the value in it that was not finite, if that ends training, or
        the failure of a simulator.
    """

    reached: Flat[AnyTrainerState]
    counts: Counts
    first: Flat[PyTree]
    first_updates: int
    unfinished: UnfinishedRow | None = None
    row: Row | None = None
    ended: UnfinishedRow | None = None
    failed: str | SimulatorFailure | None = None


class Pace:
    """Decides how many iterations run until signals are checked again."""

    def __init__(self, mesh: Mesh | None) -> None:
        """`mesh` has the devices, whose processes must run the same pieces."""
        self._mesh = mesh
        # Random steps take a fraction of the time of steps with updates.
        self._most = {"warm-up": 1, "learning": 1}
        # Iterations and seconds of the last piece of each phase, and the fixed cost of
        # a piece, once pieces of two lengths have been timed.
        self._last: dict[str, tuple[int, float]] = {}
        self._fixed: dict[str, float] = {}
        self._num_pieces = 0

    def next(self, num_left: int, warmup_left: int) -> int:
        """The number of iterations in the next piece, among those left in the row."""
        if warmup_left > 0:
            return min(num_left, warmup_left, self._most["warm-up"])
        return min(num_left, self._most["learning"])

    def add(self, number: int, warmup_left: int, seconds: float) -> None:
        """Records how long a piece took."""
        phase = "warm-up" if warmup_left > 0 else "learning"
        seconds = largest_on_any_process(seconds, self._mesh)
        seconds = max(seconds, 1e-6)
        last = self._last.get(phase)
        if last is not None and not number / 2 < last[0] < number * 2:
            slope = (seconds - last[1]) / (number - last[0])
            # Times are noisy, and the first piece may have compiled.
            self._fixed[phase] = min(max(seconds - slope * number, 0.0), seconds)
        self._last[phase] = number, seconds
        fixed = min(self._fixed.get(phase, 0.0), seconds * (1 - 1 / _GROWTH))
        each = (seconds - fixed) / number
        fitting = max(_SECONDS_OF_PIECE, _TIMES_THE_FIXED * fixed) / each
        most_seconds = _TIMES_THE_SECONDS * _SECONDS_OF_PIECE
        fitting = min(int(fitting), int(most_seconds * number / seconds))
        # The first iterations may be the quickest, so pieces grow step by step.
        limit = max(_GROWTH * number, self._most[phase])
        self._num_pieces += 1
        is_due = self._num_pieces % _PIECES_OF_A_LENGTH == 0
        least = 1
        if (is_due or phase not in self._fixed) and 2 * seconds < most_seconds:
            least = 2 * number
        self._most[phase] = max(least, min(fitting, limit))


@dataclasses.dataclass(frozen=True)
class Runner:
    """Runs the rows of one training, in pieces between which it can be interrupted.

    - `run`: runs a piece.
    - `restart`: begins new episodes in the environments of some or all members.
    - `trainer`: decides how many steps an iteration has.
    - `env`: the environment.
    - `empty`: the beginning of a row.
    - `mesh`: the devices, if there are several.
    """

    run: RunPiece
    restart: Restart
    trainer: Trainer
    env: AnyEnv
    empty: UnfinishedRow
    mesh: Mesh | None = None

    def start(
        self, state: AnyTrainerState, counts: Counts, unfinished: UnfinishedRow | None
    ) -> Position:
        """The position where a training begins or resumes.

        The unfinished row must be one of this training, and a seed or member must be
        left; otherwise a `ValueError` is raised.
        """
        failed = to_host(state.failed, self.mesh)
        # An unfinished row is finished first: its end raises the error that names the
        # cause, unless a simulator failed.
        runs_on = unfinished is not None and not is_host(self.env)
        if failed.ndim > 0 and failed.all() and not runs_on:
            raise ValueError(
                f"All {failed.size} seeds or members of `initial` have failed, and one "
                "that has failed is not trained further. Resume from an earlier "
                "solution, or begin again, with lower learning rates if it diverged."
            )
        if unfinished is not None:
            check_same_shapes("initial.unfinished", self.empty, unfinished)
        if is_host(self.env):
            present = are_present(self.env, state.actors.env_state)
            lost = ~np.all(present, axis=-1)
            if np.any(lost):
                _logger.info(
                    "Simulators outside JAX have one present, and this training "
                    "resumes from another state: new episodes begin in them."
                )
                state = self.restart(state, counts, jnp.asarray(lost))
        # A row that is resumed in the middle has lost its first state, so after a
        # failure the agent returns to the state in which it resumed.
        first = flatten(tree_copy(state.agent))
        return Position(flatten(state), counts, first, int(counts.updates), unfinished)

    def run_rows(
        self, position: Position, *, num_steps: int, log_every: int
    ) -> Iterator[Position]:
        """Trains for `num_steps`, yielding after each piece of each row.

        Each position is donated when the next one is requested. A row in which every
        member fails is the last one, with the state and counts from before the failure.
        """
        trainer = self.trainer
        size = trainer.steps_of_iteration
        row_steps = -(-log_every // size) * size
        trainer.schedule.check_call("log_every", min(row_steps, num_steps))
        end = steps_taken(trainer, position.counts) + num_steps
        pace = Pace(self.mesh)
        while (step := steps_taken(trainer, position.counts)) < end:
            # Rows end at multiples of their length, so that a training in two calls has
            # the rows of one.
            to_end_of_row = row_steps - step % row_steps
            num_row_steps = min(-(-to_end_of_row // size) * size, end - step)
            row = self.run_row(position, num_steps=num_row_steps, pace=pace)
            for position in row:
                yield position
            if position.failed is not None:
                return

    def run_row(
        self, position: Position, *, num_steps: int, pace: Pace
    ) -> Iterator[Position]:
        """Trains to the end of a row, which is `num_steps` away."""
        num_left = num_steps // self.trainer.steps_of_iteration
        while True:
            rows = int(position.counts.rows_written)
            warmup_left = int(self.trainer.schedule.warmup_left(rows))
            number = pace.next(num_left, warmup_left)
            num_left -= number
            began = time.perf_counter()
            position = self._run_piece(position, number, ends_row=num_left == 0)
            # A row that an error cut off at its end only ends.
            if number > 0:
                pace.add(number, warmup_left, time.perf_counter() - began)
            yield position
            if position.row is not None:
                return

    def finish_episode(self, position: Position, *, since: int) -> Iterator[Position]:
        """Trains until an episode of the first environment ends: at most one row.

        An episode that ended at or after step `since`, in the steps of `counts`,
        suffices.
        """

        def is_over(position: Position) -> bool:
            # An episode in progress began where the one before it ended.
            state = position.reached.tree
            steps = int(state.actors.timestep[0]) * self.trainer.num_envs
            done = steps_taken(self.trainer, position.counts)
            return done - steps >= since or bool(state.failed)

        while not is_over(position):
            position = self._run_piece(position, 1, ends_row=False)
            yield position
            if position.failed is not None:
                return
        if position.unfinished is not None:
            yield self._run_piece(position, 0, ends_row=True)

    def _run_piece(
        self, position: Position, num_iterations: int, *, ends_row: bool
    ) -> Position:
        num_steps = num_iterations * self.trainer.steps_of_iteration
        piece = Piece(
            # NumPy arrays are created in a tenth of the time.
            num_steps=cast(Array, np.asarray(num_steps, jnp.result_type(int))),
            row=self.empty if position.unfinished is None else position.unfinished,
            ends_row=cast(Array, np.asarray(ends_row)),
        )
        first, first_updates = position.first, position.first_updates
        if position.unfinished is None:
            first_updates = int(position.counts.updates)
            # A row in a single piece takes it from the state that the piece begins
            # with.
            if not ends_row:
                first = flatten(tree_copy(position.reached.tree.agent))
        state, counts, ran = self.run(position.reached, position.counts, first, piece)
        if not ends_row:
            # Calls return early; without this, the clock would stop before the end.
            jax.block_until_ready(counts)
            reached = Position(state, counts, first, first_updates, ran.row)
            if not has_failed(self.env):
                return reached
            # An interruption before the end of the row would hide the cause.
            return self._run_piece(reached, 0, ends_row=True)
        row = to_host(ran.metrics, self.mesh)
        failed = failure_of(self.env)
        if failed is not None and failed.row is not None:
            # Members that run together have their simulators in one group.
            failed = failed._replace(row=failed.row % self.trainer.num_envs)
        if failed is not None or np.all(row["nonfinite"] > 0):
            failed = failed or what_failed(to_host(ran, self.mesh))
            if row["nonfinite"].ndim == 0:
                # The state is the one from before the failure, so another call may
                # resume from it.
                reached = int(counts.rows_written) - int(ran.row.num_rows)
                reached += int(ran.row.failure.kept_rows)
                counts = _counts_before_failure(
                    self.trainer, counts, ran, first_updates
                )
                whole = eqx.tree_at(lambda x: x.failed, state.tree, jnp.array(False))
                number = reached - int(counts.rows_written)
                state = flatten(without_rows(whole, number))
        return Position(
            state, counts, first, first_updates, row=row, ended=ran.row, failed=failed
        )


def steps_taken(trainer: Trainer, counts: Counts) -> int:
    """Environment steps since the counters began."""
    return int(counts.rows_written) * trainer.num_envs


def append_row(history: History, step: int, row: Row) -> History:
    """A copy of `history` with one more row, which ended at `step`."""
    rows = {name: x[None] for name, x in {"step": np.asarray(step), **row}.items()}
    if not history:
        return rows
    # An agent may have other metrics than before, such as those of `debug=True`.
    both = rows | history

    def values(table: History, name: str) -> np.ndarray:
        if name in table:
            return table[name]
        return np.full((len(table["step"]), *both[name].shape[1:]), np.nan)

    return {
        name: np.concatenate([values(history, name), values(rows, name)])
        for name in both
    }


def what_failed(ran: Ran) -> str:
    """Describes the first value of any member that was not finite."""
    if not np.any(ran.row.failure.in_agent):
        return "an observation, a descriptor or a reward"
    found = np.flatnonzero(np.atleast_2d(ran.diverged).any(axis=0))
    if len(found) == 0:
        return "the agent's state or action"
    return f"`{ran.row.of_updates.names[found[0]]}`"


def _counts_before_failure(
    trainer: Trainer, counts: Counts, ran: Ran, first_updates: int
) -> Counts:
    num_rows, steps = int(ran.row.num_rows), trainer.steps_per_iteration
    failure = ran.row.failure
    before, kept = int(counts.rows_written) - num_rows, int(failure.kept_rows)
    if trainer.is_on_policy:
        # A rollout begins at the first place of its replay.
        kept -= (before + kept) % steps
    # Updates of an agent that diverged are not kept.
    updates = first_updates
    if not failure.in_agent:
        made, remaining = (
            trainer.schedule.updates_in(rows // steps, rows_written=before)
            for rows in (num_rows, kept)
        )
        updates = int(counts.updates) - made + remaining
    return Counts(
        updates=jnp.asarray(updates, int),
        rows_written=jnp.asarray(before + kept, int),
        rows_kept=counts.rows_kept,
    )
