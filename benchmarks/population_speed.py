"""Total updates per second of a population, beside QDax's.

As `speed.py`: one environment and one update a step for each member, hidden layers of
256 and 256, batches of 256. Ours is laid over two devices, which this module asks XLA
to make of the processor, with members one after another on each. Run it as
`nox -s benchmarks -- population_speed --env ant`.
"""

import argparse
import os
import statistics
from collections.abc import Callable


# Before JAX is imported, which reads it then.
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=2")

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import PyTree

import eqrl
from eqrl._population.mesh import automatic, replicate, shard
from eqrl._population.run import init_members, run_members

from .measure import median_ratio, side_by_side


WARMUP_STEPS = 500


def make_run(
    agent: eqrl.AbstractAgent,
    env_name: str,
    *,
    size: int,
    capacity: int,
    num_updates: int,
) -> Callable[[], PyTree]:
    """A function that makes `num_updates` of each member, going on each time."""
    env = eqrl.envs.make(f"brax/{env_name}", backend="spring", max_steps=1000)
    trainer = eqrl.Trainer(batch_size=256, capacity=capacity, warmup_steps=WARMUP_STEPS)
    mesh = automatic(jax.make_mesh((jax.device_count(),), ("population",)))
    agents = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), agent)
    agents, keys = shard((agents, jr.split(jr.key(0), size)), mesh)
    states, counts = init_members(trainer, agents, env, keys, mesh)
    key = replicate(jr.key(1), mesh)

    def run(num_steps: int = num_updates) -> PyTree:
        nonlocal states, counts
        kept = (trainer, agents, env, jnp.asarray(num_steps, int), key)
        states, counts, metrics = run_members(kept, states, counts, "in_turn", mesh)
        return metrics

    run(WARMUP_STEPS)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--env", default="fast")
    parser.add_argument("--sizes", nargs="+", type=int, default=[8, 16])
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--capacity", type=int, default=100_000)
    parser.add_argument("--alone", action="store_true", help="leave QDax out")
    arguments = parser.parse_args()
    agents = {"sac": eqrl.SAC(), "td3": eqrl.TD3()}
    print("| agent | members | ours, updates/s in total | QDax | QDax's time / ours |")
    print("|---|---|---|---|---|")
    for name, agent in agents.items():
        for size in arguments.sizes:
            sizes = {
                "size": size,
                "capacity": arguments.capacity,
                "num_updates": arguments.updates,
            }
            runs = {"ours": make_run(agent, arguments.env, **sizes)}
            if not arguments.alone:
                from . import qdax_peers

                make_peer = qdax_peers.make_population_run
                runs["qdax"] = make_peer(name, arguments.env, **sizes)
            times = side_by_side(runs, repeats=arguments.repeats)
            total = size * arguments.updates
            ours = total / statistics.median(times["ours"])
            if arguments.alone:
                print(f"| {name} | {size} | {ours:.0f} | | |", flush=True)
                continue
            theirs = total / statistics.median(times["qdax"])
            ratio = median_ratio(times["qdax"], times["ours"])
            print(
                f"| {name} | {size} | {ours:.0f} | {theirs:.0f} | {ratio:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
