"""Steps that PPO needs on brax's inverted pendulum, beside brax's own PPO.

Backend `generalized`, episodes of 1,000 steps. Both are evaluated repeatedly during
training by 64 greedy episodes, until the mean return is 1,000. Sizes, rates and
networks are the same for both: networks and clip are brax's defaults. Like brax's PPO,
ours computes advantages again with the updated critic, and begins with a standard
deviation below 1: 0.5, where brax has 0.69. Ours clips gradients at a norm of 10,
brax's not. brax's PPO also runs with the settings of
its own tutorial. Run it as `nox -s benchmarks -- brax_ppo`.
"""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

import eqrl

from .ppo_workers import mend_brax


NUM_ENVS, ROLLOUT, UNROLL = 16, 64, 8
OURS: dict[str, Any] = {
    "num_envs": NUM_ENVS,
    "unroll_length": UNROLL,
    "learning_rate": 1e-3,
    "discounting": 0.97,
    "entropy_cost": 0.0,
    "reward_scaling": 0.1,
}
TUTORIAL: dict[str, Any] = {
    "num_envs": 2048,
    "unroll_length": 5,
    "batch_size": 1024,
    "num_minibatches": 32,
    "num_updates_per_batch": 4,
    "learning_rate": 3e-4,
    "discounting": 0.97,
    "entropy_cost": 1e-2,
    "reward_scaling": 10,
}


def ours(
    num_steps: int,
    num_evaluations: int,
    seed: int,
    *,
    num_epochs: int,
    num_minibatches: int,
) -> list[tuple[int, float]]:
    """The mean greedy returns at regular numbers of steps."""
    env = eqrl.envs.make("brax/inverted_pendulum", backend="generalized")
    agent = eqrl.Normalized(
        eqrl.PPO(
            lr=1e-3,
            discount=0.97,
            reward_scale=0.1,
            entropy_weight=0.0,
            num_epochs=num_epochs,
            num_minibatches=num_minibatches,
            clip=0.3,
            max_gradient_norm=10.0,
            recompute_advantages=True,
            make_actor=eqrl.nn.Normal((32,) * 4, jax.nn.swish, initial_scale=0.5),
            make_critic=eqrl.nn.Value((256,) * 5, jax.nn.swish),
        )
    )
    trainer = eqrl.Trainer.on_policy(num_envs=NUM_ENVS, num_steps=ROLLOUT)
    size = trainer.steps_of_iteration
    part = max(num_steps // num_evaluations // size, 1) * size

    @eqx.filter_jit
    def mean_return(state: Any) -> Any:
        evaluation = eqrl.evaluate(
            agent, state, env, num_episodes=64, key=jr.key(seed + 1)
        )
        return jnp.mean(evaluation.returns)

    returns: list[tuple[int, float]] = []
    solution = None
    for index in range(num_evaluations):
        solution = eqrl.train(
            agent, env, trainer, num_steps=part, key=jr.key(seed), initial=solution
        )
        returns.append(((index + 1) * part, float(mean_return(solution.state))))
    return returns


def theirs(
    options: dict[str, Any], num_steps: int, num_evaluations: int, seed: int
) -> list[tuple[int, float]]:
    """The same for brax's own PPO."""
    from brax import envs
    from brax.training.agents.ppo import train as ppo

    mend_brax()
    returns: list[tuple[int, float]] = []

    def note(step: int, metrics: Any) -> None:
        returns.append((int(step), float(metrics["eval/episode_reward"])))

    ppo.train(
        envs.get_environment("inverted_pendulum", backend="generalized"),
        num_timesteps=num_steps,
        episode_length=1000,
        normalize_observations=True,
        num_eval_envs=64,
        deterministic_eval=True,
        num_evals=num_evaluations + 1,
        progress_fn=note,
        seed=seed,
        **options,
    )
    return [(step, value) for step, value in returns if step > 0]


def arrival(returns: Sequence[tuple[int, float]]) -> int | None:
    """Steps after which the return is 1,000."""
    return next((step for step, value in returns if value >= 999.5), None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=49_152)
    parser.add_argument("--tutorial-steps", type=int, default=2_000_000)
    parser.add_argument("--evaluations", type=int, default=24)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=16)
    parser.add_argument("--minibatches", type=int, default=16)
    parser.add_argument("--only", choices=["eqrl", "brax", "brax, tutorial"])
    arguments = parser.parse_args()
    print("| PPO of | seed | steps to 1,000 | below 990 later | last | minutes |")
    print("|---|---|---|---|---|---|")
    sizes = {
        "num_minibatches": arguments.minibatches,
        "num_updates_per_batch": arguments.epochs,
        # This many unrolls make a rollout as long as ours.
        "batch_size": NUM_ENVS * ROLLOUT // UNROLL // arguments.minibatches,
    }
    length = (arguments.steps, arguments.evaluations)
    runs: dict[str, Any] = {
        "eqrl": lambda seed: ours(
            *length,
            seed,
            num_epochs=arguments.epochs,
            num_minibatches=arguments.minibatches,
        ),
        "brax": lambda seed: theirs(OURS | sizes, *length, seed),
        "brax, tutorial": lambda seed: theirs(
            TUTORIAL, arguments.tutorial_steps, arguments.evaluations, seed
        ),
    }
    for name, run in runs.items():
        if arguments.only not in (None, name):
            continue
        for seed in arguments.seeds:
            begin = time.perf_counter()
            returns = run(seed)
            minutes = (time.perf_counter() - begin) / 60
            steps = arrival(returns)
            reached = "not reached" if steps is None else f"{steps:,}"
            later = [value for step, value in returns if step > (steps or 0)]
            fallen = sum(value < 990 for value in later)
            print(
                f"| {name} | {seed} | {reached} | {fallen} of {len(later)} looks "
                f"| {returns[-1][1]:.1f} | "
                f"{minutes:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
