"""Agents in simulators outside JAX, beside SBX in its own environment.

Each run is a row of a CSV, and one that is there already is not made again:

    nox -s benchmarks -- worlds --agents SAC TD3 --seeds 5 --peers
    .nox/worlds/bin/python -m benchmarks.worlds --env envpool/InvertedPendulum-v5

Hyperparameters are those that SBX and eqrl share by default: rates of 3e-4, hidden
layers of 256 and 256, batches of 256 from a replay of 1e6, one update a step. TD3
explores with noise of 0.1, which SBX's does not do by itself.
"""

import argparse
import csv
import json
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from .peer_environments import python_of
from .precision import add_precision, in_precision


NUM_EPISODES = 20
# After these, which are not timed, everything is compiled.
NUM_FIRST = 1_000


def run_ours(
    name: str, task: str, seed: int, steps: int, warmup: int, precision: Any
) -> list[float]:
    """Returns of greedy episodes after training, and the seconds that it took."""
    import jax
    import jax.random as jr

    import eqrl

    agent: Any = {"SAC": eqrl.SAC, "TD3": eqrl.TD3}[name]()
    agent = in_precision(agent, precision)
    env = eqrl.envs.make(task)
    trainer = eqrl.Trainer(capacity=1_000_000, warmup_steps=warmup)
    key, evaluation_key = jr.split(jr.key(seed))
    first = warmup + NUM_FIRST
    options: Any = {"log_every": steps, "key": key}
    solution = eqrl.train(agent, env, trainer, num_steps=first, **options)
    begin = time.perf_counter()
    solution = eqrl.train(
        agent, env, trainer, num_steps=steps - first, initial=solution, **options
    )
    jax.block_until_ready(jax.tree.leaves(solution.state))
    seconds = time.perf_counter() - begin
    played = eqrl.evaluate(
        agent, solution.state, env, num_episodes=NUM_EPISODES, key=evaluation_key
    )
    return [*map(float, played.returns), seconds]


def run_sbx(name: str, task: str, seed: int, steps: int, warmup: int) -> list[float]:
    """The same in SBX."""
    import gymnasium  # pyright: ignore[reportMissingImports]
    import jax
    import numpy as np
    import sbx  # pyright: ignore[reportMissingImports]
    from stable_baselines3.common.noise import (  # pyright: ignore[reportMissingImports]
        NormalActionNoise,
    )

    env = gymnasium.make(task.removeprefix("gymnasium/"))
    size = env.action_space.sample().size
    noise = NormalActionNoise(np.zeros(size), 0.1 * np.ones(size))
    model: Any = {"SAC": sbx.SAC, "TD3": sbx.TD3}[name](
        "MlpPolicy",
        env,
        learning_rate=3e-4,
        buffer_size=1_000_000,
        learning_starts=warmup,
        batch_size=256,
        train_freq=1,
        gradient_steps=1,
        action_noise=noise if name == "TD3" else None,
        policy_kwargs={"net_arch": [256, 256]},
        seed=seed,
    )
    first = warmup + NUM_FIRST
    model.learn(first)
    begin = time.perf_counter()
    model.learn(steps - first, reset_num_timesteps=False)
    jax.block_until_ready(jax.tree.leaves(model.policy.qf_state.params))
    seconds = time.perf_counter() - begin
    returns = []
    env = gymnasium.make(task.removeprefix("gymnasium/"))
    for episode in range(NUM_EPISODES):
        observation, _ = env.reset(seed=1_000 * seed + episode)
        total, over = 0.0, False
        while not over:
            action, _ = model.predict(observation, deterministic=True)
            observation, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    return [*returns, seconds]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="gymnasium/HalfCheetah-v5")
    parser.add_argument("--agents", nargs="+", default=["SAC"])
    parser.add_argument("--seeds", type=int, default=5, help="how many, from 0")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--warmup", type=int, default=10_000, help="random steps")
    parser.add_argument("--peers", action="store_true", help="SBX too, in turns")
    parser.add_argument("--output", type=Path, default=Path("docs/results/worlds.csv"))
    add_precision(parser)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker is not None:
        library, name, seed = arguments.worker.split(":")
        work = (arguments.env, int(seed), arguments.steps, arguments.warmup)
        if library == "sbx":
            print(json.dumps(run_sbx(name, *work)))
        else:
            print(json.dumps(run_ours(name, *work, arguments.precision)))
        return
    of_precision = "" if arguments.precision == "float32" else " bfloat16"
    pythons = {f"eqrl{of_precision}": sys.executable}
    if arguments.peers:
        if not arguments.env.startswith("gymnasium/"):
            parser.error("--peers: SBX steps Gymnasium's environments only.")
        pythons["sbx"] = python_of("sbx")
    for name in arguments.agents:
        for seed in range(arguments.seeds):
            for library, python in pythons.items():
                run_once(arguments, library, python, name, seed)


def run_once(arguments: Any, library: str, python: str, name: str, seed: int) -> None:
    """Makes one run in a process of its own, and writes and prints its row."""
    output: Path = arguments.output
    which = {
        "environment": arguments.env,
        "agent": name,
        "library": library,
        "seed": str(seed),
        "steps": str(arguments.steps),
        "warmup": str(arguments.warmup),
    }
    rows = []
    if output.exists():
        with output.open() as file:
            rows = list(csv.DictReader(file))
    if any(which.items() <= row.items() for row in rows):
        print(f"In {output} already: {library}, {name}, seed {seed}.", flush=True)
        return
    options = ["--steps", which["steps"], "--warmup", which["warmup"]]
    worker = f"{library}:{name}:{seed}"
    command = [python, "-m", "benchmarks.worlds", "--worker", worker, *options]
    result = subprocess.run(
        [*command, "--env", arguments.env, "--precision", arguments.precision],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    *returns, seconds = json.loads(result.stdout.strip().splitlines()[-1])
    updates = arguments.steps - arguments.warmup - NUM_FIRST
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    row = which | {
        "mean_return": f"{sum(returns) / len(returns):.1f}",
        "least": f"{min(returns):.1f}",
        "greatest": f"{max(returns):.1f}",
        "updates_per_second": f"{updates / seconds:.1f}",
        "minutes": f"{seconds / 60:.2f}",
        "jax": metadata.version("jax"),
        "machine": platform.machine(),
        "commit": commit.stdout.strip(),
    }
    rows.append(row)
    with output.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(" ".join(f"{key}={value}" for key, value in row.items()), flush=True)


if __name__ == "__main__":
    main()
