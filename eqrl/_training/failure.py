"""What was not finite for the first time in a call of a trainer, and when."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from .._types.custom_types import Metrics, PyTree


class Failure(eqx.Module):
    """Where something was not finite for the first time."""

    # Rows of this call written before the step, or before the iteration whose update
    # it was; -1 while all is finite.
    row: Int[Array, ""]
    # Rows of this call that stay in the replay: in the second case those of the
    # iteration, too.
    kept_rows: Int[Array, ""]
    # Whether it is the agent's doing, whose state is then of no use.
    in_agent: Bool[Array, ""]

    @property
    def happened(self) -> Bool[Array, ""]:
        """Whether there was any."""
        return self.row >= 0

    def or_at(
        self,
        condition: Bool[Array, ""],
        *,
        row: Int[Array, ""],
        kept_rows: Int[Array, ""],
        in_agent: Bool[Array, ""],
    ) -> "Failure":
        """With one more that may have happened; an earlier one stays."""
        first = condition & ~self.happened
        return Failure(
            row=jnp.where(first, row, self.row),
            kept_rows=jnp.where(first, kept_rows, self.kept_rows),
            in_agent=self.in_agent | (condition & in_agent),
        )


def no_failure(*, happened: Bool[Array, ""]) -> Failure:
    """That of the beginning of a call, before which one may have happened."""
    return Failure(
        row=jnp.where(happened, 0, -1),
        kept_rows=jnp.zeros((), int),
        in_agent=jnp.array(False),
    )


class FailureReport(eqx.Module):
    """What a call returns about its failure, if there was one."""

    kept_rows: Int[Array, ""]
    in_agent: Bool[Array, ""]
    # Whether a metric is the one that turned first; of none if it was no metric.
    turned: dict[str, Bool[Array, ""]]


class Watch(eqx.Module):
    """In which update of a call each metric was finite last.

    A metric that is not computed in each update is `nan` in the others. It has turned
    where it is `nan` after more updates than there were between two finite values.
    """

    names: tuple[str, ...] = eqx.field(static=True)
    updates: Int[Array, ""]
    # -1 before there was one.
    last: Int[Array, " metrics"]
    interval: Int[Array, " metrics"]
    overflowed: Bool[Array, ""]

    def add(self, metrics: Metrics) -> "Watch":
        """With the metrics of one more update; the same after one that overflowed."""
        if not self.names:
            return self
        values = jnp.stack([metrics[name].astype(float) for name in self.names])
        finite = jnp.isfinite(values) & ~self.overflowed
        pause = jnp.maximum(self.interval, self.updates - self.last)
        return Watch(
            names=self.names,
            updates=self.updates + (~self.overflowed).astype(self.updates.dtype),
            last=jnp.where(finite, self.updates, self.last),
            interval=jnp.where(finite & (self.last >= 0), pause, self.interval),
            overflowed=self.overflowed | jnp.any(jnp.isinf(values)),
        )

    def turned(self) -> dict[str, Bool[Array, ""]]:
        """Which metric turned first, if any did: of several, the first in `names`."""
        if not self.names:
            return {}
        newest = self.updates - 1
        since = jnp.where(self.last < 0, newest, self.last + self.interval)
        first = jnp.argmin(since)
        return {
            name: (first == index) & (since[index] <= newest)
            for index, name in enumerate(self.names)
        }


def empty_watch(names: list[str]) -> Watch:
    """That of the beginning of a call."""
    return Watch(
        names=tuple(names),
        updates=jnp.zeros((), int),
        last=jnp.full(len(names), -1),
        interval=jnp.ones(len(names), int),
        overflowed=jnp.array(False),
    )


def check_finite_agent(state: PyTree) -> None:
    """Raises a `ValueError` unless all numbers of an agent's state are finite."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        if not eqx.is_inexact_array(leaf):
            continue
        parts = [leaf]
        if isinstance(leaf, jax.Array):
            # Other processes hold the rest of an array that is spread over several.
            parts = [shard.data for shard in leaf.addressable_shards]
        for part in parts:
            if not np.all(np.isfinite(np.asarray(part))):
                raise ValueError(
                    "The agent's state begins with nan or infinity in "
                    f"`{jax.tree_util.keystr(path)}`; make its networks, or the state "
                    "that is given, finite."
                )
