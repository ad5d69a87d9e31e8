"""The cost of a step of a population by the capacity of its replays.

Members of SAC on brax `fast`, which costs almost nothing, collect and make no updates:
each step acts, steps and writes one row of the replay of each member. The capacities
are timed side by side. Run it as `nox -s benchmarks -- insert`.
"""

import argparse
import statistics
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import PyTree

import eqrl
from eqrl._training.mesh import Members

from .measure import median_ratio, side_by_side
from .members import make_run_of_members


def make_run(
    *, size: int, capacity: int, num_steps: int, members: Members
) -> Callable[[], PyTree]:
    """A function that makes `num_steps` of each member, resuming each time."""
    agent = eqrl.SAC(
        make_actor=eqrl.nn.Gaussian((8,)), make_critic=eqrl.nn.Critic((8,))
    )
    env = eqrl.envs.make("brax/fast", max_steps=1000)
    trainer = eqrl.Trainer(
        batch_size=1, capacity=capacity, warmup_steps=1, updates_per_iteration=0
    )
    agents = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), agent)
    run = make_run_of_members(trainer, agents, env, members)
    return lambda: run(num_steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument(
        "--capacities", nargs="+", type=int, default=[10_000, 100_000, 1_000_000]
    )
    parser.add_argument("--steps", type=int, default=5_000)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    print("| members run | capacity | µs a step of one member | of that of the least |")
    print("|---|---|---|---|")
    for members in ("together", "in_turn"):
        runs = {
            str(capacity): make_run(
                size=arguments.size,
                capacity=capacity,
                num_steps=arguments.steps,
                members=members,
            )
            for capacity in arguments.capacities
        }
        times = side_by_side(runs, repeats=arguments.repeats)
        least = times[str(arguments.capacities[0])]
        for capacity in arguments.capacities:
            measured = times[str(capacity)]
            seconds = statistics.median(measured) / arguments.steps / arguments.size
            ratio = median_ratio(measured, least)
            print(
                f"| {members} | {capacity:,} | {seconds * 1e6:.2f} | {ratio:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
