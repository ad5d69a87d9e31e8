"""Returns of the agents, five seeds each, trained side by side.

Hidden layers of 64 and 64, batches of 64, learning rates of 1e-3. Returns are means of
64 greedy episodes for each seed. Run it as `nox -s benchmarks -- learning`.
"""

import argparse
import dataclasses
import time
from typing import Any

import equinox as eqx
import jax.random as jr
from jaxtyping import Array, Float

import eqrl

from .precision import add_precision, in_precision


NUM_SEEDS = 5


@dataclasses.dataclass(frozen=True)
class Task:
    """An environment, and the number of steps to train in it."""

    env: str
    num_envs: int
    num_steps: dict[str, int]
    options: dict[str, Any]


TASKS = {
    "pendulum": Task(
        env="gymnax/Pendulum-v1",
        num_envs=1,
        num_steps={
            "SAC": 20_000,
            "TD3": 20_000,
            "TAAC": 20_000,
            "TAAC-L": 20_000,
            "TAAC-Q": 20_000,
        },
        options={},
    ),
    "inverted_pendulum": Task(
        env="brax/inverted_pendulum",
        num_envs=4,
        num_steps={"SAC": 25_000, "TD3": 50_000},
        options={"backend": "generalized", "max_steps": 1000},
    ),
}


TRAJECTORIES = {
    "TAAC": eqrl.ConstantTrajectory(),
    "TAAC-L": eqrl.LinearTrajectory(),
    "TAAC-Q": eqrl.QuadraticTrajectory(),
}


def make_agent(name: str) -> eqrl.AbstractAgent[Any, Any, Any]:
    rates: dict[str, Any] = {"actor_lr": 1e-3, "critic_lr": 1e-3}
    critic = eqrl.nn.Critic(hidden_sizes=(64, 64))
    if name == "SAC":
        return eqrl.SAC(
            temperature_lr=1e-3,
            make_actor=eqrl.nn.Gaussian(hidden_sizes=(64, 64)),
            make_critic=critic,
            **rates,
        )
    if name in TRAJECTORIES:
        return eqrl.TAAC(
            trajectory=TRAJECTORIES[name],
            temperature_lr=1e-3,
            make_actor=eqrl.nn.Gaussian(hidden_sizes=(64, 64)),
            make_critic=critic,
            **rates,
        )
    return eqrl.TD3(
        make_actor=eqrl.nn.Deterministic(hidden_sizes=(64, 64)),
        make_critic=critic,
        **rates,
    )


def returns(
    task: Task, name: str, *, seed: int, precision: eqrl.nn.Precision
) -> Float[Array, " seeds"]:
    """The mean greedy return of each seed."""
    agent = in_precision(make_agent(name), precision)
    env = eqrl.envs.make(task.env, **task.options)
    trainer = eqrl.Trainer(
        num_envs=task.num_envs,
        batch_size=64 // (agent.sequence_length or 1),
        updates_per_iteration=task.num_envs,
    )
    solution = eqrl.train_seeds(
        agent,
        env,
        trainer,
        num_seeds=NUM_SEEDS,
        members="together",
        num_steps=task.num_steps[name],
        key=jr.key(seed),
    )

    def mean_return(state: Any, key: Array) -> Float[Array, ""]:
        evaluation = eqrl.evaluate(agent, state, env, num_episodes=64, key=key)
        return evaluation.returns.mean()

    keys = jr.split(jr.key(seed + 1_000), NUM_SEEDS)
    return eqx.filter_jit(eqx.filter_vmap(mean_return))(solution.state, keys)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    names = [*TASKS["pendulum"].num_steps]
    parser.add_argument("--agents", nargs="+", default=names, choices=names)
    parser.add_argument("--seed", type=int, default=0)
    add_precision(parser)
    arguments = parser.parse_args()
    print("| task | agent | steps | mean | each seed | minutes |")
    print("|---|---|---|---|---|---|")
    for task_name in arguments.tasks:
        task = TASKS[task_name]
        for name in arguments.agents:
            if name not in task.num_steps:
                continue
            begin = time.perf_counter()
            result = returns(
                task, name, seed=arguments.seed, precision=arguments.precision
            )
            minutes = (time.perf_counter() - begin) / 60
            each = ", ".join(f"{value:.1f}" for value in result)
            print(
                f"| {task_name} | {name} | {task.num_steps[name]:,} | "
                f"{result.mean():.1f} | {each} | {minutes:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
