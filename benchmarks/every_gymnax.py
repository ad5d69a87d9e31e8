"""What each agent reaches in every environment of gymnax, with settings for all alike.

100,000 steps from one seed, 1,000,000 of PPO and PQN in MinAtar; greedy returns of 64
episodes. `MNISTBandit-bsuite`, which downloads its data, is left out. Run it as
`nox -s benchmarks -- every_gymnax`.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import gymnax
import jax
import jax.random as jr

import eqrl
from eqrl._agents.base import AnyAgent
from eqrl.spaces import Discrete


ENVIRONMENTS = [name for name in gymnax.registered_envs if "MNIST" not in name]
HIDDEN = (64, 64)
ROLLOUTS = eqrl.Trainer.on_policy(num_envs=8, num_steps=128)
REPLAYED = eqrl.Trainer(
    num_envs=8, batch_size=128, capacity=100_000, updates_per_iteration=2
)
RATES: dict[str, Any] = {"actor_lr": 1e-3, "critic_lr": 1e-3}


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
        temperature_lr=1e-3,
        make_actor=eqrl.nn.Choice(HIDDEN, jax.nn.relu),
        make_critic=eqrl.nn.ActionValues(HIDDEN),
        **RATES,
    )


def _sac(num_steps: int) -> AnyAgent:
    del num_steps
    return eqrl.SAC(
        temperature_lr=1e-3,
        make_actor=eqrl.nn.Gaussian(HIDDEN),
        make_critic=eqrl.nn.Critic(HIDDEN),
        **RATES,
    )


def _td3(num_steps: int) -> AnyAgent:
    del num_steps
    return eqrl.TD3(
        make_actor=eqrl.nn.Deterministic(HIDDEN),
        make_critic=eqrl.nn.Critic(HIDDEN),
        **RATES,
    )


MakeAgent = Callable[[int], AnyAgent]
DISCRETE: dict[str, MakeAgent] = {
    "PPO": _ppo,
    "PQN": _pqn,
    "DQN": _dqn,
    "DiscreteSAC": _discrete_sac,
}
VECTORS: dict[str, MakeAgent] = {"PPO": _ppo, "SAC": _sac, "TD3": _td3}


def reached(
    env: Any, name: str, make: MakeAgent, num_steps: int, *, is_minatar: bool
) -> float:
    """The mean greedy return."""
    if is_minatar and name in ("PPO", "PQN"):
        num_steps *= 10
    agent = make(num_steps)
    trainer = ROLLOUTS if agent.sequence_length is None else REPLAYED
    size = trainer.steps_of_iteration
    num_steps = num_steps // size * size
    solution = eqrl.train(
        agent, env, trainer, num_steps=num_steps, log_every=num_steps, key=jr.key(0)
    )
    evaluation = eqrl.evaluate(
        agent, solution.state, env, num_episodes=64, key=jr.key(1)
    )
    return float(evaluation.returns.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", nargs="+", default=ENVIRONMENTS, choices=ENVIRONMENTS)
    parser.add_argument("--agents", nargs="+", default=[*DISCRETE, "SAC", "TD3"])
    parser.add_argument("--steps", type=int, default=100_000)
    arguments = parser.parse_args()
    print("| environment | agent | mean return | minutes |\n|---|---|---|---|")
    for name in arguments.envs:
        env = eqrl.envs.make(f"gymnax/{name}")
        kinds = DISCRETE if isinstance(env.spec.action, Discrete) else VECTORS
        for agent, make in kinds.items():
            if agent not in arguments.agents:
                continue
            begin = time.perf_counter()
            result = reached(
                env, agent, make, arguments.steps, is_minatar="MinAtar" in name
            )
            minutes = (time.perf_counter() - begin) / 60
            print(f"| {name} | {agent} | {result:.4g} | {minutes:.1f} |", flush=True)
            # A process may have so many memory maps, and programs take them.
            jax.clear_caches()


if __name__ == "__main__":
    main()
