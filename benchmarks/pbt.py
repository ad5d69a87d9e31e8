"""Population based training beside the same initial members left alone.

Eight members on Pendulum-v1, 20,000 steps each, with wide priors: learning rates from
3e-5 to 3e-2 and one minus the discount from 1e-3 to 1e-1. Run it as
`nox -s benchmarks -- pbt`.
"""

import argparse
import time
from typing import Any

import jax.random as jr

import eqrl


SIZE = 8
NUM_GENERATIONS = 10
NUM_STEPS = 20_000
RATE = eqrl.LogUniform(3e-5, 3e-2)
DISCOUNT = eqrl.OneMinus(eqrl.LogUniform(1e-3, 1e-1))


def sac_hyperparameters(agent: eqrl.SAC) -> tuple[Any, ...]:
    return agent.actor_lr, agent.critic_lr, agent.temperature_lr, agent.discount


def td3_hyperparameters(agent: eqrl.TD3) -> tuple[Any, ...]:
    return agent.actor_lr, agent.critic_lr, agent.discount


def make(name: str) -> tuple[eqrl.AbstractAgent[Any, Any, Any], eqrl.PBT]:
    critic = eqrl.nn.Critic(hidden_sizes=(64, 64))
    if name == "SAC":
        agent = eqrl.SAC(make_actor=eqrl.nn.Gaussian((64, 64)), make_critic=critic)
        priors = (RATE, RATE, RATE, DISCOUNT)
        return agent, eqrl.PBT(where=sac_hyperparameters, priors=priors)
    agent = eqrl.TD3(make_actor=eqrl.nn.Deterministic((64, 64)), make_critic=critic)
    return agent, eqrl.PBT(where=td3_hyperparameters, priors=(RATE, RATE, DISCOUNT))


def mean_return(name: str, *, selection: bool, seed: int) -> float:
    """The last generation's mean over members and episodes."""
    agent, pbt = make(name)
    agents: Any = pbt.init(agent, SIZE, key=jr.key(1_000 + seed))
    solution = eqrl.train_population(
        agents,
        eqrl.envs.make("gymnax/Pendulum-v1"),
        eqrl.Trainer(batch_size=64),
        pbt if selection else None,
        size=SIZE,
        num_generations=NUM_GENERATIONS,
        steps_per_generation=NUM_STEPS // NUM_GENERATIONS,
        num_episodes=64,
        key=jr.key(seed),
    )
    return float(solution.returns[-1].mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    names = ["SAC", "TD3"]
    parser.add_argument("--agents", nargs="+", default=names, choices=names)
    parser.add_argument("--repetitions", type=int, default=3)
    arguments = parser.parse_args()
    print("| agent | repetition | PBT | left alone | difference | minutes |")
    print("|---|---|---|---|---|---|")
    for name in arguments.agents:
        for seed in range(arguments.repetitions):
            begin = time.perf_counter()
            tuned, alone = (
                mean_return(name, selection=selection, seed=seed)
                for selection in (True, False)
            )
            minutes = (time.perf_counter() - begin) / 60
            print(
                f"| {name} | {seed} | {tuned:.1f} | {alone:.1f} | "
                f"{tuned - alone:.1f} | {minutes:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
