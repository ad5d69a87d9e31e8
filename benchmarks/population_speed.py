"""Total updates per second of a population, beside QDax's.

As `speed.py`: one environment and one update a step for each member, hidden layers of
256 and 256, batches of 256. Ours is laid over a device for each core of the processor,
with members one after another on each. Run it as
`nox -s benchmarks -- population_speed --env ant`.
"""

import argparse
import math
import statistics
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import PyTree

import eqrl
from eqrl._training.mesh import automatic, choose_members

from .measure import median_ratio, side_by_side
from .members import make_run_of_members


WARMUP_STEPS = 500


def mesh_for(size: int) -> Mesh | None:
    """The largest number of devices with equal shares of the members."""
    number = math.gcd(size, jax.device_count())
    if number == 1:
        return None
    devices = jax.devices()[:number]
    return automatic(jax.make_mesh((number,), ("population",), devices=devices))


def make_run(
    agent: eqrl.AbstractAgent,
    env_name: str,
    *,
    size: int,
    capacity: int,
) -> Callable[[int], PyTree]:
    """A function that makes updates of each member, resuming each time."""
    env = eqrl.envs.make(f"brax/{env_name}", backend="spring", max_steps=1000)
    trainer = eqrl.Trainer(batch_size=256, capacity=capacity, warmup_steps=WARMUP_STEPS)
    mesh = mesh_for(size)
    members = choose_members(None, mesh)
    agents = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), agent)
    run = make_run_of_members(trainer, agents, env, members, mesh)
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
    eqrl.use_all_cores()
    agents = {"sac": eqrl.SAC(), "td3": eqrl.TD3()}
    print("| agent | members | ours, updates/s in total | QDax | QDax's time / ours |")
    print("|---|---|---|---|---|")
    for name, agent in agents.items():
        for size in arguments.sizes:
            sizes = {"size": size, "capacity": arguments.capacity}
            run = make_run(agent, arguments.env, **sizes)
            runs: dict[str, Callable[[], PyTree]] = {
                "ours": lambda run=run: run(arguments.updates)
            }
            if not arguments.alone:
                from . import qdax_peers

                make_peer = qdax_peers.make_population_run
                runs["qdax"] = make_peer(
                    name, arguments.env, num_updates=arguments.updates, **sizes
                )
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
