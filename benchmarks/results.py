"""Learning curves of every agent on the environments of gymnax, and some of brax.

An agent has the same settings everywhere, those of `AGENTS`. Each is trained from five
seeds for 100,000 steps, or 1,000,000 for PPO and PQN in MinAtar, and then evaluated in
64 greedy episodes for each seed. `random` takes random actions. A run is a file in
`docs/results/data`. Existing files are kept, so that this can be stopped at any time.
At the end it writes the files that the page `docs/results/index.md` includes.
`MNISTBandit-bsuite`, which downloads its data, is left out. Run it as `nox -s results`.
"""

import argparse
import csv
import dataclasses
import math
import multiprocessing
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.random as jr
import numpy as np

import eqrl
from eqrl._agents.base import AnyAgent
from eqrl.spaces import Discrete

from .results_page import DATA, write_page


GYMNAX = (
    "CartPole-v1",
    "Acrobot-v1",
    "MountainCar-v0",
    "Catch-bsuite",
    "Pendulum-v1",
    "MountainCarContinuous-v0",
    "FourRooms-misc",
    "Breakout-MinAtar",
    "Asterix-MinAtar",
    "Freeway-MinAtar",
    "SpaceInvaders-MinAtar",
    "Seaquest-MinAtar",
    "DeepSea-bsuite",
    "MemoryChain-bsuite",
    "UmbrellaChain-bsuite",
    "DiscountingChain-bsuite",
    "SimpleBandit-bsuite",
    "PointRobot-misc",
    "Reacher-misc",
    "Swimmer-misc",
    "MetaMaze-misc",
    "BernoulliBandit-misc",
    "GaussianBandit-misc",
    "Pong-misc",
    "FrozenLake-misc",
)
BRAX = ("inverted_pendulum", "inverted_double_pendulum", "reacher")
ENVIRONMENTS = (
    *(f"gymnax/{name}" for name in GYMNAX),
    *(f"brax/{name}" for name in BRAX),
)

Job = tuple[str, str, pathlib.Path]
Line = tuple[int, int, str, str]

NUM_SEEDS = 5
NUM_STEPS = 100_000
NUM_EPISODES = 64
NUM_ROWS = 50
HIDDEN = (64, 64)
ROLLOUTS = eqrl.Trainer.on_policy(num_envs=8, num_steps=128)
REPLAYED = eqrl.Trainer(
    num_envs=8, batch_size=128, capacity=100_000, updates_per_iteration=2
)
# As many transitions, in windows of four.
WINDOWS = dataclasses.replace(REPLAYED, batch_size=32)


def _ppo(num_steps: int) -> AnyAgent:
    return eqrl.PPO(lr=1e-3, anneal_steps=float(num_steps))


def _pqn(num_steps: int) -> AnyAgent:
    return eqrl.PQN(epsilon_steps=num_steps / 5, anneal_steps=float(num_steps))


def _dqn(num_steps: int) -> AnyAgent:
    return eqrl.DQN(
        lr=5e-4,
        target_period=100,
        epsilon_steps=num_steps / 3,
        return_steps=3,
        make_network=eqrl.nn.ActionValues(HIDDEN),
    )


def _discrete_sac(num_steps: int) -> AnyAgent:
    del num_steps
    return eqrl.DiscreteSAC(
        actor_lr=1e-3,
        critic_lr=1e-3,
        temperature_lr=1e-3,
        make_actor=eqrl.nn.Choice(HIDDEN, jax.nn.relu),
        make_critic=eqrl.nn.ActionValues(HIDDEN),
    )


def _sac(num_steps: int) -> AnyAgent:
    del num_steps
    return eqrl.SAC(
        actor_lr=1e-3,
        critic_lr=1e-3,
        temperature_lr=1e-3,
        make_actor=eqrl.nn.Gaussian(HIDDEN),
        make_critic=eqrl.nn.Critic(HIDDEN),
    )


def _td3(num_steps: int) -> AnyAgent:
    del num_steps
    return eqrl.TD3(
        actor_lr=1e-3,
        critic_lr=1e-3,
        make_actor=eqrl.nn.Deterministic(HIDDEN),
        make_critic=eqrl.nn.Critic(HIDDEN),
    )


def _taac(num_steps: int) -> AnyAgent:
    del num_steps
    return eqrl.TAAC(
        actor_lr=1e-3,
        critic_lr=1e-3,
        temperature_lr=1e-3,
        window_length=4,
        make_actor=eqrl.nn.Gaussian(HIDDEN),
        make_critic=eqrl.nn.Critic(HIDDEN),
    )


DISCRETE: dict[str, Callable[[int], AnyAgent]] = {
    "PPO": _ppo,
    "PQN": _pqn,
    "DQN": _dqn,
    "DiscreteSAC": _discrete_sac,
    "random": _ppo,
}
VECTORS: dict[str, Callable[[int], AnyAgent]] = {
    "PPO": _ppo,
    "SAC": _sac,
    "TD3": _td3,
    "TAAC": _taac,
    "random": _ppo,
}
AGENTS = tuple(dict.fromkeys([*DISCRETE, *VECTORS]))


def make_env(name: str) -> Any:
    # The physics that brax uses by default.
    backend = "generalized" if name.startswith("brax/") else None
    return eqrl.envs.make(name, backend=backend)


def _agents_that_fit(env: Any) -> dict[str, Callable[[int], AnyAgent]]:
    return DISCRETE if isinstance(env.spec.action, Discrete) else VECTORS


def _steps_of(environment: str, agent: str) -> int:
    is_long = "MinAtar" in environment and agent in ("PPO", "PQN")
    return NUM_STEPS * (10 if is_long else 1)


def run(job: Job) -> str:
    """Trains, evaluates and writes one file; returns a line to print."""
    environment, agent_name, path = job
    begin = time.perf_counter()
    env = make_env(environment)
    num_steps = _steps_of(environment, agent_name)
    agent = _agents_that_fit(env)[agent_name](num_steps)
    if agent_name == "random":
        rows = list(_random_rows(agent, env))
    else:
        rows = list(_rows(agent, env, num_steps))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["seed", "step", "episode_return", "greedy_return"])
        writer.writerows(rows)
    unfinished.rename(path)
    # Programs take memory maps, and the number for a process is limited.
    jax.clear_caches()
    minutes = (time.perf_counter() - begin) / 60
    return f"{environment} {agent_name}: {minutes:.1f} min"


def _rows(agent: AnyAgent, env: Any, num_steps: int) -> Iterator[Line]:
    trainer = ROLLOUTS if agent.sequence_length is None else REPLAYED
    if isinstance(agent, eqrl.TAAC):
        trainer = WINDOWS
    size = trainer.steps_of_iteration
    num_steps = num_steps // size * size
    solution = eqrl.train_seeds(
        agent,
        env,
        trainer,
        num_seeds=NUM_SEEDS,
        num_steps=num_steps,
        log_every=num_steps // NUM_ROWS,
        key=jr.key(0),
    )
    greedy = [
        _mean_return(agent, eqrl.member(solution.state, seed), env, seed, "greedy")
        for seed in range(NUM_SEEDS)
    ]
    steps = solution.metrics["step"]
    returns = solution.metrics["episode_return"]
    for seed in range(NUM_SEEDS):
        for row, step in enumerate(steps):
            is_last = row == len(steps) - 1
            end = _number(greedy[seed]) if is_last else ""
            yield seed, int(step), _number(returns[row, seed]), end


def _random_rows(agent: AnyAgent, env: Any) -> Iterator[Line]:
    state = agent.init(env.spec, key=jr.key(0))
    for seed in range(NUM_SEEDS):
        mean = _mean_return(agent, state, env, seed, "random")
        yield seed, 0, "", _number(mean)


def _mean_return(
    agent: AnyAgent, state: Any, env: Any, seed: int, mode: eqrl.Mode
) -> float:
    evaluation = eqrl.evaluate(
        agent,
        state,
        env,
        num_episodes=NUM_EPISODES,
        key=jr.fold_in(jr.key(1), seed),
        mode=mode,
    )
    return float(np.mean(evaluation.returns))


def _number(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else ""


def _jobs(environments: list[str], agents: list[str]) -> Iterator[Job]:
    for environment in environments:
        for agent in _agents_that_fit(make_env(environment)):
            path = DATA / environment / f"{agent}.csv"
            if agent in agents and not path.exists():
                yield environment, agent, path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--envs", nargs="+", default=list(ENVIRONMENTS), choices=ENVIRONMENTS
    )
    parser.add_argument("--agents", nargs="+", default=list(AGENTS), choices=AGENTS)
    parser.add_argument(
        "--processes", type=int, default=len(os.sched_getaffinity(0)), help="at once"
    )
    arguments = parser.parse_args()
    # The cores cannot divide five seeds evenly, so each core has its own run.
    jobs = list(_jobs(arguments.envs, arguments.agents))
    processes = multiprocessing.get_context("spawn")
    with processes.Pool(arguments.processes, maxtasksperchild=8) as pool:
        for line in pool.imap_unordered(run, jobs):
            print(line, flush=True)
    write_page()


if __name__ == "__main__":
    main()
