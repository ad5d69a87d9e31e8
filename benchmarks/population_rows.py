"""Rows of populations: updates a second by their size, and copies of members.

One environment (brax `fast`) and one update a step for each member of SAC, hidden
layers of 256 and 256, batches of 256: all members count. An exploit replaces two of
eight members, replays included.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PyTree

import eqrl
from eqrl._training.mesh import choose_members, replicate, shard
from eqrl._training.train import Crew, init_members

from . import population_speed
from .agent_rows import make_alone, make_batch
from .beside_limit import measure_row
from .command import MakeRows
from .compile_rows import megabytes
from .measure import Effort
from .report import Row


SIZES = (1, 2, 8, 64)
# Summed over all members, so that 64 of them need no more memory than eight.
CAPACITY = 80_000


def _rows_of_size(size: int) -> MakeRows:
    def make(effort: Effort) -> list[Row]:
        agent = eqrl.SAC()
        spec = eqrl.envs.make("brax/fast").spec
        mesh = population_speed.mesh_for(size)
        run = population_speed.make_run(
            agent, "fast", size=size, capacity=max(CAPACITY // size, 1_000)
        )
        batch = make_batch(agent, spec, key=jr.key(2))
        devices, members = 1 if mesh is None else mesh.size, choose_members(None, mesh)
        alone = make_alone(
            agent,
            spec,
            batch,
            # In turn, every member takes the same time.
            size=size if members == "together" else devices,
            members=members,
            mesh=mesh,
        )
        row = measure_row(
            f"population/{size}",
            "updates/s",
            run,
            effort=effort,
            count=size,
            alone=alone,
            note=f"devices: {devices}, members {members.replace('_', ' ')}",
        )
        return [row]

    return make


POPULATIONS = {f"population/{size}": _rows_of_size(size) for size in SIZES}

NUM_MEMBERS = 8


def _learning_rate(agent: Any) -> tuple[Any, ...]:
    return (agent.actor_lr,)


@eqx.filter_jit(donate="all-except-first")
def _exploit(kept: tuple[Any, Any, Any, Any], states: PyTree, mesh: Any) -> PyTree:
    pbt, agents, scores, key = kept
    return pbt.exploit_over(mesh, agents, states, scores, key=key)[1]


def _exploiting(effort: Effort) -> list[Row]:
    """The time of an exploit, and the memory that it needs beside the members."""
    env = eqrl.envs.make("brax/fast", max_steps=1000)
    trainer = eqrl.Trainer(capacity=100_000)
    mesh = population_speed.mesh_for(NUM_MEMBERS)
    pbt = eqrl.PBT(where=_learning_rate, priors=(eqrl.LogUniform(1e-5, 1e-2),))
    agents = shard(pbt.init(eqrl.SAC(), NUM_MEMBERS, key=jr.key(0)), mesh)
    keys = shard(jr.split(jr.key(1), NUM_MEMBERS), mesh)
    crew = Crew(trainer, agents, env, keys, True, choose_members(None, mesh), mesh)
    states, _ = init_members(crew, keys)
    scores: Float[Array, " population"] = jnp.arange(float(NUM_MEMBERS))
    kept = replicate((pbt, agents, scores, jr.key(2)), mesh)
    exploit: Any = _exploit
    memory = exploit.lower(kept, states, mesh).compile().compiled.memory_analysis()

    def run(num_exploits: int) -> PyTree:
        nonlocal states
        for _ in range(num_exploits):
            states = _exploit(kept, states, mesh)
        return jax.tree.leaves(eqx.filter(states, eqx.is_array))[0]

    size = sum(x.nbytes for x in jax.tree.leaves(eqx.filter(states, eqx.is_array)))
    devices = 1 if mesh is None else mesh.size
    return [
        measure_row("exploit/time", "s", run, effort=effort),
        Row(
            "exploit/temporaries",
            "MB",
            (megabytes(memory.temp_size_in_bytes),),
            note=f"a device, beside {megabytes(size / devices):.1f} MB of members",
        ),
    ]


EXPLOITS: dict[str, MakeRows] = {"exploit": _exploiting}
