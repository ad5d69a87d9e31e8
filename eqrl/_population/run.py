"""Runs the members of a population, at once or in turn, on each device."""

from collections.abc import Callable
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key, PRNGKeyArray

from .._agents.base import AnyAgent
from .._pytree.fields import check_choice
from .._pytree.stack import stack_size
from .._training.counts import Counts
from .._training.failure import FailureReport
from .._training.trainer import AnyTrainerState, Trainer, run_trainer
from .._types.custom_types import PyTree
from ..envs._base import AnyEnv
from .mesh import on_each_device


Members = Literal["together", "in_turn"]
Logged = tuple[dict[str, Array], FailureReport]
"""What training reports: a value for each member."""


def choose_members(members: Members | None, mesh: Mesh | None) -> Members:
    """How to run the members of each device; `None` chooses by the kind of device."""
    if members is None:
        device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
        return "in_turn" if device.platform == "cpu" else "together"
    check_choice("members", members, get_args(Members))
    return members


def map_members(function: Callable[..., Any], members: Members, stacked: Any) -> Any:
    """Maps over stacks to a stack of arrays, the members together or in turn."""
    if members == "together":
        return eqx.filter_vmap(function)(*stacked)
    arrays, static = eqx.partition(stacked, eqx.is_array)
    return lax.map(lambda x: function(*eqx.combine(x, static)), arrays)


@eqx.filter_jit
def init_members(
    trainer: Trainer,
    agents: AnyAgent,
    env: AnyEnv,
    keys: Key[Array, " population"],
    mesh: Mesh | None,
) -> tuple[AnyTrainerState, Counts]:
    """The initial state of each member, made on the device that will train it."""

    def init_share(
        stacked: tuple[AnyAgent, Key[Array, " share"]], env: AnyEnv
    ) -> tuple[AnyTrainerState, Counts]:
        def init(agent: AnyAgent, key: PRNGKeyArray) -> tuple[AnyTrainerState, Counts]:
            return trainer.init(agent, env, key=key)

        return eqx.filter_vmap(init, out_axes=(eqx.if_array(0), None))(*stacked)

    return on_each_device(init_share, mesh, (agents, keys), env)


@eqx.filter_jit(donate="all-except-first")
def run_members(
    kept: tuple[Trainer, AnyAgent, AnyEnv, Int[Array, ""], PRNGKeyArray],
    states: AnyTrainerState,
    counts: Counts,
    members: Members,
    mesh: Mesh | None,
) -> tuple[AnyTrainerState, Counts, Logged]:
    """Trains each member for a number of environment steps."""
    trainer, agents, env, num_steps, key = kept
    # Folded, not split: every generation passes the same key, from which the trainer
    # derives one for each step; and member i has the same key whatever the size.
    keys = jax.vmap(lambda index: jr.fold_in(key, index))(
        jnp.arange(stack_size(states))
    )

    def run_share(
        stacked: tuple[AnyAgent, AnyTrainerState, Key[Array, " share"]],
        shared: tuple[AnyEnv, Counts, Int[Array, ""]],
    ) -> tuple[tuple[AnyTrainerState, Logged], Counts]:
        env, counts, num_steps = shared

        def run(
            agent: AnyAgent, state: AnyTrainerState, key: PRNGKeyArray
        ) -> tuple[AnyTrainerState, Counts, Logged]:
            state, counts_after, metrics, report = run_trainer(
                trainer,
                agent,
                env,
                state,
                counts,
                num_steps=num_steps,
                key=key,
                mapped=members == "together",
            )
            return state, counts_after, (metrics, report)

        run_all = _run_together if members == "together" else _run_in_turn
        states, counts, logged = run_all(run, *stacked)
        return (states, logged), counts

    (states, logged), counts = on_each_device(
        run_share, mesh, (agents, states, keys), (env, counts, num_steps)
    )
    return states, counts, logged


_RunOne = Callable[
    [AnyAgent, AnyTrainerState, PRNGKeyArray], tuple[AnyTrainerState, Counts, Logged]
]


def _run_together(
    run: _RunOne,
    agents: AnyAgent,
    states: AnyTrainerState,
    keys: Key[Array, " population"],
) -> tuple[AnyTrainerState, Counts, Logged]:
    out_axes = (eqx.if_array(0), None, eqx.if_array(0))
    return eqx.filter_vmap(run, out_axes=out_axes)(agents, states, keys)


def _run_in_turn(
    run: _RunOne,
    agents: AnyAgent,
    states: AnyTrainerState,
    keys: Key[Array, " population"],
) -> tuple[AnyTrainerState, Counts, Logged]:
    """One member after another, each written back to where it was taken from.

    The states are the carry of the loop, so that they are updated in place: as inputs
    and outputs of it they, replays included, would be in memory twice.
    """
    arrays, static = eqx.partition(states, eqx.is_array)
    agent_arrays, agent_static = eqx.partition(agents, eqx.is_array)

    def body(arrays: PyTree, index: Int[Array, ""]) -> tuple[PyTree, Any]:
        agent_of, state_of = jax.tree.map(
            lambda x: lax.dynamic_index_in_dim(x, index, keepdims=False),
            (agent_arrays, arrays),
        )
        state, counts, logged = run(
            eqx.combine(agent_of, agent_static),
            eqx.combine(state_of, static),
            keys[index],
        )
        arrays = jax.tree.map(
            lambda x, y: lax.dynamic_update_index_in_dim(x, y, index, axis=0),
            arrays,
            eqx.filter(state, eqx.is_array),
        )
        return arrays, (counts, logged)

    arrays, (counts, logged) = lax.scan(body, arrays, jnp.arange(stack_size(states)))
    # The counters of all members are the same.
    counts = jax.tree.map(lambda x: x[0], counts)
    return eqx.combine(arrays, static), counts, logged
