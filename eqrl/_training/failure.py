"""What was not finite for the first time in a call of a trainer, and when."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int, PyTree

from .._types.custom_types import Metrics


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

    updates: Int[Array, ""]
    # -1 before there was one.
    last: dict[str, Int[Array, ""]]
    interval: dict[str, Int[Array, ""]]
    overflowed: Bool[Array, ""]

    def add(self, metrics: Metrics) -> "Watch":
        """With the metrics of one more update; the same after one that overflowed."""
        last, interval = dict(self.last), dict(self.interval)
        overflowed = self.overflowed
        for name, value in metrics.items():
            finite = jnp.isfinite(value) & ~self.overflowed
            pause = jnp.maximum(interval[name], self.updates - last[name])
            interval[name] = jnp.where(
                finite & (last[name] >= 0), pause, interval[name]
            )
            last[name] = jnp.where(finite, self.updates, last[name])
            overflowed = overflowed | jnp.isinf(value)
        return Watch(
            updates=self.updates + (~self.overflowed).astype(self.updates.dtype),
            last=last,
            interval=interval,
            overflowed=overflowed,
        )

    def turned(self, names: list[str]) -> dict[str, Bool[Array, ""]]:
        """Which metric turned first, if any did: of several, the first in `names`."""
        newest = self.updates - 1
        since = {
            name: jnp.where(
                self.last[name] < 0, newest, self.last[name] + self.interval[name]
            )
            for name in names
        }
        first = self.updates
        for name in names:
            first = jnp.minimum(first, since[name])
        found = first > newest
        turned = {}
        for name in names:
            turned[name] = ~found & (since[name] == first)
            found = found | turned[name]
        return turned


def empty_watch(names: list[str]) -> Watch:
    """That of the beginning of a call."""
    return Watch(
        updates=jnp.zeros((), int),
        last={name: jnp.full((), -1) for name in names},
        interval={name: jnp.ones((), int) for name in names},
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
