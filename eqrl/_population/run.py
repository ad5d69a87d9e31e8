"""Runs the members of a population, at once or in turn, on each device."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import Array, Int, Key, PRNGKeyArray

from .._agents.base import AnyAgent
from .._pytree.stack import stack_size
from .._training.counts import Counts
from .._training.members import (
    Logged,
    Members,
    map_members,
    run_in_turn,
    run_together,
)
from .._training.mesh import on_each_device
from .._training.trainer import AnyTrainerState, Trainer, run_trainer
from ..envs._base import AnyEnv


@eqx.filter_jit
def init_members(
    trainer: Trainer,
    agents: AnyAgent,
    env: AnyEnv,
    keys: Key[Array, " population"],
    members: Members,
    mesh: Mesh | None,
) -> tuple[AnyTrainerState, Counts]:
    """The initial state of each member, made on the device that will train it."""

    def init_share(
        stacked: tuple[AnyAgent, Key[Array, " share"]], env: AnyEnv
    ) -> tuple[AnyTrainerState, Counts]:
        def init(agent: AnyAgent, key: PRNGKeyArray) -> tuple[AnyTrainerState, Counts]:
            return trainer.init(agent, env, key=key)

        states, counts = map_members(init, members, *stacked)
        # The counters of all members are the same.
        return states, jax.tree.map(lambda x: x[0], counts)

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
        stacked: tuple[AnyTrainerState, AnyAgent, Key[Array, " share"]],
        shared: tuple[AnyEnv, Counts, Int[Array, ""]],
    ) -> tuple[tuple[AnyTrainerState, Logged], Counts]:
        env, counts, num_steps = shared

        def run(
            state: AnyTrainerState, agent: AnyAgent, key: PRNGKeyArray
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

        run_all = run_together if members == "together" else run_in_turn
        states, counts, logged = run_all(run, *stacked)
        return (states, logged), counts

    (states, logged), counts = on_each_device(
        run_share, mesh, (states, agents, keys), (env, counts, num_steps)
    )
    return states, counts, logged
