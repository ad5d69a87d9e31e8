"""Updates per second of DIAYN around SAC, beside QDax's.

A point in the plane, 16 environments, 8 skills laid out evenly over them, an update for
each environment step, hidden layers of 256 and 256 in all networks, batches of 256, a
replay of 100,000. Run it as `nox -s benchmarks -- skill_speed`.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import jax.random as jr
from jaxtyping import PyTree

import eqrl

from .measure import median_ratio, side_by_side


WARMUP_STEPS = 1_600
SIZES: dict[str, Any] = {
    "num_envs": 16,
    "capacity": 100_000,
    "warmup_steps": WARMUP_STEPS,
}


def make_run(
    agent: eqrl.AbstractAgent, env: eqrl.envs.AbstractEnv, *, num_updates: int
) -> Callable[[], PyTree]:
    """A function that makes `num_updates` steps and updates, resuming each time."""
    trainer = eqrl.Trainer(batch_size=256, updates_per_iteration=16, **SIZES)
    state, counts = eqrl.jit_init(trainer, agent, env, key=jr.key(0))

    def run(num_steps: int = num_updates) -> PyTree:
        nonlocal state, counts
        state, counts, metrics = eqrl.jit_run(
            trainer, agent, env, state, counts, num_steps=num_steps, key=jr.key(1)
        )
        return metrics

    run(WARMUP_STEPS)
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=640)
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()

    from . import qdax_skills

    num_updates, env = arguments.updates, eqrl.envs.Point()
    agent = eqrl.diayn(eqrl.SAC(), eqrl.EvenOneHotSkills(8))
    runs = {
        "eqrl": make_run(agent, env, num_updates=num_updates),
        "qdax": qdax_skills.make_run(num_skills=8, num_updates=num_updates, **SIZES),
        "eqrl, SAC alone": make_run(eqrl.SAC(), env, num_updates=num_updates),
    }
    times = side_by_side(runs, repeats=arguments.repeats)
    print("| | updates/s, median | time of QDax / its own |")
    print("|---|---|---|")
    for name in runs:
        speed = num_updates / statistics.median(times[name])
        ratio = median_ratio(times["qdax"], times[name])
        print(f"| {name} | {speed:.0f} | {ratio:.3f} |", flush=True)


if __name__ == "__main__":
    main()
