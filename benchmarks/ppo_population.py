"""The cost of a member of a population of PPO, beside an agent that trains alone.

CartPole-v1, 4 environments by 128 steps, hidden layers of 64 and 64; members one after
another on one device, as is the default on processors. Run it as `nox -s benchmarks --
ppo_population`.
"""

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr

import eqrl

from .measure import median_ratio, side_by_side
from .members import make_run_of_members


def make_run(size: int, num_steps: int) -> Callable[[], Any]:
    """A function that trains each member for `num_steps`, resuming each time."""
    env = eqrl.envs.make("gymnax/CartPole-v1")
    trainer = eqrl.Trainer.on_policy(num_envs=4, num_steps=128)
    agents = jax.tree.map(lambda x: jnp.broadcast_to(x, (size, *x.shape)), eqrl.PPO())
    run = make_run_of_members(trainer, agents, env, "in_turn")
    return lambda: run(num_steps)


def make_run_alone(num_steps: int) -> Callable[[], Any]:
    """The same for one agent without a population."""
    env = eqrl.envs.make("gymnax/CartPole-v1")
    trainer = eqrl.Trainer.on_policy(num_envs=4, num_steps=128)
    agent = eqrl.PPO()
    state, counts = eqrl.jit_init(trainer, agent, env, key=jr.key(0))

    def run() -> Any:
        nonlocal state, counts
        state, counts, metrics = eqrl.jit_run(
            trainer, agent, env, state, counts, num_steps=num_steps, key=jr.key(1)
        )
        return metrics

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--steps", type=int, default=25_600, help="of each member")
    parser.add_argument("--repeats", type=int, default=9)
    arguments = parser.parse_args()
    runs = {
        "alone": make_run_alone(arguments.steps),
        "members": make_run(arguments.size, arguments.steps),
    }
    times = side_by_side(runs, repeats=arguments.repeats)
    micro = 1e6 / arguments.steps
    alone = statistics.median(times["alone"]) * micro
    member = statistics.median(times["members"]) * micro / arguments.size
    ratio = median_ratio(times["members"], times["alone"]) / arguments.size
    print("| members | microseconds a step, alone | of a member | ratio |")
    print("|---|---|---|---|")
    print(f"| {arguments.size} | {alone:.1f} | {member:.1f} | {ratio:.3f} |")


if __name__ == "__main__":
    main()
