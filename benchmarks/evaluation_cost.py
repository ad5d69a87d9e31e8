"""The cost of greedy evaluation of five seeds while they train.

16 episodes of each seed after every 5 % of the training. Both trainings are compiled
before, and take turns. Run it as `nox -s benchmarks -- evaluation_cost`.
"""

import argparse
import statistics
import time
from typing import Any

import jax
import jax.random as jr

import eqrl


NUM_SEEDS = 5
SHARE = 20


def seconds_of(name: str, *, is_evaluated: bool, seed: int) -> float:
    """The time of one training of all seeds."""
    # Their types are different, and one function trains both.
    agent: Any = eqrl.SAC() if name == "SAC" else eqrl.PPO()
    if name == "SAC":
        env = eqrl.envs.make("gymnax/Pendulum-v1")
        trainer = eqrl.Trainer(num_envs=1, batch_size=256, warmup_steps=500)
        num_steps = 2_000
    else:
        env = eqrl.envs.make("gymnax/CartPole-v1")
        trainer = eqrl.Trainer.on_policy(num_envs=4, num_steps=128)
        num_steps = 102_400
    every = num_steps // SHARE
    evaluations = eqrl.Evaluations(agent, env, every=every, key=jr.key(1))
    begin = time.perf_counter()
    solution = eqrl.train_seeds(
        agent,
        env,
        trainer,
        num_seeds=NUM_SEEDS,
        num_steps=num_steps,
        log_every=every,
        key=jr.key(seed),
        evaluations=evaluations if is_evaluated else None,
    )
    jax.block_until_ready(jax.tree.leaves(solution.counts))
    return time.perf_counter() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=5, help="of trainings")
    names = ["SAC", "PPO"]
    parser.add_argument("--only", nargs="+", default=names, choices=names)
    arguments = parser.parse_args()
    print("| training | seconds without | with / without | least to most |")
    print("|---|---|---|---|")
    for name in arguments.only:
        for is_evaluated in (True, False):  # Compiles.
            seconds_of(name, is_evaluated=is_evaluated, seed=0)
        without, ratios = [], []
        for seed in range(arguments.pairs):
            times = {}
            for is_evaluated in (True, False) if seed % 2 == 0 else (False, True):
                seconds = seconds_of(name, is_evaluated=is_evaluated, seed=seed)
                times[is_evaluated] = seconds
            without.append(times[False])
            ratios.append(times[True] / times[False])
        print(
            f"| {name} | {statistics.median(without):.1f} "
            f"| {statistics.median(ratios):.3f} "
            f"| {min(ratios):.3f} to {max(ratios):.3f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
