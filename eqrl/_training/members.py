"""Seeds and members of a population, run together or in turn on one or more devices."""

from collections.abc import Callable
from typing import Any, Literal, cast

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key, PRNGKeyArray

from .._agents.base import AnyAgent
from .._pytree.tree import repeated, stack_size, take_element
from .._types.custom_types import PyTree
from ..envs._base import AnyEnv
from .iteration import UnfinishedRow
from .mesh import POPULATION, on_each_device
from .rows import Runner
from .schedule import Counts
from .trainer import (
    AnyTrainerState,
    Piece,
    Ran,
    Trainer,
    begin_row,
    run_piece,
)


Members = Literal["together", "in_turn"]
RunOne = Callable[..., tuple[AnyTrainerState, Counts, Ran]]
"""Trains one member, from its state and whatever else belongs to it."""


def choose_members(members: Members | None, mesh: Mesh | None) -> Members:
    """Decides how the members of each device run; `None` depends on its kind."""
    if members is None:
        device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
        return "in_turn" if device.platform == "cpu" else "together"
    return members


def default_mesh(members: Members, size: int) -> Mesh | None:
    """As many CPU devices as can have equal shares of the members; `None` for one.

    Members together are on one device, since what they round depends on how many there
    are on each; and so they are where a device was chosen, or there are several
    processes.
    """
    is_placed = jax.config.values["jax_default_device"] is not None
    devices = jax.devices()
    is_cpu = devices[0].platform == "cpu"
    if members == "together" or is_placed or jax.process_count() > 1 or not is_cpu:
        return None
    number = most_shares(size, len(devices))
    if number == 1:
        return None
    return Mesh(np.array(devices[:number]), (POPULATION,))


def most_shares(size: int, limit: int) -> int:
    """The largest number, up to a limit, of equal shares of `size` members."""
    return max(number for number in range(1, limit + 1) if size % number == 0)


def map_members(
    function: Callable[..., Any], members: Members, *stacked: PyTree
) -> Any:
    """Maps over stacks to a stack, the members together or in turn.

    In turn each has the result that it has alone, bit for bit. Together its numbers are
    rounded otherwise, those of orthogonal initial weights too.
    """
    if members == "together":
        return eqx.filter_vmap(function)(*stacked)
    arrays, static = eqx.partition(stacked, eqx.is_array)
    statics: list[PyTree] = []

    def of_one(arrays: PyTree) -> PyTree:
        result = function(*eqx.combine(arrays, static))
        result_arrays, result_static = eqx.partition(result, eqx.is_array)
        statics.append(result_static)
        return result_arrays

    return eqx.combine(lax.map(of_one, arrays), statics[-1])


def run_together(
    run: RunOne, states: AnyTrainerState, *stacked: PyTree
) -> tuple[AnyTrainerState, Counts, Ran]:
    """Trains all members together."""
    out_axes = (eqx.if_array(0), None, eqx.if_array(0))
    return eqx.filter_vmap(run, out_axes=out_axes)(states, *stacked)


def run_in_turn(
    run: RunOne, states: AnyTrainerState, *stacked: PyTree
) -> tuple[AnyTrainerState, Counts, Ran]:
    """Trains one member after another, each written back to where it was taken from.

    The states are the carry of the loop, so that they are updated in place: as inputs
    and outputs of it they, replays included, would be in memory twice.
    """
    arrays, static = eqx.partition(states, eqx.is_array)
    stacked_arrays, stacked_static = eqx.partition(stacked, eqx.is_array)

    def body(arrays: PyTree, index: Int[Array, ""]) -> tuple[PyTree, Any]:
        state_of, rest_of = jax.tree.map(
            lambda x: lax.dynamic_index_in_dim(x, index, keepdims=False),
            (arrays, stacked_arrays),
        )
        state, counts, ran = run(
            eqx.combine(state_of, static), *eqx.combine(rest_of, stacked_static)
        )
        arrays = jax.tree.map(
            lambda x, y: lax.dynamic_update_index_in_dim(x, y, index, axis=0),
            arrays,
            eqx.filter(state, eqx.is_array),
        )
        return arrays, (counts, ran)

    arrays, (counts, ran) = lax.scan(body, arrays, jnp.arange(stack_size(states)))
    # The counters of all members are the same.
    counts = jax.tree.map(lambda x: x[0], counts)
    return eqx.combine(arrays, static), counts, ran


class Crew(eqx.Module):
    """The members of a population, or the seeds of one agent, and how they train.

    - `agents`: a stack, or one agent that all share.
    - `keys`: of each.
    - `are_stacked`: whether `agents` is a stack.
    - `members`, `mesh`: whether they run together or in turn, and the devices.
    """

    trainer: Trainer
    agents: AnyAgent
    env: AnyEnv
    keys: Key[Array, " members"]
    are_stacked: bool = eqx.field(static=True)
    members: Members = eqx.field(static=True)
    mesh: Mesh | None = eqx.field(static=True)

    def runner(self, empty: UnfinishedRow) -> Runner:
        """Makes a runner, with `empty` as the beginning of each row."""

        def run(
            states: AnyTrainerState, counts: Counts, first: PyTree, piece: Piece
        ) -> tuple[AnyTrainerState, Counts, Ran]:
            return run_members((self, first, piece), states, counts)

        return Runner(run, self.trainer, empty, self.mesh)


@eqx.filter_jit
def begin_rows(crew: Crew, states: AnyTrainerState, counts: Counts) -> UnfinishedRow:
    """The beginning of a row of metrics of each member."""
    agent = take_element(crew.agents, 0) if crew.are_stacked else crew.agents
    state = take_element(states, 0)
    row = begin_row(crew.trainer, agent, crew.env, state, counts)
    return repeated(row, stack_size(states))


@eqx.filter_jit(donate="all-except-first")
def run_members(
    kept: tuple[Crew, PyTree, Piece], states: AnyTrainerState, counts: Counts
) -> tuple[AnyTrainerState, Counts, Ran]:
    """Trains each member for a part of a row."""
    crew, first, piece = kept
    # What is not stacked is `None` there, and the other way around.
    own, common = (crew.agents, None) if crew.are_stacked else (None, crew.agents)

    def run_share(
        stacked: tuple[
            AnyTrainerState,
            AnyAgent | None,
            PyTree,
            UnfinishedRow,
            Key[Array, " share"],
        ],
        shared: tuple[AnyAgent | None, AnyEnv, Counts, Int[Array, ""], Array],
    ) -> tuple[tuple[AnyTrainerState, Ran], Counts]:
        common, env, counts, num_steps, ends_row = shared

        def run(
            state: AnyTrainerState,
            own: AnyAgent | None,
            first: PyTree,
            row: UnfinishedRow,
            key: PRNGKeyArray,
        ) -> tuple[AnyTrainerState, Counts, Ran]:
            return run_piece(
                crew.trainer,
                cast(AnyAgent, own if common is None else common),
                env,
                state,
                counts,
                first,
                Piece(num_steps=num_steps, row=row, ends_row=ends_row),
                key=key,
                mapped=crew.members == "together",
            )

        run_all = run_together if crew.members == "together" else run_in_turn
        states, counts_after, ran = run_all(run, *stacked)
        return (states, ran), counts_after

    (states, ran), counts = on_each_device(
        run_share,
        crew.mesh,
        (states, own, first, piece.row, crew.keys),
        (common, crew.env, counts, piece.num_steps, piece.ends_row),
    )
    return states, counts, ran
