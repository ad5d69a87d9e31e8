"""Whether persistent exploration reaches a distant goal.

MountainCarContinuous-v0: a policy with a return below 10 does not reach the goal, one
above 90 does. First the share of random episodes that reach it, with fresh actions and
with a random switch; then TAAC and SAC, ten seeds each, whose returns are means of 64
greedy episodes. Run it as `nox -s benchmarks -- exploration`.
"""

import argparse
import time
from typing import Any

import equinox as eqx
import jax.random as jr
from jaxtyping import Array, Float

import eqrl


NUM_SEEDS = 10
NUM_STEPS = 100_000
WINDOW_LENGTH = 4
NUM_WINDOWS = 16


def make_agent(name: str) -> eqrl.AbstractAgent[Any, Any, Any]:
    options: dict[str, Any] = {
        "actor_lr": 1e-3,
        "critic_lr": 1e-3,
        "temperature_lr": 3e-4,
        "make_actor": eqrl.nn.Gaussian(hidden_sizes=(64, 64)),
        "make_critic": eqrl.nn.Critic(hidden_sizes=(64, 64)),
    }
    if name == "SAC":
        return eqrl.SAC(**options)
    return eqrl.TAAC(
        window_length=WINDOW_LENGTH,
        target_entropy=-1.609,
        switch_target_entropy=0.1985,
        **options,
    )


def share_at_random(name: str, *, num_episodes: int, seed: int) -> float:
    """The number of random episodes that reach the goal."""
    agent = make_agent(name)
    env = eqrl.envs.make("gymnax/MountainCarContinuous-v0")
    state = agent.init(env.spec, key=jr.key(seed))
    evaluation = eqrl.evaluate(
        agent, state, env, num_episodes=num_episodes, key=jr.key(seed), mode="random"
    )
    # The goal is worth 100, and the 999 steps of an episode cost less than that.
    return float((evaluation.returns > 0).mean())


def returns(name: str, *, num_steps: int, seed: int) -> Float[Array, " seeds"]:
    """The mean greedy return of each seed."""
    agent = make_agent(name)
    env = eqrl.envs.make("gymnax/MountainCarContinuous-v0")
    trainer = eqrl.Trainer(
        num_envs=4,
        batch_size=NUM_WINDOWS * WINDOW_LENGTH // (agent.sequence_length or 1),
        warmup_steps=20_000,
        capacity=max(num_steps, 20_000),
        updates_per_iteration=2,
    )
    solution = eqrl.train_seeds(
        agent, env, trainer, num_seeds=NUM_SEEDS, num_steps=num_steps, key=jr.key(seed)
    )

    def mean_return(state: Any, key: Array) -> Float[Array, ""]:
        evaluation = eqrl.evaluate(agent, state, env, num_episodes=64, key=key)
        return evaluation.returns.mean()

    keys = jr.split(jr.key(seed + 1_000), NUM_SEEDS)
    return eqx.filter_jit(eqx.filter_vmap(mean_return))(solution.state, keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ["TAAC", "SAC"]
    parser.add_argument("--agents", nargs="+", default=names, choices=names)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--num-steps", type=int, default=NUM_STEPS)
    parser.add_argument("--random-episodes", type=int, default=20_000)
    arguments = parser.parse_args()
    for name, what in (("TAAC", "a random switch"), ("SAC", "fresh actions")):
        share = share_at_random(name, num_episodes=arguments.random_episodes, seed=0)
        print(f"At random, with {what}: {100 * share:.2f} % reach the goal", flush=True)
    print("| agent | steps | above 90 | below 10 | each seed | minutes |")
    print("|---|---|---|---|---|---|")
    for name in arguments.agents:
        for seed in arguments.seeds:
            begin = time.perf_counter()
            result = returns(name, num_steps=arguments.num_steps, seed=seed)
            minutes = (time.perf_counter() - begin) / 60
            each = ", ".join(f"{value:.1f}" for value in result)
            print(
                f"| {name} | {arguments.num_steps:,} | {int((result > 90).sum())} | "
                f"{int((result < 10).sum())} | {each} | {minutes:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
