"""Updates per second of SAC and TD3 beside QDax's, and with a replay of a million.

One environment (brax `fast`, which costs next to nothing), one update a step, hidden
layers of 256 and 256, batches of 256. Run it as `nox -s benchmarks -- speed`.
"""

import argparse
import statistics
from collections.abc import Callable

import jax.random as jr
from jaxtyping import PyTree

import eqrl

from .measure import median_ratio, side_by_side


WARMUP_STEPS = 1_000


def make_run(agent: eqrl.AbstractAgent, *, capacity: int) -> Callable[[int], PyTree]:
    """A function that makes a number of steps and updates, resuming each time."""
    env = eqrl.envs.make("brax/fast", max_steps=1000)
    trainer = eqrl.Trainer(
        num_envs=1, batch_size=256, capacity=capacity, warmup_steps=WARMUP_STEPS
    )
    key = jr.key(0)
    state, counts = eqrl.jit_init(trainer, agent, env, key=jr.fold_in(key, 0))
    run_key = jr.fold_in(key, 1)
    state, counts, _ = eqrl.jit_run(
        trainer, agent, env, state, counts, num_steps=WARMUP_STEPS, key=run_key
    )

    def run(num_steps: int) -> PyTree:
        nonlocal state, counts
        state, counts, metrics = eqrl.jit_run(
            trainer, agent, env, state, counts, num_steps=num_steps, key=run_key
        )
        return metrics

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=1_000)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()

    from . import qdax_peers

    agents = {"sac": eqrl.SAC(), "td3": eqrl.TD3()}
    print("| | updates/s, median | time of QDax / ours | ours: 100k / 1M |")
    print("|---|---|---|---|")
    for name, agent in agents.items():
        small = make_run(agent, capacity=100_000)
        large = make_run(agent, capacity=1_000_000)
        runs = {
            "eqrl 100k": lambda run=small: run(arguments.updates),
            "eqrl 1M": lambda run=large: run(arguments.updates),
            "qdax 100k": qdax_peers.make_run(
                name,
                "fast",
                capacity=100_000,
                warmup_steps=WARMUP_STEPS,
                num_updates=arguments.updates,
            ),
        }
        times = side_by_side(runs, repeats=arguments.repeats)
        speeds = ", ".join(
            f"{run}: {arguments.updates / statistics.median(times[run]):.0f}"
            for run in runs
        )
        ratio = median_ratio(times["qdax 100k"], times["eqrl 100k"])
        capacity_ratio = median_ratio(times["eqrl 100k"], times["eqrl 1M"])
        print(f"| {name} | {speeds} | {ratio:.3f} | {capacity_ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
