"""Returns of DQN, discrete SAC, PPO and PQN on tasks with published returns.

Returns are means of 64 greedy episodes for each seed, trained side by side. Run it as
`nox -s benchmarks -- tasks`.
"""

import argparse
import dataclasses
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float

import eqrl
from eqrl._agents.base import AnyAgent

from .precision import add_precision, in_precision


@dataclasses.dataclass(frozen=True)
class Task:
    """An agent with all settings, its environment and its number of steps."""

    agent: AnyAgent
    env: str
    trainer: eqrl.Trainer
    num_steps: int
    asked: float
    num_seeds: int = 5
    options: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def whole_steps(self) -> int:
        """The steps of its whole iterations, those that it trains for."""
        size = self.trainer.steps_of_iteration
        return self.num_steps // size * size


def _ppo_on_cartpole(num_steps: int, asked: float) -> Task:
    return Task(
        agent=eqrl.PPO(value_clip=0.2, anneal_steps=float(num_steps)),
        env="gymnax/CartPole-v1",
        trainer=eqrl.Trainer.on_policy(num_envs=4, num_steps=128),
        num_steps=num_steps,
        asked=asked,
    )


def annealed_adam(learning_rate: eqrl.FloatLike) -> optax.GradientTransformation:
    """Adam with a rate that falls to a fiftieth over 40,000 updates."""
    return optax.adam(
        lambda count: learning_rate * jnp.maximum(1 - count / 40_000, 0.02)
    )


def _dqn_on_cartpole(return_steps: int, asked: float) -> Task:
    return Task(
        agent=eqrl.DQN(
            lr=5e-4,
            target_period=50,
            epsilon_steps=30_000.0,
            return_steps=return_steps,
            make_network=eqrl.nn.ActionValues((64, 64), layer_norm=True),
            make_optimizer=annealed_adam,
        ),
        env="gymnax/CartPole-v1",
        trainer=eqrl.Trainer(
            num_envs=8, batch_size=64, capacity=80_000, updates_per_iteration=4
        ),
        num_steps=80_000,
        asked=asked,
    )


def _discrete_sac_on_cartpole(num_steps: int, asked: float) -> Task:
    return Task(
        agent=eqrl.DiscreteSAC(
            actor_lr=1e-3,
            critic_lr=1e-3,
            temperature_lr=1e-3,
            # Critics learn values of 10 sooner than values of 100.
            reward_scale=0.1,
            make_actor=eqrl.nn.Choice((64, 64), jax.nn.relu),
            make_critic=eqrl.nn.ActionValues((64, 64)),
        ),
        env="gymnax/CartPole-v1",
        trainer=eqrl.Trainer(
            num_envs=8, batch_size=128, capacity=100_000, updates_per_iteration=2
        ),
        num_steps=num_steps,
        asked=asked,
    )


TASKS = {
    "ppo-cartpole-200k": _ppo_on_cartpole(200_000, 470),
    "ppo-cartpole-500k": _ppo_on_cartpole(500_000, 490),
    "ppo-acrobot": Task(
        agent=eqrl.PPO(value_clip=0.2, anneal_steps=500_000.0),
        env="gymnax/Acrobot-v1",
        trainer=eqrl.Trainer.on_policy(num_envs=4, num_steps=128),
        num_steps=500_000,
        asked=-88,
    ),
    "ppo-catch": Task(
        agent=eqrl.PPO(lr=1e-3, anneal_steps=100_000.0),
        env="gymnax/Catch-bsuite",
        trainer=eqrl.Trainer.on_policy(num_envs=8, num_steps=64),
        num_steps=100_000,
        asked=0.95,
        num_seeds=10,
    ),
    "ppo-pendulum": Task(
        agent=eqrl.Normalized(
            eqrl.PPO(
                lr=1e-3,
                discount=0.95,
                reward_scale=0.1,
                entropy_weight=0.0,
                num_epochs=10,
                num_minibatches=8,
                anneal_steps=153_600.0,
            )
        ),
        env="gymnax/Pendulum-v1",
        trainer=eqrl.Trainer.on_policy(num_envs=16, num_steps=64),
        num_steps=153_600,
        asked=-185,
    ),
    "ppo-breakout": Task(
        agent=eqrl.PPO(
            lr=5e-3,
            anneal_steps=1e6,
            num_minibatches=8,
            make_actor=eqrl.nn.Choice((64, 64), jax.nn.relu),
            make_critic=eqrl.nn.Value((64, 64), jax.nn.relu),
        ),
        env="gymnax/Breakout-MinAtar",
        trainer=eqrl.Trainer.on_policy(num_envs=64, num_steps=128),
        num_steps=1_000_000,
        asked=22,
        num_seeds=3,
    ),
    "ppo-fast": Task(
        agent=eqrl.Normalized(
            eqrl.PPO(
                lr=3e-4,
                discount=0.95,
                clip=0.3,
                reward_scale=10.0,
                num_epochs=4,
                num_minibatches=8,
                normalize_advantage=False,
                make_actor=eqrl.nn.Normal((32,) * 4, jax.nn.swish),
                make_critic=eqrl.nn.Value((256,) * 5, jax.nn.swish),
            )
        ),
        env="brax/fast",
        trainer=eqrl.Trainer.on_policy(num_envs=64, num_steps=40),
        # The whole iterations of brax's own test, of 2^15 steps.
        num_steps=30_720,
        asked=135,
        options={"max_steps": 128},
    ),
    "pqn-cartpole": Task(
        agent=eqrl.PQN(
            lr=1e-4,
            decay=0.95,
            reward_scale=0.1,
            final_epsilon=0.2,
            epsilon_steps=100_000.0,
            anneal_steps=500_000.0,
            num_epochs=4,
            num_minibatches=16,
        ),
        env="gymnax/CartPole-v1",
        trainer=eqrl.Trainer.on_policy(num_envs=32, num_steps=64),
        num_steps=500_000,
        asked=490,
        num_seeds=3,
    ),
    "dqn-cartpole-n3": _dqn_on_cartpole(3, 450),
    "dqn-cartpole-n1": _dqn_on_cartpole(1, 400),
    "discrete-sac-cartpole-40k": _discrete_sac_on_cartpole(40_000, 300),
    "discrete-sac-cartpole-100k": _discrete_sac_on_cartpole(100_000, 450),
}


def reached(task: Task, *, seed: int) -> tuple[Float[Array, " seeds"], dict[str, Any]]:
    """The mean greedy return of each seed, and the last row of metrics."""
    env = eqrl.envs.make(task.env, **task.options)
    solution = eqrl.train_seeds(
        task.agent,
        env,
        task.trainer,
        num_seeds=task.num_seeds,
        members="together",
        num_steps=task.whole_steps,
        log_every=task.whole_steps // 20,
        key=jr.key(seed),
    )

    def mean_return(state: Any, key: Array) -> Float[Array, ""]:
        evaluation = eqrl.evaluate(task.agent, state, env, num_episodes=64, key=key)
        return evaluation.returns.mean()

    keys = jr.split(jr.key(seed + 1_000), task.num_seeds)
    returns = eqx.filter_jit(eqx.filter_vmap(mean_return))(solution.state, keys)
    return returns, {name: value[-1] for name, value in solution.metrics.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seed", type=int, default=0)
    add_precision(parser)
    arguments = parser.parse_args()
    print("| task | steps | asked | mean | each seed | last in training | minutes |")
    print("|---|---|---|---|---|---|---|")
    for name in arguments.tasks:
        task = TASKS[name]
        agent = in_precision(task.agent, arguments.precision)
        task = dataclasses.replace(task, agent=agent)
        begin = time.perf_counter()
        returns, metrics = reached(task, seed=arguments.seed)
        minutes = (time.perf_counter() - begin) / 60
        each = ", ".join(f"{value:.1f}" for value in returns)
        last = ", ".join(
            f"{name} {metrics[name].mean():.3g}"
            for name in ("episode_return", "entropy", "temperature")
            if name in metrics
        )
        print(
            f"| {name} | {task.whole_steps:,} | {task.asked:g} "
            f"| {returns.mean():.4g} | {each} | {last} | {minutes:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
