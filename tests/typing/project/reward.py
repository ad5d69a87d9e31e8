"""A reward for places that were rarely seen."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

import eqrl


class RareState(eqx.Module):
    """How often each cell of a grid was seen."""

    counts: Float[Array, "rows columns"]


class Rare(eqrl.AbstractReward[RareState]):
    """One over the root of the number of times at which the cell was seen."""

    scale: eqrl.FloatLike = eqrl.hyperparameter(1.0)
    num_cells: int = eqx.field(default=8, static=True)

    def init(self, spec: eqrl.EnvSpec, *, key: PRNGKeyArray) -> RareState:
        del key
        if spec.state_descriptor_size != 2:
            raise ValueError("`Rare` counts cells of places, which are two numbers.")
        return RareState(counts=jnp.ones((self.num_cells, self.num_cells)))

    def observe(self, state: RareState, transitions: eqrl.Transition) -> RareState:
        rows, columns = self._cells(transitions)
        return RareState(counts=state.counts.at[rows, columns].add(1))

    def reward(
        self,
        state: RareState,
        batch: eqrl.Transition,
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        del step, key
        rows, columns = self._cells(batch)
        return self.scale / jnp.sqrt(state.counts[rows, columns])

    def update(
        self, state: RareState, batch: eqrl.Transition, *, key: PRNGKeyArray
    ) -> tuple[RareState, eqrl.Metrics]:
        del batch, key
        return state, {"seen_cells": jnp.mean((state.counts > 1).astype(float))}

    def _cells(
        self, transitions: eqrl.Transition
    ) -> tuple[Int[Array, "*batch"], Int[Array, "*batch"]]:
        place = transitions.next_state_descriptor
        assert place is not None
        cells = jnp.floor((jnp.clip(place, -1, 0.999) + 1) / 2 * self.num_cells)
        return cells[..., 0].astype(int), cells[..., 1].astype(int)
