"""Returns of whole episodes, for each row of a replay."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Shaped

from .._types.data import AnyTransition
from .frames import write_slice


class EpisodeReturns(eqx.Module):
    """Sums of rewards over the episodes of past rows.

    Each environment stores its episodes in slots, which are filled in turn. An episode
    has at least one row, so with a slot for each row that is held, an episode keeps its
    slot as long as one of its rows is held. `slot` is that of the running episode.
    """

    slot_of_row: Int[Array, "envs rows"]
    sums: Shaped[Array, "envs slots ..."]
    is_over: Bool[Array, "envs slots"]
    slot: Int[Array, " envs"]

    def write(
        self,
        items: AnyTransition,
        number: Int[Array, ""],
        *,
        keep: Bool[Array, ""] | None,
    ) -> "EpisodeReturns":
        """Adds the rewards of a row: one transition of every environment."""
        num_envs, num_slots = self.is_over.shape
        env = jnp.arange(num_envs)
        begins = self.is_over[env, self.slot]
        slot = jnp.where(begins, (self.slot + 1) % num_slots, self.slot)
        over = items.terminated | items.truncated
        sums = self.sums[env, slot]
        first = begins.reshape(begins.shape + (1,) * (sums.ndim - 1))
        sums = jnp.where(first, 0, sums) + items.reward
        # Writes out of range are dropped, so arrays are updated in place.
        target = slot if keep is None else jnp.where(keep, slot, num_slots)
        return EpisodeReturns(
            slot_of_row=write_slice(
                self.slot_of_row, slot, number % num_slots, keep=keep
            ),
            sums=self.sums.at[env, target].set(sums, mode="drop"),
            is_over=self.is_over.at[env, target].set(over, mode="drop"),
            slot=slot if keep is None else jnp.where(keep, slot, self.slot),
        )

    def end(self, over: Bool[Array, " envs"]) -> "EpisodeReturns":
        """Ends the running episodes of some environments with their newest row."""
        env = jnp.arange(over.shape[0])
        is_over = self.is_over.at[env, self.slot].max(over)
        return eqx.tree_at(lambda x: x.is_over, self, is_over)

    def at(
        self, env: Int[Array, "..."], number: Int[Array, "..."]
    ) -> Float[Array, "..."]:
        """The returns of the rows' episodes; nan for those that are still running."""
        slot = self.slot_of_row[env, number % self.is_over.shape[1]]
        sums, is_over = self.sums[env, slot], self.is_over[env, slot]
        is_over = is_over.reshape(is_over.shape + (1,) * (sums.ndim - is_over.ndim))
        return jnp.where(is_over, sums, jnp.nan)

    def from_row(self, number: Int[Array, ""]) -> "EpisodeReturns":
        """The same returns, with rows counted from the one with this number."""
        num_rows = self.is_over.shape[1]
        row = (number + jnp.arange(num_rows)) % num_rows
        return eqx.tree_at(lambda x: x.slot_of_row, self, self.slot_of_row[:, row])


def no_returns(item: AnyTransition, num_envs: int, num_rows: int) -> EpisodeReturns:
    """Empty storage for the returns of as many episodes as there are rows."""
    shape = (num_envs, num_rows)
    return EpisodeReturns(
        slot_of_row=jnp.zeros(shape, int),
        sums=jnp.zeros((*shape, *item.reward.shape), item.reward.dtype),
        is_over=jnp.zeros(shape, bool),
        slot=jnp.zeros(num_envs, int),
    )
