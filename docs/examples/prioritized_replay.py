"""Prioritized experience replay (Schaul et al., arXiv 1511.05952)."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

import eqrl
from eqrl import losses


class Drawn(eqx.Module):
    """Extras of a batch: stored ones, positions in the replay, importance weights."""

    extras: Any
    place: tuple[Array, ...]
    weight: Array


class PrioritizedState(eqx.Module):
    ring: eqrl.ReplayState[Any]
    priority: Array  # (envs, rows); 0 where nothing is written yet


class PrioritizedReplay(eqrl.AbstractPrioritizedReplay[PrioritizedState]):
    priority_of: Callable[[Any, eqrl.Transition[Any]], Array] = eqx.field(static=True)
    capacity: int = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    sequence_length: int = eqx.field(default=1, static=True)
    exponent: float = eqx.field(default=0.6, static=True)
    correction: float = eqx.field(default=0.4, static=True)

    @property
    def ring(self) -> eqrl.ReplayBuffer:
        return eqrl.ReplayBuffer(self.capacity, self.batch_size)

    def init(self, item: eqrl.Transition[Any], num_envs: int) -> PrioritizedState:
        ring = self.ring.init(item, num_envs)
        return PrioritizedState(ring, jnp.zeros(ring.data.reward.shape[:2]))

    def add(
        self,
        state: PrioritizedState,
        items: eqrl.Transition[Any],
        counts: eqrl.Counts,
        *,
        keep: Array | None = None,
    ) -> PrioritizedState:
        row = (counts.rows_kept + counts.rows_written) % state.priority.shape[1]
        highest = jnp.max(state.priority)
        new = jnp.where(highest > 0, highest, 1.0)
        kept = new if keep is None else jnp.where(keep, new, state.priority[:, row])
        ring = self.ring.add(state.ring, items, counts, keep=keep)
        return PrioritizedState(ring, state.priority.at[:, row].set(kept))

    def sample(
        self, state: PrioritizedState, counts: eqrl.Counts, *, key: Array
    ) -> eqrl.Transition[Any]:
        scaled = state.priority.ravel() ** self.exponent
        cumulative = jnp.cumsum(scaled)
        sums = jr.uniform(key, (self.batch_size,)) * cumulative[-1]
        index = jnp.searchsorted(cumulative, sums, side="right")
        # The sum may rise by a rounding error where nothing is written.
        written = jnp.where(scaled > 0, jnp.arange(scaled.size), 0)
        index = jax.lax.cummax(written)[index]
        place = jnp.unravel_index(index, state.priority.shape)
        weight = (scaled[index] / cumulative[-1]) ** -self.correction
        batch = jax.tree.map(lambda x: x[place], state.ring.data)
        drawn = Drawn(batch.extras, place, weight / jnp.max(weight))
        return dataclasses.replace(batch, extras=drawn)

    def prioritize(
        self,
        state: PrioritizedState,
        batch: eqrl.Transition[Any],
        agent_state: Any,
        counts: eqrl.Counts,
        *,
        keep: Array | None = None,
    ) -> PrioritizedState:
        place = batch.extras.place
        fresh = self.priority_of(agent_state, batch) + 1e-6
        # One error of an agent that diverges would spoil the draws of all batches.
        known = jnp.isfinite(fresh) & (True if keep is None else keep)
        kept = jnp.where(known, fresh, state.priority[place])
        return PrioritizedState(state.ring, state.priority.at[place].set(kept))


# The error of SAC's critics, with the most likely next action.
def td_error(state: eqrl.SACState, batch: eqrl.Transition[Any]) -> Array:
    action = jax.vmap(lambda x: state.actor(x).mode())(batch.next_observation)
    values = losses.critic_values(state.target_critics, batch.next_observation, action)
    lowest = jnp.min(values, axis=0)
    target = losses.bootstrapped_target(batch.reward, batch.terminated, lowest, 0.99)
    values = losses.critic_values(state.critics, batch.observation, batch.action)
    return jnp.mean(jnp.abs(target[None] - values), axis=0)
