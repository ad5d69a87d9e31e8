"""Past observations that share frames, with each frame stored about once."""

import dataclasses

import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint
from jaxtyping import Array, Bool, Int, Shaped

from .._types.custom_types import Observation
from .._types.data import AnyTransition, Stacking


# Observations of fewer bytes are stored whole, which is faster and costs little.
LEAST_BYTES = 2_048

# There is a slot for one end of an episode in this many rows; if episodes end more
# often, the oldest rows are lost.
ROWS_PER_END = 16


class Frames(eqx.Module):
    """The frames of the observations and successors of past rows.

    Rows are numbered as they are written. Frame `n` is the newest one of the
    observation of row `n`, at the place `n % num_places`. Until row `n + 1` is written,
    its place has the newest frame of the successor of row `n`: the same frame, unless
    row `n` ended an episode. The last frame of an episode is in a separate slot, after
    those places. Slots are filled in turn. If episodes are so short that the slot of a
    row is reused before the row is overwritten, `oldest` is the first row whose
    successor is still there.
    """

    frames: Shaped[Array, "envs places frame"]
    slot_of_row: Int[Array, "envs rows"]
    row_of_slot: Int[Array, "envs slots"]
    next_slot: Int[Array, " envs"]
    oldest: Int[Array, " envs"]
    # The number of the next row. A member of a population that failed has fewer rows
    # than are counted.
    written: Int[Array, ""]
    stacking: Stacking = eqx.field(static=True)

    @property
    def num_rows(self) -> int:
        """Rows in the ring."""
        return self.slot_of_row.shape[-1]

    @property
    def num_places(self) -> int:
        """Places for frames that are found by row number."""
        # The frames of the oldest row, and that of the successor of the newest.
        return self.num_rows + self.stacking.num_frames

    def write(
        self,
        items: AnyTransition,
        number: Int[Array, ""],
        *,
        keep: Bool[Array, ""] | None,
    ) -> "Frames":
        """Writes the frames of a row: one transition of every environment."""
        reached = self.stacking.newest(items.next_observation)
        over = items.terminated | items.truncated
        if keep is not None:
            over = over & keep
        frames = self.frames
        for offset, new in ((0, self.stacking.newest(items.observation)), (1, reached)):
            place = (number + offset) % self.num_places
            frames = write_slice(frames, new, place, keep=keep)
        after = number + 1
        if keep is not None:
            after = jnp.where(keep, after, self.written)
        written = dataclasses.replace(self, frames=frames, written=after)
        return written.end(over, reached, number)

    def end(
        self,
        over: Bool[Array, " envs"],
        reached: Observation[Array, "envs frame"],
        number: Int[Array, ""],
    ) -> "Frames":
        """Stores the last frame of the episodes that are `over` after a row."""
        env, num_slots = jnp.arange(over.shape[0]), self.row_of_slot.shape[-1]
        slot = self.next_slot
        # Writes out of range are dropped, so frames are updated in place; selecting
        # between two arrays of them would copy both.
        target = jnp.where(over, slot, num_slots)
        overwritten = jnp.maximum(self.oldest, self.row_of_slot[env, slot] + 1)
        row = number % self.num_rows
        old_slot = lax.dynamic_index_in_dim(self.slot_of_row, row, 1, keepdims=False)
        return dataclasses.replace(
            self,
            frames=self.frames.at[env, self.num_places + target].set(
                reached, mode="drop"
            ),
            slot_of_row=lax.dynamic_update_index_in_dim(
                self.slot_of_row, jnp.where(over, slot, old_slot), row, 1
            ),
            row_of_slot=self.row_of_slot.at[env, target].set(number, mode="drop"),
            next_slot=jnp.where(over, (slot + 1) % num_slots, slot),
            oldest=jnp.where(over, overwritten, self.oldest),
        )

    def newest(self, number: Int[Array, ""]) -> Observation[Array, "envs frame"]:
        """The newest frame of the successor of the row with this number."""
        place = (number + 1) % self.num_places
        return lax.dynamic_index_in_dim(self.frames, place, 1, keepdims=False)

    def at(
        self,
        env: Int[Array, "..."],
        number: Int[Array, "..."],
        data: AnyTransition,
    ) -> tuple[Observation[Array, "*batch obs"], Observation[Array, "*batch obs"]]:
        """The observations and successors of rows.

        **Arguments:**

        - `env`, `number`: the environment and the number of each row.
        - `data`: the rest of the transitions of these rows.
        """
        num_frames = self.stacking.num_frames
        # The first frame of an episode takes the place of earlier ones.
        ages = jnp.flip(jnp.arange(num_frames))
        age = jnp.minimum(
            jnp.broadcast_to(ages, (*data.timestep.shape, num_frames)),
            jnp.expand_dims(data.timestep, -1),
        )
        place = (jnp.expand_dims(number, -1) - age) % self.num_places
        slot = self.slot_of_row[env, number % self.num_rows]
        next_place = jnp.where(
            data.terminated | data.truncated,
            self.num_places + slot,
            (number + 1) % self.num_places,
        )
        place = jnp.concatenate([place, jnp.expand_dims(next_place, -1)], axis=-1)
        if num_frames == 1 or self.stacking.num_pixels == 1:
            # The frames of an observation are in order as they are gathered.
            take = lambda place: self.frames[jnp.expand_dims(env, -1), place]
            first, second = take(place[..., :-1]), take(place[..., 1:])
            batch = data.timestep.shape
            return first.reshape(*batch, -1), second.reshape(*batch, -1)
        # Frames are copied first, once for both, and then put in order. On a CPU, XLA
        # would otherwise go element by element, which takes five times as long.
        frames = _as_it_is(
            self.frames[jnp.expand_dims(env, 0), jnp.moveaxis(place, -1, 0)]
        )
        first, second = frames[:-1], frames[1:]
        return _together(self.stacking, first), _together(self.stacking, second)

    def from_row(self, number: Int[Array, ""]) -> "Frames":
        """The same frames, with rows that are counted from the one with this number."""
        place = (number + jnp.arange(self.num_places)) % self.num_places
        slots = jnp.arange(self.num_places, self.frames.shape[1])
        return dataclasses.replace(
            self,
            frames=self.frames[:, jnp.concatenate([place, slots])],
            slot_of_row=self.slot_of_row[
                :, (number + jnp.arange(self.num_rows)) % self.num_rows
            ],
            row_of_slot=self.row_of_slot - number,
            oldest=jnp.maximum(self.oldest - number, 0),
            written=self.written - number,
        )


def empty_frames(
    item: AnyTransition,
    stacking: Stacking,
    *,
    num_envs: int,
    num_rows: int,
    num_slots: int,
) -> Frames:
    """Empty storage for the frames of rows of transitions like `item`."""
    num_places = num_rows + stacking.num_frames + num_slots
    shape = (num_envs, num_places, stacking.frame_size)
    return Frames(
        frames=jnp.zeros(shape, item.observation.dtype),
        slot_of_row=jnp.zeros((num_envs, num_rows), int),
        row_of_slot=jnp.full((num_envs, num_slots), -1, int),
        next_slot=jnp.zeros(num_envs, int),
        oldest=jnp.zeros(num_envs, int),
        written=jnp.zeros((), int),
        stacking=stacking,
    )


def write_slice(
    data: Array, item: Array, place: Int[Array, ""], *, keep: Bool[Array, ""] | None
) -> Array:
    """Writes an item of every environment at one place, unless `keep` is false."""
    wanted = (data.shape[0], *data.shape[2:])
    if item.shape != wanted:
        raise ValueError(
            f"A replay was given an array of shape {item.shape} in place of {wanted}: "
            "add one transition of every environment, with a leading axis `envs`."
        )
    # Places are a separate axis, after the environments, so that one slice holds the
    # row of all environments. XLA writes a slice in place, and `vmap` with an unbatched
    # place keeps it so.
    if keep is not None:
        # Selected within the row: selecting between two replays would cost a copy.
        old = lax.dynamic_index_in_dim(data, place, axis=1, keepdims=False)
        item = jnp.where(keep, item, old)
    return lax.dynamic_update_index_in_dim(data, item, place, axis=1)


def _together(
    stacking: Stacking, frames: Observation[Array, "frames *batch frame"]
) -> Observation[Array, "*batch obs"]:
    batch = frames.shape[1:-1]
    if stacking.num_channels == 1:
        # An axis for the one channel would slow down the rest.
        return _as_it_is(jnp.moveaxis(frames, 0, -1)).reshape(*batch, -1)
    axes = (*frames.shape[:-1], stacking.num_pixels, stacking.num_channels)
    return _as_it_is(jnp.moveaxis(frames.reshape(axes), 0, -2)).reshape(*batch, -1)


def _as_it_is(x: Shaped[Array, "..."]) -> Shaped[Array, "..."]:
    """The same array, which XLA stores in the order of its axes."""
    return with_layout_constraint(x, Layout(tuple(range(x.ndim))))
