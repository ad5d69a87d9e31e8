from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, TypeVar

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Int, PRNGKeyArray

from .._pytree.fields import check_fields, static_integer
from .._pytree.tree import tree_where
from .._types.custom_types import State
from .._types.data import AnyTransition, Transition
from .schedule import Counts


Item = TypeVar("Item")


class AbstractReplay(eqx.Module, Generic[State]):
    """Storage for past transitions, and how batches are drawn from it.

    The replay holds sizes only; its state holds the transitions. Methods are pure and
    must work under `jax.vmap` with `counts` unbatched. Positions should follow from
    `counts`, as in `(counts.rows_kept + counts.rows_written) % rows`, where `rows` is
    `capacity // num_envs`.
    """

    def __check_init__(self) -> None:
        check_fields(self)

    @abstractmethod
    def init(self, item: Transition[Any], num_envs: int) -> State:
        """An empty replay.

        **Arguments:**

        - `item`: a transition of one environment, or its shapes and types.
        - `num_envs`: the number of environments.
        """

    @abstractmethod
    def add(
        self,
        state: State,
        items: Transition[Any],
        counts: Counts,
        *,
        keep: Bool[Array, ""] | None = None,
    ) -> State:
        """Writes one row: one transition of every environment.

        **Arguments:**

        - `state`: the replay.
        - `items`: the row, with a leading axis `envs`.
        - `counts`: from before this row; the caller counts it.
        - `keep`: if it is false, nothing may change. Choose between values of the row:
            a choice between two states copies the replay.
        """

    @abstractmethod
    def sample(self, state: State, counts: Counts, *, key: PRNGKeyArray) -> Any:
        """Draws the batch that is given to the agent's `update`.

        **Arguments:**

        - `state`: the replay.
        - `counts`: how much has been written.
        - `key`: for the draw.
        """


class AbstractPrioritizedReplay(AbstractReplay[State]):
    """A replay that learns from each update how to draw the next batches."""

    @abstractmethod
    def prioritize(
        self,
        state: State,
        batch: Any,
        agent_state: Any,
        counts: Counts,
        *,
        keep: Bool[Array, ""] | None = None,
    ) -> State:
        """Called after each update, before the next batch is drawn.

        **Arguments:**

        - `state`: the replay.
        - `batch`: from `sample`, the one of the update. It can say where it was drawn.
        - `agent_state`: of the agent after the update, to compute priorities from, such
            as errors of its critic, or to find those that the agent left there.
        - `counts`: those that were given to `sample`.
        - `keep`: as in `add`; `None` if the changes are to be kept.
        """


AnyReplay: TypeAlias = AbstractReplay[Any]
"""Any replay, with a state of any type."""

MakeReplay = Callable[..., AnyReplay]
"""Called with the keywords `capacity`, `batch_size` and `sequence_length`."""


class ReplayState(eqx.Module, Generic[Item]):
    """The data of a `ReplayBuffer`: every array has leading axes `(envs, rows)`."""

    data: Item
    is_rollout: bool = eqx.field(default=False, static=True)


ReplayState.__init__.__doc__ = """**Arguments:**

- `data`: the transitions, with leading axes `(envs, rows)`.
- `is_rollout`: whether they are the steps of one iteration only, as in `LatestRows`.
"""


def empty_rows(item: Item, num_envs: int, num_rows: int) -> ReplayState[Item]:
    """Room for a number of rows of transitions like `item`."""
    return ReplayState(
        data=jax.tree.map(
            lambda x: jnp.zeros((num_envs, num_rows, *x.shape), x.dtype), item
        )
    )


def truncate_last_row(
    replay: ReplayState[AnyTransition], counts: Counts
) -> ReplayState[AnyTransition]:
    """Marks the newest row as truncated unless it is terminated.

    The environments are about to be reset, so no window may cross this row.
    """
    data = replay.data
    written = counts.rows_kept + counts.rows_written
    row = (written - 1) % data.timestep.shape[1]
    truncated = data.truncated.at[:, row].set(~data.terminated[:, row])
    cut = ReplayState(data=eqx.tree_at(lambda data: data.truncated, data, truncated))
    # In a replay without rows the newest would be the last of the ring.
    return tree_where(written > 0, cut, replay)


def write_row(
    state: ReplayState[Item],
    items: Item,
    row: Int[Array, ""],
    *,
    keep: Bool[Array, ""] | None,
) -> ReplayState[Item]:
    """Writes a transition of every environment, unless `keep` is false."""

    # Rows are an axis of their own, after the environments, so that one slice holds the
    # row of all of them. XLA writes a slice in place, and `vmap` with an unbatched row
    # keeps it so.
    def write(data: Array, item: Array) -> Array:
        if keep is not None:
            # Chosen within the row: between two replays it would cost a copy.
            old = lax.dynamic_index_in_dim(data, row, axis=1, keepdims=False)
            item = jnp.where(keep, item, old)
        return lax.dynamic_update_index_in_dim(data, item, row, axis=1)

    data = jax.tree.map(write, state.data, items)
    return ReplayState(data, is_rollout=state.is_rollout)


class ReplayBuffer(AbstractReplay[ReplayState[Any]]):
    """A ring buffer over time for each environment, sampled uniformly.

    Writing costs the same for every capacity. The position and the fill level of the
    ring follow from `Counts`.
    """

    capacity: int = static_integer(least=1)
    batch_size: int = static_integer(least=1)
    sequence_length: int = static_integer(1, least=1)

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
        return empty_rows(item, num_envs, rows)

    def add(
        self,
        state: ReplayState[Item],
        items: Item,
        counts: Counts,
        *,
        keep: Bool[Array, ""] | None = None,
    ) -> ReplayState[Item]:
        """Writes one row, over the oldest one if the ring is full.

        **Arguments:**

        - `state`: the replay.
        - `items`: one transition of every environment, with a leading axis `envs`.
        - `counts`: from before this row; the caller counts it.
        - `keep`: if it is false, nothing changes.
        """
        # The place follows from the counts, which a population shares: a position in
        # the state would be batched, and each write would be a scatter into a copy.
        row = counts.rows_kept + counts.rows_written
        rows = jax.tree.leaves(state.data)[0].shape[1]
        return write_row(state, items, row % rows, keep=keep)

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

    def keep_random(
        self,
        state: ReplayState[Item],
        counts: Counts,
        *,
        num_rows: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[ReplayState[Item], Counts]:
        """Forgets all but a random choice of rows of each environment, kept in order.

        The rows that stay may not be consecutive, so this is for a `sequence_length` of
        1. The arguments and results are those of `keep_newest`, and a key.
        """
        num_envs, rows = jax.tree.leaves(state.data)[0].shape[:2]
        filled = jnp.minimum(counts.rows_kept + counts.rows_written, rows)
        state, counts = self.keep_newest(state, counts, num_rows=filled)
        # Ages count from the oldest row; places without a row are drawn last.
        age = jnp.broadcast_to(jnp.arange(rows), (num_envs, rows))
        lot = jnp.where(age < filled, jr.uniform(key, (num_envs, rows)), 2.0)
        rank = jnp.argsort(jnp.argsort(lot, axis=1), axis=1)
        order = jnp.argsort(jnp.where(rank < num_rows, age, age + rows), axis=1)
        env = jnp.arange(num_envs)[:, None]
        return (
            ReplayState(data=jax.tree.map(lambda x: x[env, order], state.data)),
            Counts(
                updates=counts.updates,
                rows_written=counts.rows_written,
                rows_kept=num_rows,
            ),
        )

    def sample(
        self, state: ReplayState[Item], counts: Counts, *, key: PRNGKeyArray
    ) -> Item:
        """Draws uniformly, with replacement, from all runs of consecutive rows.

        A run stays with one environment and may continue into the next episode. At
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
        # Rows are numbered from the first ever written; row n is at place n % rows.
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


class LatestRows(AbstractReplay[ReplayState[Any]]):
    """The steps of one iteration, in order.

    It is for agents that learn on-policy, whose `sequence_length` is `None`. A batch is
    the whole rollout, with the axes `(envs, time)`, without a copy.
    """

    capacity: int = static_integer(least=1)
    batch_size: int = static_integer(least=1)
    sequence_length: int | None = eqx.field(default=None, static=True)

    def __check_init__(self) -> None:
        check_fields(self)
        if self.sequence_length is not None:
            raise ValueError(
                f"`LatestRows` holds a rollout, but the agent learns from batches of "
                f"`sequence_length={self.sequence_length}` steps, drawn from a replay; "
                "take `make_replay=eqrl.ReplayBuffer`, the default of `eqrl.Trainer`."
            )

    def init(self, item: Item, num_envs: int) -> ReplayState[Item]:
        """Room for `capacity // num_envs` rows.

        **Arguments:**

        - `item`: a transition of one environment, or its shapes and types.
        - `num_envs`: the number of environments.
        """
        empty = empty_rows(item, num_envs, self.capacity // num_envs)
        return ReplayState(empty.data, is_rollout=True)

    def add(
        self,
        state: ReplayState[Item],
        items: Item,
        counts: Counts,
        *,
        keep: Bool[Array, ""] | None = None,
    ) -> ReplayState[Item]:
        """Writes one row, over that of the iteration before.

        **Arguments:**

        - `state`: the replay.
        - `items`: one transition of every environment, with a leading axis `envs`.
        - `counts`: from before this row. Rows that were kept do not count: the first
            of an iteration is always the first here.
        - `keep`: if it is false, nothing changes.
        """
        rows = self.capacity // self.batch_size
        return write_row(state, items, counts.rows_written % rows, keep=keep)

    def sample(
        self, state: ReplayState[Item], counts: Counts, *, key: PRNGKeyArray
    ) -> Item:
        """All the steps of the iteration, with the axes `(envs, time)`.

        **Arguments:**

        - `state`: the replay.
        - `counts`, `key`: not used.
        """
        del counts, key
        return state.data


LatestRows.__init__.__doc__ = """**Arguments:**

- `capacity`: transitions of an iteration, of all environments.
- `batch_size`: the number of environments: a batch has the steps of each.
- `sequence_length`: `None`.
"""
