from typing import Generic, TypeVar

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from .._pytree.fields import check_integer


Item = TypeVar("Item")


class Counts(eqx.Module):
    """How far training is. Never batched, so it may decide branches and positions.

    It stands beside the state of a trainer rather than in it: under `vmap` a batched
    position would turn every write to the replay into a copy of the replay.
    """

    updates: Int[Array, ""]
    rows_written: Int[Array, ""]
    rows_kept: Int[Array, ""]


Counts.__init__.__doc__ = """**Arguments:**

- `updates`: updates of the agent so far.
- `rows_written`: rows written to the replay since it was last reset; a row is one
    transition of every environment.
- `rows_kept`: rows that were kept when the replay was last reset.
"""


class ReplayState(eqx.Module, Generic[Item]):
    """What a `ReplayBuffer` holds: every array has leading axes `(envs, rows)`."""

    data: Item


class ReplayBuffer(eqx.Module):
    """A ring over time with one row of storage an environment, sampled uniformly.

    Writing costs the same whatever the capacity. Where the ring stands and how much of
    it is filled follows from `Counts`.
    """

    capacity: int = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    sequence_length: int = eqx.field(default=1, static=True)

    def __check_init__(self) -> None:
        for name in ("capacity", "batch_size", "sequence_length"):
            check_integer(name, getattr(self, name), least=1)

    def init(self, item: Item, num_envs: int) -> ReplayState[Item]:
        """An empty replay.

        **Arguments:**

        - `item`: a transition of one environment, or its shapes and types.
        - `num_envs`: environments; each gets `capacity // num_envs` transitions.
        """
        rows = self.capacity // num_envs
        if rows < self.sequence_length:
            raise ValueError(
                f"`capacity={self.capacity}` gives each of `num_envs={num_envs}` "
                f"environments {rows} rows, fewer than `sequence_length="
                f"{self.sequence_length}`."
            )
        data = jax.tree.map(
            lambda x: jnp.zeros((num_envs, rows, *x.shape), x.dtype), item
        )
        return ReplayState(data=data)

    def add(
        self,
        state: ReplayState[Item],
        items: Item,
        counts: Counts,
        *,
        keep: Bool[Array, ""] | None = None,
    ) -> ReplayState[Item]:
        """Writes one row over the oldest one.

        **Arguments:**

        - `state`: the replay.
        - `items`: one transition of every environment, with a leading axis `envs`.
        - `counts`: from before this row; it is for the caller to count it.
        - `keep`: where it is false, nothing changes.
        """

        def write(data: Array, item: Array) -> Array:
            rows = data.shape[1]
            row = (counts.rows_kept + counts.rows_written) % rows
            if keep is not None:
                old = lax.dynamic_index_in_dim(data, row, axis=1, keepdims=False)
                item = jnp.where(keep, item, old)
            return lax.dynamic_update_index_in_dim(data, item, row, axis=1)

        return ReplayState(data=jax.tree.map(write, state.data, items))

    def keep_newest(
        self, state: ReplayState[Item], counts: Counts, *, num_rows: Int[Array, ""]
    ) -> tuple[ReplayState[Item], Counts]:
        """Forgets all but the newest rows, which stay in their order.

        **Arguments:**

        - `state`: the replay.
        - `counts`: how much has been written.
        - `num_rows`: at most as many as there are.

        **Returns:**

        The replay, and counts that begin anew.
        """
        rows = jax.tree.leaves(state.data)[0].shape[1]
        written = counts.rows_kept + counts.rows_written
        row = (written - num_rows + jnp.arange(rows)) % rows
        zero = jnp.zeros((), int)
        return (
            ReplayState(data=jax.tree.map(lambda x: x[:, row], state.data)),
            Counts(updates=zero, rows_written=zero + 0, rows_kept=num_rows),
        )

    def sample(
        self, state: ReplayState[Item], counts: Counts, *, key: PRNGKeyArray
    ) -> Item:
        """Draws uniformly, with replacement, from all runs of consecutive rows.

        A run stays with one environment and may go on from one episode to the next. At
        least `sequence_length` rows must have been written.

        **Arguments:**

        - `state`: the replay.
        - `counts`: how much has been written.
        - `key`: for the draw.

        **Returns:**

        A batch with leading axes `(batch,)` where `sequence_length` is 1, else
        `(batch, time)`.
        """
        num_envs, rows = jax.tree.leaves(state.data)[0].shape[:2]
        env_key, start_key = jr.split(key)
        written = counts.rows_kept + counts.rows_written
        filled = jnp.minimum(written, rows)
        oldest = written - filled
        env = jr.randint(env_key, (self.batch_size,), 0, num_envs)
        start = jr.randint(
            start_key, (self.batch_size,), 0, filled - self.sequence_length + 1
        )
        if self.sequence_length == 1:
            row = (oldest + start) % rows
        else:
            time = jnp.arange(self.sequence_length)
            row = (oldest + start[:, None] + time[None]) % rows
            env = env[:, None]
        return jax.tree.map(lambda x: x[env, row], state.data)


ReplayBuffer.__init__.__doc__ = """**Arguments:**

- `capacity`: transitions held in total, at least 1, an equal share of them for each
    environment.
- `batch_size`: runs of consecutive transitions in a batch, at least 1.
- `sequence_length`: transitions in a run, at least 1.
"""
