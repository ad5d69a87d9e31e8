"""Hierarchical control: an agent that chooses among skills learned without a reward.

A point has to get around a wall, and is paid only near its goal. METRA learns skills
there first, for no reward. Then the best of 16 skills is looked for, and SAC learns
which skill to run for the next ten steps. SAC without skills does not find the reward.
"""

import dataclasses
from typing import Any

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

import eqrl


class NearGoal(eqrl.envs.AbstractStatelessWrapper[Any]):
    """Pays 1 for each step that ends within 1 of the goal."""

    env: eqrl.envs.AbstractEnv[Any]

    @property
    def spec(self) -> eqrl.EnvSpec:
        return self.env.spec

    def reset(self, *, key: Array) -> tuple[Any, Array]:
        return self.env.reset(key=key)

    def step(
        self, state: Any, action: Array, *, key: Array
    ) -> tuple[Any, eqrl.envs.Outcome]:
        state, outcome = self.env.step(state, action, key=key)
        distance = jnp.linalg.norm(outcome.observation[:2] - jnp.array([2.5, 0.0]))
        return state, dataclasses.replace(outcome, reward=1.0 * (distance < 1))


def make_sac(discount: float) -> eqrl.SAC:
    return eqrl.SAC(
        actor_lr=1e-3,
        critic_lr=1e-3,
        temperature_lr=1e-3,
        initial_temperature=0.1,
        discount=discount,
        make_actor=eqrl.nn.Gaussian((64, 64)),
        make_critic=eqrl.nn.Critic((64, 64)),
    )


def main() -> None:
    world = eqrl.envs.Point(max_steps=100, walls=(((1.0, -0.5), (1.0, 0.5)),))
    task, directions = NearGoal(world), eqrl.SphereSkills(2)
    network = eqrl.nn.Features((64, 64))
    metra = eqrl.METRA(directions, lr=1e-3, multiplier_lr=1e-3, make_network=network)
    agent = eqrl.Intrinsic(eqrl.SkillConditioned(make_sac(0.99), directions), metra)
    trainer = eqrl.Trainer(batch_size=128)
    skills = eqrl.train(agent, world, trainer, num_steps=20_000, key=jr.key(0)).state

    _, returns = eqrl.select_skill(
        agent, skills, task, num_skills=16, num_episodes=1, key=jr.key(1)
    )
    print("the best of 16 skills", returns.max())

    choice = eqrl.SkillChoice(task, agent, skills, None, num_steps=10)
    # Ten updates after each choice of ten steps are one a step, as without skills.
    choosing = eqrl.Trainer(batch_size=128, warmup_steps=100, updates_per_iteration=10)
    for name, env, learner, schedule, num_steps in (
        ("SAC over skills", choice, make_sac(0.99**10), choosing, 2_000),
        ("SAC", task, make_sac(0.99), trainer, 20_000),
    ):
        learned = eqrl.train(learner, env, schedule, num_steps=num_steps, key=jr.key(2))
        found = eqrl.evaluate(
            learner, learned.state, env, num_episodes=1, key=jr.key(3)
        )
        print(name, found.returns.mean())


if __name__ == "__main__":
    main()
