"""Whether PPO learns in environments of other libraries in JAX.

Prints, for one environment of each library and for each seed, the mean return of 128
episodes of a random player and of PPO after 200,000 steps, which acts as in training.
Run it as `nox -s benchmarks -- jax_worlds pgx/minatar-breakout`, or without a name.
"""

import argparse
import time
from collections.abc import Mapping
from typing import Any

import jax.random as jr

import eqrl


# With the options of `eqrl.envs.make`.
TASKS: Mapping[str, Mapping[str, Any]] = {
    "pgx/minatar-breakout": {},
    "xminigrid/MiniGrid-EmptyRandom-5x5": {},
    "navix/Navix-Empty-Random-5x5-v0": {},
    "jumanji/Snake-v1": {"max_steps": 1_000, "observation": "grid"},
    "craftax/Craftax-Classic-Symbolic-v1": {"max_steps": 1_000},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", default=list(TASKS))
    parser.add_argument("--num-steps", type=int, default=200_000)
    parser.add_argument("--num-seeds", type=int, default=3)
    arguments = parser.parse_args()
    agent = eqrl.PPO(lr=1e-3)
    trainer = eqrl.Trainer.on_policy(num_envs=16, num_steps=125)
    print("environment,seed,random,ppo,seconds", flush=True)
    for name in arguments.names:
        env = eqrl.envs.make(name, **TASKS.get(name, {}))
        for seed in range(arguments.num_seeds):
            key, random_key, ppo_key = jr.split(jr.key(seed), 3)
            start = time.perf_counter()
            solution = eqrl.train(
                agent, env, trainer, num_steps=arguments.num_steps, key=key
            )
            seconds = time.perf_counter() - start
            state = solution.state
            random = eqrl.evaluate(
                agent, state, env, num_episodes=128, key=random_key, mode="random"
            ).returns.mean()
            ppo = eqrl.evaluate(
                agent, state, env, num_episodes=128, key=ppo_key, mode="sample"
            ).returns.mean()
            print(f"{name},{seed},{random:.3f},{ppo:.3f},{seconds:.0f}", flush=True)


if __name__ == "__main__":
    main()
