"""What checkpoints cost a training: SAC with a full replay of 100,000 transitions.

The same training goes on in turns without checkpoints and with one every ten seconds.
One environment (brax `fast`), one update a step, hidden layers of 256 and 256, batches
of 256. Run it as `nox -s benchmarks -- checkpoint_cost`.
"""

import argparse
import tempfile
import time
from pathlib import Path

import jax.random as jr

import eqrl

from .measure import median_ratio


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=15_000, help="of each turn")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()

    env = eqrl.envs.make("brax/fast", max_steps=1000)
    trainer = eqrl.Trainer(capacity=100_000, warmup_steps=100_000)
    agent, key = eqrl.SAC(), jr.key(0)
    solution = eqrl.train(agent, env, trainer, num_steps=100_000, key=key)
    # Compiles what updates.
    solution = eqrl.train(
        agent, env, trainer, num_steps=100, log_every=100, key=key, initial=solution
    )
    times: dict[bool, list[float]] = {True: [], False: []}
    saved = 0
    for index in range(arguments.repeats):
        for with_checkpoints in (True, False) if index % 2 == 0 else (False, True):
            with tempfile.TemporaryDirectory() as folder:
                begin = time.perf_counter()
                with eqrl.Checkpoints(
                    folder,
                    every_seconds=arguments.seconds,
                    max_to_keep=1_000,
                ) as checkpoints:
                    solution = eqrl.train(
                        agent,
                        env,
                        trainer,
                        num_steps=arguments.steps,
                        # Rows of less than a second, since checkpoints are made
                        # between rows.
                        log_every=100,
                        key=key,
                        initial=solution,
                        checkpoint=checkpoints if with_checkpoints else None,
                    )
                times[with_checkpoints].append(time.perf_counter() - begin)
                saved += len(list(Path(folder).iterdir()))
    print("| seconds of a turn | checkpoints in all | time with / without |")
    print("|---|---|---|")
    middle = sorted(times[False])[arguments.repeats // 2]
    ratio = median_ratio(times[True], times[False])
    print(f"| {middle:.1f} | {saved} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
