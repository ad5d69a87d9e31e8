"""Environments whose observations are standardized by constants.

The constants are the means and deviations over 10,000 episodes of 50 random steps, as
in METRA's release. `python -m benchmarks.papers.standardized` measures them anew.
"""

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqrl


FILE = Path(__file__).with_suffix(".json")
NUM_EPISODES, NUM_STEPS, NUM_ENVS = 10_000, 50, 100
TASKS: dict[str, dict[str, Any]] = {
    "envpool/Ant-v4": {
        "state_descriptor": "xy",
        "options": {
            "exclude_current_positions_from_observation": False,
            "terminate_when_unhealthy": False,
        },
    },
    "envpool/HalfCheetah-v4": {
        "state_descriptor": "x",
        "options": {"exclude_current_positions_from_observation": False},
    },
}


class Standardized(eqrl.envs.AbstractStatelessWrapper[Any]):
    """An environment with the position in its observations, which are standardized."""

    env: Any
    mean: jax.Array
    deviation: jax.Array

    @property
    def spec(self) -> eqrl.EnvSpec:
        return self.env.spec

    def reset(self, *, key: jax.Array) -> tuple[Any, jax.Array]:
        state, observation = self.env.reset(key=key)
        return state, (observation - self.mean) / self.deviation

    def step(
        self, state: Any, action: jax.Array, *, key: jax.Array
    ) -> tuple[Any, eqrl.envs.Outcome]:
        state, outcome = self.env.step(state, action, key=key)
        observation = (outcome.observation - self.mean) / self.deviation
        return state, dataclasses.replace(outcome, observation=observation)

    def moved(self, observation: jax.Array, position: jax.Array) -> jax.Array:
        """An observation at another position, which is its first elements."""
        size = position.shape[0]
        seen = (position - self.mean[:size]) / self.deviation[:size]
        return observation.at[:size].set(seen)


def make_standardized(name: str, **options: Any) -> Standardized:
    """A task of `TASKS`, with the constants that were measured."""
    env = eqrl.envs.make(name, **TASKS[name], **options)
    constants = json.loads(FILE.read_text())[name]
    mean, deviation = (jnp.asarray(constants[x]) for x in ("mean", "deviation"))
    return Standardized(env, mean, deviation)


def measure(name: str, num_episodes: int) -> dict[str, list[float]]:
    """Means and deviations of the states that random actions reach."""
    env = eqrl.envs.make(name, max_steps=NUM_STEPS, **TASKS[name])
    agent = eqrl.SAC()
    state = agent.init(env.spec, key=jr.key(0))
    seen = []
    for batch in range(num_episodes // NUM_ENVS):
        rows, _ = eqrl.rollout(
            agent,
            state,
            env,
            num_episodes=NUM_ENVS,
            key=jr.fold_in(jr.key(1), batch),
            mode="random",
        )
        seen.append(
            np.asarray(rows.next_observation).reshape(-1, env.spec.observation_size)
        )
    rows = np.concatenate(seen).astype(np.float64)
    shown = {"mean": rows.mean(axis=0), "deviation": rows.std(axis=0)}
    return {x: [float(f"{each:.6g}") for each in shown[x]] for x in shown}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-episodes", type=int, default=NUM_EPISODES)
    num_episodes = parser.parse_args().num_episodes
    found = {name: measure(name, num_episodes) for name in TASKS}
    lines = ",\n".join(
        f'  "{name}": {json.dumps(constants)}' for name, constants in found.items()
    )
    FILE.write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main()
