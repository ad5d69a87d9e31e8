import dataclasses
import functools
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Generic, TypeAlias, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Int, PRNGKeyArray
from typing_extensions import TypeVar

from .._pytree.fields import check_fields, shown, static_integer
from .._pytree.tree import parts
from .._types.custom_types import PyTree, State
from .._types.data import AnyTransition, Stacking, Transition
from .episode_returns import EpisodeReturns, no_returns
from .frames import LEAST_BYTES, ROWS_PER_END, Frames, empty_frames, write_slice
from .schedule import Counts, first_counts, rows_so_far


Item = TypeVar("Item", default=PyTree)


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
        - `keep`: if it is false, nothing may change. Select between values of the row:
            selecting between two states copies the replay.
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
        """Updates priorities after an update, before the next batch is drawn.

        **Arguments:**

        - `state`: the replay.
        - `batch`: the one of the update, from `sample`. It may hold where it was drawn.
        - `agent_state`: the agent's state after the update, used to compute priorities,
            such as errors of its critic, or to read those that the agent stored there.
            If the agent diverges they may be `nan` or infinite, and should then be
            left out, since training may be resumed from this replay.
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
    frames: Frames | None = None
    returns: EpisodeReturns | None = None


ReplayState.__init__.__doc__ = """**Arguments:**

- `data`: the transitions, with leading axes `(envs, rows)`.
- `is_rollout`: whether they are the steps of one iteration only, as in `LatestRows`.
- `frames`: the frames of their observations, if these are stored apart: `data` then has
    `None` for `observation` and `next_observation`. `eqrl.stored_transitions` puts them
    together.
- `returns`: the returns of their episodes, if they are stored.
"""


def replay_size(tree: PyTree) -> tuple[int, int]:
    """The capacity of the replays in a tree, in transitions, and their bytes."""
    rings = parts(tree, ReplayState)
    return (
        sum(
            math.prod(ring.data.timestep.shape)
            for ring in rings
            if isinstance(ring.data, Transition)
        ),
        sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(rings)),
    )


def ring_axes(state: ReplayState[Item]) -> tuple[int, int]:
    """The numbers of environments and of rows."""
    num_envs, rows = jax.tree.leaves(state.data)[0].shape[:2]
    return num_envs, rows


def empty_rows(item: Item, num_envs: int, num_rows: int) -> ReplayState[Item]:
    """Empty storage for a number of rows of transitions like `item`."""
    return ReplayState(
        data=jax.tree.map(
            lambda x: jnp.zeros((num_envs, num_rows, *x.shape), x.dtype), item
        )
    )


def _without_observations(items: Item) -> Item:
    # The constructor does not allow transitions without observations.
    return eqx.tree_at(
        lambda items: (items.observation, items.next_observation), items, (None, None)
    )


def _apart(
    item: Item, stacking: Stacking, *, num_envs: int, num_rows: int, num_slots: int
) -> ReplayState[Item]:
    """Empty storage for rows whose observations share frames, if these are large."""
    transition = cast(AnyTransition, item)
    observation = transition.observation
    if math.prod(observation.shape) * observation.dtype.itemsize < LEAST_BYTES:
        return empty_rows(item, num_envs, num_rows)
    frames = empty_frames(
        transition, stacking, num_envs=num_envs, num_rows=num_rows, num_slots=num_slots
    )
    empty = empty_rows(_without_observations(item), num_envs, num_rows)
    return ReplayState(empty.data, frames=frames)


def transitions_at(
    state: ReplayState[Item], env: Int[Array, "..."], number: Int[Array, "..."]
) -> Item:
    """Rows by their environment and their number, counted from the first ever written.

    They must be among those that the replay holds. `env` and `number` must have equally
    many axes.
    """
    row = number % ring_axes(state)[1]
    data = jax.tree.map(lambda x: x[env, row], state.data)
    if state.returns is not None:
        found = state.returns.at(env, number)
        data = dataclasses.replace(data, episode_return=found)
    if state.frames is None:
        return data
    observation, successor = state.frames.at(env, number, data)
    return dataclasses.replace(
        data, observation=observation, next_observation=successor
    )


def first_held(state: ReplayState[Item], counts: Counts) -> Int[Array, "*envs"]:
    """The number of the oldest row that a replay holds.

    One number for each environment if frames are shared, else one for all.
    """
    _, rows = ring_axes(state)
    written = rows_so_far(counts)
    first = written - jnp.minimum(written, rows)
    return first if state.frames is None else jnp.maximum(first, state.frames.oldest)


def truncate_last_row(
    replay: ReplayState[AnyTransition], counts: Counts
) -> ReplayState[AnyTransition]:
    """Marks the newest row as truncated unless it is terminated.

    The environments are about to be reset, so no window may cross this row.
    """
    data, frames = replay.data, replay.frames
    written = rows_so_far(counts)
    row = (written - 1) % data.timestep.shape[1]
    terminated, truncated = data.terminated[:, row], data.truncated[:, row]
    # In a replay without rows, the newest one would be the last of the ring.
    cut = ~terminated & (truncated | (written > 0))
    if frames is not None:
        # The next row begins another episode, in the place of this one's successor.
        number = written - 1
        frames = frames.end(cut & ~truncated, frames.newest(number), number)
    returns = replay.returns
    if returns is not None:
        returns = returns.end(cut)
    return ReplayState(
        data=eqx.tree_at(
            lambda data: data.truncated, data, data.truncated.at[:, row].set(cut)
        ),
        is_rollout=replay.is_rollout,
        frames=frames,
        returns=returns,
    )


def write_row(
    state: ReplayState[Item],
    items: Item,
    number: Int[Array, ""],
    *,
    keep: Bool[Array, ""] | None,
) -> ReplayState[Item]:
    """Writes a transition of every environment, unless `keep` is false."""
    _, rows = ring_axes(state)
    frames, returns = state.frames, state.returns
    if returns is not None:
        returns = returns.write(cast(AnyTransition, items), number, keep=keep)
    if frames is not None:
        frames = frames.write(cast(AnyTransition, items), number, keep=keep)
        items = _without_observations(items)
    write = lambda data, item: write_slice(data, item, number % rows, keep=keep)
    return ReplayState(
        data=jax.tree.map(write, state.data, items),
        is_rollout=state.is_rollout,
        frames=frames,
        returns=returns,
    )


class ReplayBuffer(AbstractReplay[ReplayState[Any]]):
    """A ring buffer over time for each environment, sampled uniformly.

    Writing costs the same for every capacity. The position and the fill level of the
    ring follow from `Counts`.

    In a `Trainer`, observations of at least 2,048 bytes share storage: each is stored
    once, although it is also the successor of the one before, and so is each frame that
    observations of `eqrl.envs.FrameStack` and of Atari games have in common. There is
    room for the last frames of episodes of 16 steps on average. If episodes are
    shorter, fewer rows are held, and with a time limit below 16, observations are
    stored whole. Until rows are lost, batches are the same, bit for bit.

    With `episode_returns`, a batch includes the return of each transition's whole
    episode, as `eqrl.SMERL` requires.
    """

    capacity: int = static_integer(least=1)
    batch_size: int = static_integer(least=1)
    sequence_length: int = static_integer(1, least=1)
    share_frames: bool = eqx.field(default=True, static=True)
    episode_returns: bool = eqx.field(default=False, static=True)

    def init(
        self, item: Item, num_envs: int, *, stacking: Stacking | None = None
    ) -> ReplayState[Item]:
        """An empty replay.

        **Arguments:**

        - `item`: a transition of one environment, or its shapes and types.
        - `num_envs`: environments, each with room for `capacity // num_envs`
            transitions.
        - `stacking`: how observations are stacked from frames; the rows of each
            environment must then be consecutive, as a `Trainer` writes them. Without
            it, observations are stored whole.
        """
        rows = self.capacity // num_envs
        if rows < self.sequence_length:
            raise ValueError(
                f"`capacity={self.capacity}` gives each of `num_envs={num_envs}` "
                f"environments {rows} rows, fewer than `sequence_length="
                f"{self.sequence_length}`."
            )
        if stacking is None or not self.share_frames:
            empty = empty_rows(item, num_envs, rows)
        else:
            # The rows that are held are always enough for a run.
            num_slots = max(rows // ROWS_PER_END, self.sequence_length) + 1
            empty = _apart(
                item, stacking, num_envs=num_envs, num_rows=rows, num_slots=num_slots
            )
        if not self.episode_returns:
            return empty
        returns = no_returns(cast(AnyTransition, item), num_envs, rows)
        return ReplayState(empty.data, frames=empty.frames, returns=returns)

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
        number = rows_so_far(counts)
        return write_row(state, items, number, keep=keep)

    def keep_newest(
        self, state: ReplayState[Item], counts: Counts, *, num_rows: Int[Array, ""]
    ) -> tuple[ReplayState[Item], Counts]:
        """Forgets all but the newest rows, which keep their order.

        **Arguments:**

        - `state`: the replay.
        - `counts`: how much has been written.
        - `num_rows`: the number of rows to keep, at most as many as there are.

        **Returns:**

        The replay, and counts that start over.
        """
        _, rows = ring_axes(state)
        first = rows_so_far(counts) - num_rows
        row = (first + jnp.arange(rows)) % rows
        frames = None if state.frames is None else state.frames.from_row(first)
        returns = None if state.returns is None else state.returns.from_row(first)
        data = jax.tree.map(lambda x: x[:, row], state.data)
        kept = ReplayState(data, frames=frames, returns=returns)
        return kept, first_counts(num_rows)

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
        1. The arguments and results are those of `keep_newest`, with an additional key.
        """
        if state.frames is not None:
            raise ValueError(
                "`state` stores each observation once, for the row and the one before, "
                "so only consecutive rows can be kept; take `keep_newest`, or "
                "`ReplayBuffer(share_frames=False)`."
            )
        if state.returns is not None:
            raise ValueError(
                "`state` keeps the returns of episodes, of which only consecutive rows "
                "can be kept; take `keep_newest`, or `ReplayBuffer(episode_returns="
                "False)`."
            )
        num_envs, rows = ring_axes(state)
        filled = jnp.minimum(rows_so_far(counts), rows)
        state, _ = self.keep_newest(state, counts, num_rows=filled)
        # Ages count from the oldest row; places without a row are drawn last.
        age = jnp.broadcast_to(jnp.arange(rows), (num_envs, rows))
        lot = jnp.where(age < filled, jr.uniform(key, (num_envs, rows)), 2.0)
        rank = jnp.argsort(jnp.argsort(lot, axis=1), axis=1)
        order = jnp.argsort(jnp.where(rank < num_rows, age, age + rows), axis=1)
        env = jnp.arange(num_envs)[:, None]
        data = jax.tree.map(lambda x: x[env, order], state.data)
        return ReplayState(data=data), first_counts(num_rows)

    def sample(
        self, state: ReplayState[Item], counts: Counts, *, key: PRNGKeyArray
    ) -> Item:
        """Draws environments, and runs of consecutive rows from each, uniformly.

        A run stays with one environment and may continue into the next episode. At
        least `sequence_length` rows must have been written.

        **Arguments:**

        - `state`: the replay.
        - `counts`: how much has been written.
        - `key`: for the draw.

        **Returns:**

        A batch with leading axes `(batch,)` if `sequence_length` is 1, else
        `(batch, time)`.
        """
        num_envs, _ = ring_axes(state)
        env_key, start_key = jr.split(key)
        # Rows are numbered from the first ever written; row n is at place n % rows.
        written = rows_so_far(counts)
        oldest = first_held(state, counts)
        env = jr.randint(env_key, (self.batch_size,), 0, num_envs)
        if state.frames is not None:
            oldest = oldest[env]
        start = jr.randint(
            start_key,
            (self.batch_size,),
            0,
            written - oldest - self.sequence_length + 1,
        )
        number = oldest + start
        if self.sequence_length > 1:
            number = number[:, None] + jnp.arange(self.sequence_length)[None]
            env = env[:, None]
        return transitions_at(state, env, number)


ReplayBuffer.__init__.__doc__ = """**Arguments:**

- `capacity`: transitions held in total, at least 1, an equal share of them for each
    environment.
- `batch_size`: runs of consecutive transitions in a batch, at least 1.
- `sequence_length`: transitions in a run, at least 1.
- `share_frames`: whether large observations may share storage, as above.
- `episode_returns`: whether batches have an `episode_return`, which is nan while the
    episode runs. A `Trainer` takes it as `make_replay=functools.partial(
    eqrl.ReplayBuffer, episode_returns=True)`.
"""


@functools.cache
def whole_observations(make: MakeReplay) -> MakeReplay:
    """Makes `ReplayBuffer`s whose rows may be kept without their neighbors.

    It is the same object for each `make`, since compiled programs are found by it.
    """
    return functools.partial(make, share_frames=False)


class LatestRows(AbstractReplay[ReplayState[Any]]):
    """A replay that holds only the steps of the current iteration, in order.

    It is for agents that learn on-policy, whose `sequence_length` is `None`. A batch is
    the whole rollout, with the axes `(envs, time)`, without a copy. In a `Trainer`,
    observations of at least 2,048 bytes that share frames, as in a `ReplayBuffer`, are
    copied and stacked for the batch.
    """

    capacity: int = static_integer(least=1)
    batch_size: int = static_integer(least=1)
    sequence_length: int | None = eqx.field(default=None, static=True)

    def __check_init__(self) -> None:
        if self.sequence_length is not None:
            raise ValueError(
                f"`LatestRows` holds a rollout, but the agent learns from batches of "
                f"`sequence_length={shown(self.sequence_length)}` steps of a replay; "
                "take `make_replay=eqrl.ReplayBuffer`, the default of `eqrl.Trainer`."
            )

    def init(
        self, item: Item, num_envs: int, *, stacking: Stacking | None = None
    ) -> ReplayState[Item]:
        """Room for `capacity // num_envs` rows.

        **Arguments:**

        - `item`: a transition of one environment, or its shapes and types.
        - `num_envs`: the number of environments.
        - `stacking`: as in `ReplayBuffer`.
        """
        rows = self.capacity // num_envs
        empty = empty_rows(item, num_envs, rows)
        if stacking is not None and stacking.num_frames > 1:
            # Each row may end an episode, and none may be lost.
            empty = _apart(
                item, stacking, num_envs=num_envs, num_rows=rows, num_slots=rows
            )
        return ReplayState(empty.data, is_rollout=True, frames=empty.frames)

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
        - `counts`: the counts before this row. Kept rows do not matter: the first row
            of an iteration always takes the first place.
        - `keep`: if it is false, nothing changes.
        """
        return write_row(state, items, counts.rows_written, keep=keep)

    def sample(
        self, state: ReplayState[Item], counts: Counts, *, key: PRNGKeyArray
    ) -> Item:
        """All the steps of the iteration, with the axes `(envs, time)`.

        **Arguments:**

        - `state`: the replay.
        - `counts`: how much has been written.
        - `key`: not used.
        """
        del key
        if state.frames is None:
            return state.data
        num_envs, rows = ring_axes(state)
        # At each place, the number of the newest row.
        last = counts.rows_written - 1
        number = last - (last - jnp.arange(rows)) % rows
        return transitions_at(state, jnp.arange(num_envs)[:, None], number[None])


LatestRows.__init__.__doc__ = """**Arguments:**

- `capacity`: transitions of an iteration, over all environments.
- `batch_size`: the number of environments: a batch has the steps of each.
- `sequence_length`: `None`.
"""
