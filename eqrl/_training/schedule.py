"""When a trainer steps and when it updates, as integers that may be traced."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from .._pytree.fields import check_integer, whole_number


_Number = int | Int[Array | np.ndarray, ""]


class Counts(eqx.Module):
    """Progress counters, shared by a population and so never batched.

    They stand beside the state of a trainer rather than in it: under `vmap` a batched
    position would turn every write to the replay into a copy of the replay.

    `updates` and `rows_written` are exact while they fit 32 bits. Then they go round,
    and how often is counted too. They never fall below 3 * 10^8 again, and stay what
    they were modulo the rows of the replay, which are `capacity // num_envs`, and
    modulo the periods that the `update` of an agent may have; see `AbstractAgent`.
    """

    updates: Int[Array, ""]
    rows_written: Int[Array, ""]
    rows_kept: Int[Array, ""]
    updates_folded: Int[Array, ""] = whole_number(0, zero_if_absent=True)
    rows_folded: Int[Array, ""] = whole_number(0, zero_if_absent=True)

    def after_rows(self, num_rows: int | Int[Array, ""]) -> "Counts":
        """These counts after so many more rows, at most those of an iteration.

        It makes no update. Only `Trainer.counts_after` goes round.
        """
        return Counts(
            updates=self.updates,
            rows_written=self.rows_written + num_rows,
            rows_kept=self.rows_kept,
            updates_folded=self.updates_folded,
            rows_folded=self.rows_folded,
        )


Counts.__init__.__doc__ = """**Arguments:**

- `updates`: updates of the agent so far.
- `rows_written`: rows written to the replay since it was last reset; a row is one
    transition of every environment.
- `rows_kept`: rows that were kept when the replay was last reset.
- `updates_folded`, `rows_folded`: how often the first two went round.
"""


@dataclasses.dataclass(frozen=True)
class Folding:
    """How a counter goes round so that it stays within 32 bits.

    Below `limit` it is exact. From there on it goes round the `period` numbers before
    `limit`. Counters of 64 bits never do.
    """

    limit: int
    period: int

    def after(
        self,
        counter: Int[Array, ""],
        folded: Int[Array, ""],
        number: int | Int[Array, ""],
    ) -> tuple[Int[Array, ""], Int[Array, ""]]:
        """The counter after `number` more, and how often it went round."""
        if counter.dtype.itemsize > 4:
            return counter + number, folded
        # Neither this nor what is chosen overflows.
        beyond = number - (self.limit - counter)
        rounds = beyond // self.period
        inside = self.limit - self.period + beyond - rounds * self.period
        return (
            jnp.where(beyond < 0, counter + number, inside),
            folded + jnp.where(beyond < 0, 0, rounds + 1),
        )

    def lowest_bits(
        self, counter: Int[Array, ""], folded: Int[Array, ""]
    ) -> UInt32[Array, ""]:
        """The exact number modulo 2^32, to be folded into a key."""
        period = jnp.asarray(self.period, jnp.uint32)
        return counter.astype(jnp.uint32) + folded.astype(jnp.uint32) * period

    def exact(self, counter: _Number, folded: _Number) -> int:
        """The exact number."""
        return int(counter) + int(folded) * self.period

    def fold(self, number: int) -> tuple[int, int]:
        """The counter that stands for an exact number, and how often it went round."""
        if number < self.limit or jnp.iinfo(jnp.result_type(int)).bits > 32:
            return number, 0
        rounds, rest = divmod(number - self.limit, self.period)
        return self.limit - self.period + rest, rounds + 1


IntLike = int | Int[Array, ""]

_MOST = 2**31 - 1

# Of a replay with more rows than this, counters that go round lose the place.
_MOST_ROWS = 7 * 10**8

# 2^12 * 3^2 * 5^4 * 7 * 11: what an agent does every n updates goes on doing so for all
# n up to 12 and for 100, 1,000, 1,024, 5,000 and 10,000, among others.
_PERIOD_OF_UPDATES = 1_774_080_000


def row_period(rows: int) -> int:
    """After how many rows their counter is where it was, for a replay of `rows`."""
    rows = min(rows, _MOST_ROWS)
    return rows * max(1, 2**29 // rows)


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The sizes of a `Trainer` that decide when it steps and when it updates.

    Methods return Python integers if all that they are given is one.
    """

    num_envs: int
    rows: int
    warmup_steps: int
    steps_per_iteration: int
    updates_per_iteration: int

    @property
    def steps_of_iteration(self) -> int:
        """Environment steps in an iteration, summed over the environments."""
        return self.num_envs * self.steps_per_iteration

    @property
    def warmup_iterations(self) -> int:
        """Iterations before the first update, rounded up."""
        return -(-self.warmup_steps // self.steps_of_iteration)

    def warmup_left(self, rows_written: IntLike) -> IntLike:
        """Iterations of the warm-up that remain after so many rows."""
        done = rows_written // self.steps_per_iteration
        return _positive_part(self.warmup_iterations - done)

    def updates_in(self, num_iterations: IntLike, *, rows_written: IntLike) -> IntLike:
        """Updates made in the iterations that follow so many rows."""
        updating = _positive_part(num_iterations - self.warmup_left(rows_written))
        return updating * self.updates_per_iteration

    @property
    def row_folding(self) -> Folding:
        """How the counter of rows goes round: in whole rounds of the replay.

        Less than 32 bits are used, so that nothing that is added overflows: the rows
        that were kept, and those of an iteration.
        """
        rows = min(self.rows, _MOST_ROWS)
        return Folding(
            limit=_MOST - rows - self.steps_per_iteration,
            period=row_period(rows),
        )

    @property
    def update_folding(self) -> Folding:
        """How the counter of updates goes round."""
        return Folding(
            limit=_MOST - self.updates_per_iteration, period=_PERIOD_OF_UPDATES
        )

    def counts_after(self, counts: Counts, num_iterations: IntLike) -> Counts:
        """The counts after a number of iterations."""
        updates, updates_folded = self.update_folding.after(
            counts.updates,
            counts.updates_folded,
            self.updates_in(num_iterations, rows_written=counts.rows_written),
        )
        rows_written, rows_folded = self.row_folding.after(
            counts.rows_written,
            counts.rows_folded,
            num_iterations * self.steps_per_iteration,
        )
        return Counts(
            updates=updates,
            rows_written=rows_written,
            rows_kept=counts.rows_kept,
            updates_folded=updates_folded,
            rows_folded=rows_folded,
        )

    def row_number(self, counts: Counts) -> UInt32[Array, ""]:
        """The number of rows so far modulo 2^32, to be folded into a key."""
        return self.row_folding.lowest_bits(counts.rows_written, counts.rows_folded)

    def update_number(self, counts: Counts) -> UInt32[Array, ""]:
        """The number of updates so far modulo 2^32, to be folded into a key."""
        return self.update_folding.lowest_bits(counts.updates, counts.updates_folded)

    def rows_taken(self, counts: Counts) -> int:
        """The exact number of rows that are counted."""
        return self.row_folding.exact(counts.rows_written, counts.rows_folded)

    def updates_taken(self, counts: Counts) -> int:
        """The exact number of updates that are counted."""
        return self.update_folding.exact(counts.updates, counts.updates_folded)

    def counts_of(
        self, *, updates: int, rows_written: int, rows_kept: Int[Array, ""]
    ) -> Counts:
        """The counts that stand for exact numbers."""
        folded = (
            self.update_folding.fold(updates),
            self.row_folding.fold(rows_written),
        )
        (updates, updates_folded), (rows_written, rows_folded) = folded
        return Counts(
            updates=jnp.asarray(updates, int),
            rows_written=jnp.asarray(rows_written, int),
            rows_kept=rows_kept,
            updates_folded=jnp.asarray(updates_folded, int),
            rows_folded=jnp.asarray(rows_folded, int),
        )

    def check_call(self, name: str, num_steps: int) -> None:
        """Raises a `ValueError` if one compiled call cannot count its own steps."""
        most = jnp.iinfo(jnp.result_type(int)).max
        updates = num_steps // self.steps_of_iteration * self.updates_per_iteration
        if max(num_steps, updates) > most:
            raise ValueError(
                f"`{name}={num_steps}` asks for {num_steps} environment steps and up "
                f"to {updates} updates at once, which can be at most {most} of each; "
                "lower it. How a training is cut makes no difference to its result."
            )

    def check_num_steps(self, num_steps: int) -> None:
        """Raises a `ValueError` unless this is a whole number of iterations."""
        size = self.steps_of_iteration
        check_integer("num_steps", num_steps, least=0)
        if num_steps % size != 0:
            raise ValueError(
                f"`num_steps={num_steps}` must be a whole number of iterations, each "
                f"of num_envs * steps_per_iteration = {self.num_envs} * "
                f"{self.steps_per_iteration} = {size} environment steps; the nearest "
                f"are {num_steps // size * size} and {(num_steps // size + 1) * size}."
            )


def _positive_part(number: IntLike) -> IntLike:
    if isinstance(number, jax.Array):
        return jnp.maximum(number, 0)
    return max(number, 0)
