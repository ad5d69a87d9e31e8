"""Learning in tasks of MuJoCo Playground, and ends and starts beside its own wrapper.

`sac` trains SAC on CartpoleBalance, `cheetah` on CheetahRun, `ppo` trains PPO on Go1
with critics that see the privileged state. `wrapper` plays CartpoleBalance in eqrl and
in Playground's wrapper for training, with random actions, and prints how many different
states episodes of one environment began in. `limits` trains PPO with the ends
and beginnings of eqrl, and with those of the wrapper: each episode begins in one of as
many states as there are environments, which is also the successor at an end. Run it as
`nox -s benchmarks -- playground sac --num-seeds 5`.
"""

import argparse
import dataclasses
import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqrl


def train_sac(task: str, num_steps: int, seed: int) -> None:
    env = eqrl.envs.make(f"playground/{task}")
    agent = eqrl.SAC(actor_lr=1e-3, critic_lr=1e-3, temperature_lr=1e-3)
    trainer = eqrl.Trainer(num_envs=8, updates_per_iteration=8, warmup_steps=2_000)
    _train(agent, env, trainer, num_steps, seed, task)


def train_ppo(task: str, num_steps: int, seed: int) -> None:
    env = eqrl.envs.make(f"playground/{task}")
    trainer = eqrl.Trainer.on_policy(num_envs=64, num_steps=20)
    agent = eqrl.Normalized(eqrl.PPO(discount=0.97, entropy_weight=0.01))
    _train(agent, env, trainer, num_steps, seed, task)


def _train(
    agent: Any, env: Any, trainer: eqrl.Trainer, num_steps: int, seed: int, task: str
) -> None:
    start = time.perf_counter()
    key = jr.key(seed)
    solution = eqrl.train(agent, env, trainer, num_steps=num_steps, key=key)
    seconds = time.perf_counter() - start
    greedy = eqrl.evaluate(
        agent, solution.state, env, num_episodes=16, key=jr.fold_in(key, 1_000)
    ).returns
    random = eqrl.evaluate(
        agent,
        solution.state,
        env,
        num_episodes=16,
        key=jr.fold_in(key, 1_000),
        mode="random",
    ).returns
    print(
        f"{task},{seed},{num_steps},{greedy.mean():.1f},{random.mean():.1f},"
        f"{seconds:.0f}",
        flush=True,
    )


class AsTheWrapper(eqrl.envs.AbstractStatelessWrapper[Any]):
    """An environment with the ends and beginnings of Playground's wrapper."""

    env: Any
    states: Any
    observations: jax.Array

    @property
    def spec(self) -> eqrl.EnvSpec:
        return self.env.spec

    def reset(self, *, key: jax.Array) -> tuple[Any, jax.Array]:
        index = jr.randint(key, (), 0, len(self.observations))
        state = jax.tree.map(lambda x: x[index], self.states)
        return state, self.observations[index]

    def step(
        self, state: Any, action: jax.Array, *, key: jax.Array
    ) -> tuple[Any, eqrl.envs.Outcome]:
        step_key, first_key = jr.split(key)
        state, outcome = self.env.step(state, action, key=step_key)
        _, first = self.reset(key=first_key)
        over = outcome.terminated | outcome.truncated
        seen = jnp.where(over, first, outcome.observation)
        return state, dataclasses.replace(outcome, observation=seen)


def train_beside_the_wrapper(task: str, num_steps: int, seed: int) -> None:
    """Prints the returns, and the values at limits of what was reached and was given.

    Both policies are evaluated with the true ends and beginnings.
    """
    num_envs, key = 64, jr.key(seed)
    env = eqrl.envs.make(f"playground/{task}")
    states, observations = jax.vmap(lambda key: env.reset(key=key))(
        jr.split(jr.fold_in(key, 1), num_envs)
    )
    agent = eqrl.PPO(lr=1e-3, discount=0.995)
    trainer = eqrl.Trainer.on_policy(num_envs=num_envs, num_steps=50)
    for name, used in (
        ("eqrl", env),
        ("wrapper", AsTheWrapper(env, states, observations)),
    ):
        solution = eqrl.train(agent, used, trainer, num_steps=num_steps, key=key)
        state = solution.state
        played = [
            eqrl.rollout(agent, state, each, num_episodes=16, key=jr.fold_in(key, 2))
            for each in (env, used)
        ]
        rows, mask = played[0]
        returns = jnp.sum(jnp.where(mask, rows.reward, 0), axis=1).mean()
        values = []
        for rows, mask in played:
            ends = rows.next_observation[rows.truncated & mask]
            values.append(float(jax.vmap(state.critic)(ends).mean()))
        print(
            f"{task},{name},{seed},{num_steps},{returns:.1f},{values[0]:.1f},"
            f"{values[1]:.1f}",
            flush=True,
        )


def play_beside_the_wrapper(num_envs: int, max_steps: int) -> None:
    """Counts first states, and limits whose successor is one of them."""
    from mujoco_playground import (  # pyright: ignore[reportMissingImports]
        registry,
        wrapper,
    )

    task: Any = registry.load("CartpoleBalance", config_overrides={"impl": "jax"})
    num_steps = 5 * max_steps
    env = eqrl.envs.TimeLimit(eqrl.envs.PlaygroundEnv(task), max_steps)
    agent = eqrl.SAC()
    state = agent.init(env.spec, key=jr.key(0))
    actors = eqrl.start(agent, state, env, num_envs=num_envs, key=jr.key(1))
    play = eqx.filter_jit(
        lambda actors, key: eqrl.interact(
            agent, state, env, actors, mode="random", key=key
        )
    )
    firsts, ends = [], []
    for step in range(num_steps):
        actors, rows = play(actors, jr.fold_in(jr.key(2), step))
        firsts += [np.asarray(rows.observation)[np.asarray(rows.timestep) == 0]]
        ends += [np.asarray(rows.next_observation)[np.asarray(rows.truncated)]]
    _report("eqrl", np.concatenate(firsts), np.concatenate(ends))
    wrapped = wrapper.wrap_for_brax_training(task, episode_length=max_steps)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        reset, act = jax.jit(wrapped.reset), jax.jit(wrapped.step)
        # The wrapper takes keys of the old kind only.
        current = reset(jr.split(jr.PRNGKey(1), num_envs))
        firsts, ends = [np.asarray(current.obs)], []
        for step in range(num_steps):
            key = jr.fold_in(jr.key(2), step)
            action = jr.uniform(key, (num_envs, task.action_size), minval=-1, maxval=1)
            current = act(current, action)
            over = np.asarray(current.done) > 0
            # The observation that a learner is given as the successor.
            ends += [np.asarray(current.obs)[over]]
            firsts += [np.asarray(current.obs)[over]]
    _report("Playground's wrapper", np.concatenate(firsts), np.concatenate(ends))


def _report(name: str, firsts: np.ndarray, ends: np.ndarray) -> None:
    known = {tuple(first) for first in firsts.tolist()}
    lost = sum(tuple(end) in known for end in ends.tolist())
    print(
        f"{name}: {len(firsts)} episodes began in {len(known)} states; at {lost} of "
        f"{len(ends)} limits the successor is a first state",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["sac", "cheetah", "ppo", "wrapper", "limits"])
    parser.add_argument("--num-steps", type=int)
    parser.add_argument("--num-seeds", type=int, default=1)
    arguments = parser.parse_args()
    if arguments.part == "wrapper":
        play_beside_the_wrapper(num_envs=4, max_steps=20)
        return
    if arguments.part == "limits":
        print("task,ends,seed,steps,greedy,value of the state reached,value given")
        for seed in range(arguments.num_seeds):
            steps = arguments.num_steps or 320_000
            train_beside_the_wrapper("CartpoleSwingup", steps, seed)
        return
    print("task,seed,steps,greedy,random,seconds", flush=True)
    for seed in range(arguments.num_seeds):
        if arguments.part == "ppo":
            steps = arguments.num_steps or 102_400
            train_ppo("Go1JoystickFlatTerrain", steps, seed)
        elif arguments.part == "sac":
            train_sac("CartpoleBalance", arguments.num_steps or 50_000, seed)
        else:
            train_sac("CheetahRun", arguments.num_steps or 200_000, seed)


if __name__ == "__main__":
    main()
