from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key, PRNGKeyArray, PyTree

from .._pytree.stack import stack_size
from .._training.replay import Counts
from .._training.trainer import Trainer
from .._types.custom_types import Metrics
from ..envs import AbstractEnv
from .members import Members
from .mesh import on_each_device


@eqx.filter_jit
def init_members(
    trainer: Trainer,
    agents: Any,
    env: AbstractEnv[Any],
    keys: Key[Array, " population"],
    mesh: Mesh | None,
) -> tuple[Any, Counts]:
    """The members at the beginning, each made on the device that is to train it."""

    def init_share(stacked: Any, env: AbstractEnv[Any]) -> tuple[Any, Counts]:
        def init(agent: Any, key: PRNGKeyArray) -> tuple[Any, Counts]:
            return trainer.init(agent, env, key=key)

        return eqx.filter_vmap(init, out_axes=(eqx.if_array(0), None))(*stacked)

    return on_each_device(init_share, mesh, (agents, keys), env)


@eqx.filter_jit(donate="all-except-first")
def run_members(
    kept: tuple[Trainer, Any, AbstractEnv[Any], Int[Array, ""], PRNGKeyArray],
    states: Any,
    counts: Counts,
    members: Members,
    mesh: Mesh | None,
) -> tuple[Any, Counts, dict[str, Array]]:
    """Trains each member for a number of environment steps."""
    trainer, agents, env, num_steps, key = kept
    # Folded rather than split: the same key is used at every generation.
    keys = jax.vmap(lambda index: jr.fold_in(key, index))(
        jnp.arange(stack_size(states))
    )

    def run_share(stacked: Any, shared: Any) -> tuple[Any, Counts]:
        env, counts, num_steps = shared

        def run(
            agent: Any, state: Any, key: PRNGKeyArray
        ) -> tuple[Any, Counts, Metrics]:
            return trainer.run(
                agent,
                env,
                state,
                counts,
                num_steps=num_steps,
                key=key,
                alone=members == "in_turn",
            )

        run_all = _run_together if members == "together" else _run_in_turn
        states, counts, metrics = run_all(run, *stacked)
        return (states, metrics), counts

    (states, metrics), counts = on_each_device(
        run_share, mesh, (agents, states, keys), (env, counts, num_steps)
    )
    return states, counts, metrics


_RunOne = Callable[[Any, Any, PRNGKeyArray], tuple[Any, Counts, Metrics]]


def _run_together(
    run: _RunOne, agents: Any, states: Any, keys: Key[Array, " population"]
) -> tuple[Any, Counts, dict[str, Array]]:
    out_axes = (eqx.if_array(0), None, eqx.if_array(0))
    return eqx.filter_vmap(run, out_axes=out_axes)(agents, states, keys)


def _run_in_turn(
    run: _RunOne, agents: Any, states: Any, keys: Key[Array, " population"]
) -> tuple[Any, Counts, dict[str, Array]]:
    """One member after another, each written back to where it was taken from."""
    arrays, static = eqx.partition(states, eqx.is_array)
    agent_arrays, agent_static = eqx.partition(agents, eqx.is_array)

    def one(index: Int[Array, ""], arrays: PyTree) -> tuple[Any, Counts, Metrics]:
        agent_of, state_of = jax.tree.map(
            lambda x: lax.dynamic_index_in_dim(x, index, keepdims=False),
            (agent_arrays, arrays),
        )
        return run(
            eqx.combine(agent_of, agent_static),
            eqx.combine(state_of, static),
            keys[index],
        )

    def body(arrays: PyTree, index: Int[Array, ""]) -> tuple[PyTree, Any]:
        state, counts, metrics = one(index, arrays)
        arrays = jax.tree.map(
            lambda x, y: lax.dynamic_update_index_in_dim(x, y, index, axis=0),
            arrays,
            eqx.filter(state, eqx.is_array),
        )
        return arrays, (counts, metrics)

    arrays, (counts, metrics) = lax.scan(body, arrays, jnp.arange(stack_size(states)))
    counts = jax.tree.map(lambda x: x[0], counts)
    return eqx.combine(arrays, static), counts, metrics
