"""Members of a population that train for a number of steps, without generations."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh

import eqrl
from eqrl._pytree.tree import flatten
from eqrl._training.mesh import Members, replicate, shard
from eqrl._training.train import Crew, begin_rows, init_members, run_members
from eqrl._training.trainer import Piece


def make_crew(
    trainer: eqrl.Trainer, agents: Any, env: Any, members: Members, mesh: Mesh | None
) -> tuple[Crew, Any, eqrl.Counts]:
    """The members of a stack of agents, and their initial states and counts."""
    size = jax.tree.leaves(agents)[0].shape[0]
    agents, env = shard(agents, mesh), replicate(env, mesh)
    init_keys = shard(jr.split(jr.key(0), size), mesh)
    crew = Crew(
        trainer=trainer,
        agents=agents,
        env=env,
        keys=shard(jr.split(jr.key(1), size), mesh),
        are_stacked=True,
        members=members,
        mesh=mesh,
    )
    return crew, *init_members(crew, init_keys)


def make_run_of_members(
    trainer: eqrl.Trainer,
    agents: Any,
    env: Any,
    members: Members,
    mesh: Mesh | None = None,
) -> Callable[[int], Any]:
    """A function that trains each member for `num_steps`, resuming each time."""
    crew, begun, counts = make_crew(trainer, agents, env, members, mesh)
    row = begin_rows(crew, begun, counts)
    kept, first = flatten(crew), flatten(eqrl.tree_copy(begun.agent))
    states = flatten(begun)

    def run(num_steps: int) -> Any:
        nonlocal states, counts
        steps, ends_row = jnp.asarray(num_steps, int), jnp.array(True)
        piece = Piece(num_steps=steps, row=row, ends_row=ends_row)
        states, counts, ran = run_members((kept, first, piece), states, counts)
        return ran.metrics

    return run
