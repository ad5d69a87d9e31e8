"""Counters of training that go on for ever in 32 bits."""

import dataclasses

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int, UInt32

from .._pytree.fields import whole_number


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
