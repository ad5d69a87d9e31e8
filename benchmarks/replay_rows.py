"""Rows of the replay: the cost of a written row and a drawn batch by the capacity.

Transitions have the sizes of brax's Ant; a row is that of one environment, a batch has
256 transitions. Those with images have four of Atari's, in a replay of 100,000, of
which 8 environments write a row and batches have 32.
"""

from typing import Any, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Int, PRNGKeyArray, PyTree, Shaped

import eqrl
from eqrl._pytree.control_flow import filter_fori_loop
from eqrl._training.replay import replay_size
from eqrl._training.schedule import Counts
from eqrl._types.data import Stacking

from .agent_rows import ACTION_SIZE, NUM_TRANSITIONS, OBSERVATION_SIZE
from .beside_limit import Repeated, measure_row
from .command import MakeRows
from .measure import Effort
from .report import Row


CAPACITIES = (10_000, 100_000, 1_000_000)

# Images, stored whole or with frames that are shared.
KINDS: tuple[Literal["whole", "shared"], ...] = ("whole", "shared")

# A capacity, or a way to store images.
Kind: TypeAlias = int | Literal["whole", "shared"]

_IMAGES = Stacking(4, 84 * 84, 1)


def _make_item(observation: Shaped[Array, " obs"]) -> eqrl.Transition[None]:
    return eqrl.Transition(
        observation=observation,
        action=jnp.ones(ACTION_SIZE),
        reward=jnp.ones(()),
        next_observation=observation,
        terminated=jnp.array(False),
        truncated=jnp.array(False),
        timestep=jnp.full((), 9, int),
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


def _make_buffer(kind: Kind) -> tuple[eqrl.ReplayBuffer, PyTree, PyTree]:
    """A replay, its state, and a row."""
    num_envs, batch_size, stacking = 1, NUM_TRANSITIONS, None
    item = _make_item(jnp.ones(OBSERVATION_SIZE))
    capacity = kind if isinstance(kind, int) else CAPACITIES[1]
    if not isinstance(kind, int):
        num_envs, batch_size = 8, 32
        item = _make_item(jnp.ones(4 * _IMAGES.frame_size, jnp.uint8))
        stacking = _IMAGES if kind == "shared" else None
    buffer = eqrl.ReplayBuffer(capacity=capacity, batch_size=batch_size)
    row = jax.tree.map(lambda x: jnp.stack([x] * num_envs), item)
    return buffer, buffer.init(item, num_envs, stacking=stacking), row


def _make_insert(kind: Kind) -> Repeated:
    buffer, state, row = _make_buffer(kind)

    def run(num_rows: int) -> PyTree:
        nonlocal state
        state = _insert((buffer, row, jnp.asarray(num_rows)), state)
        return state

    return run


def _make_sample(kind: Kind) -> Repeated:
    buffer, state, row = _make_buffer(kind)
    # In an empty replay all rows would be the first of an episode, and have one frame.
    num_rows = state.data.timestep.shape[1]
    state = _insert((buffer, row, jnp.asarray(num_rows)), state)
    key = jr.key(0)
    return lambda num_batches: _sample(buffer, state, jnp.asarray(num_batches), key)


def _rows_of(what: str, kind: Kind) -> MakeRows:
    def make(effort: Effort) -> list[Row]:
        run = _make_insert(kind) if what == "insert" else _make_sample(kind)
        unit = "rows/s" if what == "insert" else "batches/s"
        name = f"{what}/{kind}"
        rows = [measure_row(name, unit, run, effort=effort, least=64)]
        if what == "insert" and not isinstance(kind, int):
            _, state, _ = eqx.filter_eval_shape(_make_buffer, kind)
            megabytes = replay_size(state)[1] / 1e6
            rows.append(Row(f"images/{kind}", "MB", (megabytes,)))
        return rows

    return make


REPLAYS = {
    f"{what}/{kind}": _rows_of(what, kind)
    for what in ("insert", "sample")
    for kind in (*CAPACITIES, *KINDS)
}
