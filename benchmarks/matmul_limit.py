"""How close updates come to the matmuls they consist of.

One agent, and eight members on one device for each core of the processor, one after
another on each. Hidden layers of 256 and 256, batches of 256, with the sizes of Ant's
observations and actions. Timed in turns: updates of SAC and TD3 without environment and
replay, and only the same matmuls, each in its own shape and in the fastest of several
ways; for one agent, two that do not depend on each other side by side. The work of
every second update of TD3 counts by half. Run it as `nox -s benchmarks --
matmul_limit`.
"""

import argparse
import math
import statistics
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.sharding import Mesh
from jaxtyping import Array, Int, PRNGKeyArray, PyTree

import eqrl
from eqrl._pytree.control_flow import filter_fori_loop
from eqrl._training.mesh import map_members, on_each_device, replicate, shard

from .matmuls import (
    Matmul,
    count_matmuls,
    halves_of,
    make_lanes_run,
    operations_of,
)
from .measure import seconds
from .population_speed import mesh_for


SPEC = eqrl.EnvSpec(observation_size=27, action_size=8)
BATCH_SIZE = 256

Run = Callable[[], PyTree]


def make_batch(key: PRNGKeyArray) -> eqrl.Transition[None]:
    keys = jr.split(key, 4)
    observations = (BATCH_SIZE, SPEC.observation_size)
    return eqrl.Transition(
        observation=jr.normal(keys[0], observations),
        action=jr.uniform(keys[1], (BATCH_SIZE, SPEC.action_size), minval=-1),
        reward=jr.normal(keys[2], (BATCH_SIZE,)),
        next_observation=jr.normal(keys[3], observations),
        terminated=jnp.zeros(BATCH_SIZE, bool),
        truncated=jnp.zeros(BATCH_SIZE, bool),
        timestep=jnp.zeros(BATCH_SIZE, int),
        state_descriptor=None,
        next_state_descriptor=None,
        extras=None,
    )


@eqx.filter_jit(donate="all-except-first")
def _update(
    kept: tuple[Any, Any, PRNGKeyArray, Int[Array, ""]], states: Any, mesh: Mesh | None
) -> Any:
    agents, batches, key, num_updates = kept

    def update_share(stacked: Any, shared: Any) -> tuple[Any, None]:
        key, num_updates = shared

        def update_member(agent: Any, state: Any, batch: Any) -> Any:
            def update(step: Int[Array, ""], state: Any) -> Any:
                step_key = jr.fold_in(key, step)
                state, _ = agent.update(state, batch, step=step, key=step_key)
                return state

            # As in training, XLA does not know the length of the loop.
            state = filter_fori_loop(0, num_updates, update, state)
            return eqx.filter(state, eqx.is_array)

        return map_members(update_member, "in_turn", *stacked), None

    stacked = (agents, states, batches)
    states_after, _ = on_each_device(update_share, mesh, stacked, (key, num_updates))
    return eqx.combine(states_after, eqx.filter(states, eqx.is_array, inverse=True))


def make_update_run(
    agent: Any, *, size: int, num_updates: int, mesh: Mesh | None
) -> Run:
    agents = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), agent)
    states = eqx.filter_vmap(lambda agent, key: agent.init(SPEC, key=key))(
        agents, jr.split(jr.key(0), size)
    )
    batches = jax.vmap(make_batch)(jr.split(jr.key(1), size))
    agents, states, batches = shard((agents, states, batches), mesh)
    key, length = replicate((jr.key(2), jnp.asarray(num_updates, int)), mesh)

    def run() -> PyTree:
        nonlocal states
        states = _update((agents, batches, key, length), states, mesh)
        return eqx.filter(states, eqx.is_array)

    return run


def limit_runs(
    matmul: Matmul, *, size: int, mesh: Mesh | None
) -> list[tuple[Callable[[int], PyTree], Fraction]]:
    """Ways to make a matmul alone, each with how many of it a round makes.

    Both ways of writing it; for one member also two that do not depend on each other,
    side by side: the two of a stack, or a second one of the same.
    """
    ways: list[tuple[tuple[Matmul, ...], Fraction]] = [((matmul,), Fraction(1))]
    if size == 1:
        lanes = halves_of(matmul)
        times = Fraction(sum(x.operations for x in lanes), matmul.operations)
        ways.append((lanes, times))
    return [
        (make_lanes_run(lanes, is_written=is_written, size=size, mesh=mesh), times)
        for lanes, times in ways
        for is_written in (False, True)
    ]


def limit_seconds(
    counts: list[tuple[Matmul, Fraction]],
    ways: list[list[tuple[Callable[[int], PyTree], Fraction]]],
    num_rounds: int,
) -> float:
    """Seconds of the matmuls of an update, each in its fastest way."""
    total = 0.0
    for (_, count), runs in zip(counts, ways, strict=True):
        each = [
            seconds(lambda run=run: run(num_rounds)) / num_rounds / times
            for run, times in runs
        ]
        total += float(count) * min(each)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    eqrl.use_all_cores()
    td3 = eqrl.TD3()
    # Each agent with the number of updates in one period of its work.
    agents = {"SAC": (eqrl.SAC(), 1), "TD3": (td3, td3.policy_delay)}
    print(
        f"Sizes of Ant: observations of {SPEC.observation_size}, actions of "
        f"{SPEC.action_size}; {jax.device_count()} devices"
    )
    print(
        "| agent | members | matmuls an update | MFLOP an update | update, GFLOP/s | "
        "matmuls alone, GFLOP/s | update / alone | least to most |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, (agent, period) in agents.items():
        counts = count_matmuls(agent, SPEC, make_batch(jr.key(1)), Fraction(1, period))
        operations = operations_of(counts)
        num_updates = math.ceil(arguments.updates / period) * period
        for size in arguments.sizes:
            mesh = mesh_for(size)
            run = make_update_run(agent, size=size, num_updates=num_updates, mesh=mesh)
            ways = [limit_runs(matmul, size=size, mesh=mesh) for matmul, _ in counts]
            # Once to compile.
            jax.block_until_ready(run())
            limit_seconds(counts, ways, 1)
            pairs = [
                (
                    seconds(run) / num_updates / size,
                    limit_seconds(counts, ways, arguments.updates) / size,
                )
                for _ in range(arguments.repeats)
            ]
            update, alone = (
                operations / statistics.median(times)
                for times in zip(*pairs, strict=True)
            )
            shares = [alone / update for update, alone in pairs]
            print(
                f"| {name} | {size} | {float(sum(n for _, n in counts)):g} "
                f"| {operations * 1e3:.1f} | {update:.1f} | {alone:.1f} "
                f"| {statistics.median(shares):.3f} "
                f"| {min(shares):.3f} to {max(shares):.3f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
