"""Rows of the replay: the cost of a written row and a drawn batch by the capacity.

Transitions have the sizes of brax's Ant; a row is that of one environment, a batch has
256 transitions.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

import eqrl
from eqrl._pytree.control_flow import filter_fori_loop
from eqrl._training.schedule import Counts

from .agent_rows import ACTION_SIZE, NUM_TRANSITIONS, OBSERVATION_SIZE
from .beside_limit import Repeated, measure_row
from .command import MakeRows
from .measure import Effort
from .report import Row


CAPACITIES = (10_000, 100_000, 1_000_000)


def _make_item() -> eqrl.Transition[None]:
    return eqrl.Transition(
        observation=jnp.ones(OBSERVATION_SIZE),
        action=jnp.ones(ACTION_SIZE),
        reward=jnp.ones(()),
        next_observation=jnp.ones(OBSERVATION_SIZE),
        terminated=jnp.array(False),
        truncated=jnp.array(False),
        timestep=jnp.zeros((), int),
        state_descriptor=None,
        next_state_descriptor=None,
        extras=None,
    )


def _counts(rows: Int[Array, ""]) -> Counts:
    zero = jnp.zeros((), int)
    return Counts(updates=zero, rows_written=rows, rows_kept=zero)


@eqx.filter_jit(donate="all-except-first")
def _insert(
    kept: tuple[eqrl.ReplayBuffer, Any, Int[Array, ""]], state: PyTree
) -> PyTree:
    buffer, row, num_rows = kept

    def insert(index: Int[Array, ""], state: PyTree) -> PyTree:
        return buffer.add(state, row, _counts(index))

    return filter_fori_loop(0, num_rows, insert, state)


@eqx.filter_jit
def _sample(
    buffer: eqrl.ReplayBuffer,
    state: PyTree,
    num_batches: Int[Array, ""],
    key: PRNGKeyArray,
) -> PyTree:
    full = _counts(jnp.asarray(buffer.capacity, int))

    def sample(index: Int[Array, ""], batch: PyTree) -> PyTree:
        del batch
        return buffer.sample(state, full, key=jr.fold_in(key, index))

    empty = jax.tree.map(
        lambda leaf: jnp.zeros(leaf.shape, leaf.dtype),
        eqx.filter_eval_shape(buffer.sample, state, full, key=key),
    )
    return filter_fori_loop(0, num_batches, sample, empty)


def _make_buffer(capacity: int) -> tuple[eqrl.ReplayBuffer, PyTree]:
    buffer = eqrl.ReplayBuffer(capacity=capacity, batch_size=NUM_TRANSITIONS)
    return buffer, buffer.init(_make_item(), 1)


def _make_insert(capacity: int) -> Repeated:
    buffer, state = _make_buffer(capacity)
    row = jax.tree.map(lambda x: x[None], _make_item())

    def run(num_rows: int) -> PyTree:
        nonlocal state
        state = _insert((buffer, row, jnp.asarray(num_rows)), state)
        return state

    return run


def _make_sample(capacity: int) -> Repeated:
    buffer, state = _make_buffer(capacity)
    key = jr.key(0)
    return lambda num_batches: _sample(buffer, state, jnp.asarray(num_batches), key)


def _rows_of(kind: str, capacity: int) -> MakeRows:
    def make(effort: Effort) -> list[Row]:
        run = _make_insert(capacity) if kind == "insert" else _make_sample(capacity)
        unit = "rows/s" if kind == "insert" else "batches/s"
        name = f"{kind}/{capacity}"
        return [measure_row(name, unit, run, effort=effort, least=64)]

    return make


REPLAYS = {
    f"{kind}/{capacity}": _rows_of(kind, capacity)
    for kind in ("insert", "sample")
    for capacity in CAPACITIES
}
