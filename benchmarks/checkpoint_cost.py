"""The cost of checkpoints: SAC with a full replay of 100,000 transitions.

One training alternates between turns with one checkpoint and turns with none. One
environment (brax `fast`), one update a step, hidden layers of 256 and 256, batches of
256. Run it as `nox -s benchmarks -- checkpoint_cost`.
"""

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import jax.random as jr

import eqrl

from .report import quartiles


# Rows of less than a second, since checkpoints are made between rows.
ROW = 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=10.0, help="of a turn")
    parser.add_argument("--pairs", type=int, default=20, help="of turns")
    arguments = parser.parse_args()

    env = eqrl.envs.make("brax/fast", max_steps=1000)
    trainer = eqrl.Trainer(capacity=100_000, warmup_steps=100_000)
    agent, key = eqrl.SAC(), jr.key(0)
    solution = eqrl.train(agent, env, trainer, num_steps=100_000, key=key)

    def turn(num_steps: int, has_checkpoint: bool) -> tuple[float, int]:
        nonlocal solution
        with tempfile.TemporaryDirectory() as folder:
            begin = time.perf_counter()
            # Only the first row is far enough from the last checkpoint.
            with eqrl.Checkpoints(folder, every_steps=num_steps) as checkpoints:
                solution = eqrl.train(
                    agent,
                    env,
                    trainer,
                    num_steps=num_steps,
                    log_every=ROW,
                    key=key,
                    initial=solution,
                    checkpoint=checkpoints if has_checkpoint else None,
                )
            return time.perf_counter() - begin, len(list(Path(folder).iterdir()))

    turn(10 * ROW, True)  # Compiles the updates, and imports the modules that write.
    # On some machines the time of a step changes from minute to minute.
    second = 10 * ROW / turn(10 * ROW, False)[0]
    num_steps = ROW * max(1, round(arguments.seconds * second / ROW))
    without, ratios, saved = [], [], 0
    for index in range(arguments.pairs):
        times = {}
        for has_checkpoint in (True, False) if index % 2 == 0 else (False, True):
            times[has_checkpoint], found = turn(num_steps, has_checkpoint)
            saved += found
        without.append(times[False])
        ratios.append(times[True] / times[False])
    low, middle, high = quartiles(ratios)
    print("| seconds of a turn | pairs | checkpoints | with / without | quartiles |")
    print("|---|---|---|---|---|")
    print(
        f"| {statistics.median(without):.1f} | {arguments.pairs} | {saved} "
        f"| {middle:.3f} | {low:.3f} to {high:.3f} |"
    )


if __name__ == "__main__":
    main()
