"""Skills of METRA put to use: an agent that chooses among them, and one without them.

A point on the disc has 100 steps to go around a wall to a goal. Skills on the circle
are learned there first, without a reward, in 20,000 steps. Then SAC learns which skill
to run for 10 steps, and beside it SAC learns what to do at each step, both from as many
steps of the environment. The dense reward is 1 - distance / distance at the start, the
sparse one 1 within 1 of the goal and 0 elsewhere. The return is that of a greedy
episode, whose start is always the same. Run it as `nox -s benchmarks -- skill_choices`.
"""

import argparse
import dataclasses
import time
from typing import Any

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl
from eqrl.envs import AbstractEnv, AbstractStatelessWrapper, Outcome, Point

from .point_skills import HIDDEN_SIZES, OnDisc, make_agent


WALLS = (((1.0, -0.5), (1.0, 0.5)),)
GOAL = (2.5, 0.0)
MAX_STEPS, NUM_HELD, RADIUS = 100, 10, 1.0


class Reaching(AbstractStatelessWrapper[Any]):
    """A point that is paid for being near the goal."""

    env: AbstractEnv[Any]
    is_sparse: bool

    @property
    def spec(self) -> eqrl.EnvSpec:
        return self.env.spec

    def reset(self, *, key: PRNGKeyArray) -> tuple[Any, Float[Array, " obs"]]:
        return self.env.reset(key=key)

    def step(
        self, state: Any, action: Float[Array, "2"], *, key: PRNGKeyArray
    ) -> tuple[Any, Outcome]:
        state, outcome = self.env.step(state, action, key=key)
        goal = jnp.array(GOAL)
        position = self.env.state_descriptor(state)
        assert position is not None
        distance = jnp.linalg.norm(position - goal)
        reward = 1 - distance / jnp.linalg.norm(goal)
        if self.is_sparse:
            reward = (distance < RADIUS).astype(reward.dtype)
        return state, dataclasses.replace(outcome, reward=reward)


def make_sac(discount: float) -> eqrl.SAC:
    return eqrl.SAC(
        actor_lr=1e-3,
        critic_lr=1e-3,
        temperature_lr=1e-3,
        discount=discount,
        initial_temperature=0.1,
        make_actor=eqrl.nn.Gaussian(HIDDEN_SIZES),
        make_critic=eqrl.nn.Critic(HIDDEN_SIZES),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num-steps", type=int, default=20_000)
    parser.add_argument("--num-seeds", type=int, default=5)
    arguments = parser.parse_args()
    num_steps = arguments.num_steps
    world = OnDisc(Point(max_steps=MAX_STEPS, walls=WALLS))
    skilled = make_agent("METRA on the circle")
    trainer = eqrl.Trainer(batch_size=128, capacity=num_steps)
    # As many steps of the environment, and as many updates.
    choosing = eqrl.Trainer(
        batch_size=128,
        capacity=num_steps // NUM_HELD,
        warmup_steps=1_000 // NUM_HELD,
        updates_per_iteration=NUM_HELD,
    )
    print("seed,reward,SAC over skills,SAC,seconds")
    for seed in range(arguments.num_seeds):
        key = jr.key(seed)
        learned = eqrl.train(skilled, world, trainer, num_steps=20_000, key=key)
        for is_sparse in (False, True):
            start = time.perf_counter()
            task = Reaching(world, is_sparse)
            choice = eqrl.SkillChoice(
                task, skilled, learned.state, None, num_steps=NUM_HELD
            )
            returns = []
            for agent, env, schedule, number in (
                (make_sac(0.99**NUM_HELD), choice, choosing, num_steps // NUM_HELD),
                (make_sac(0.99), task, trainer, num_steps),
            ):
                solution = eqrl.train(agent, env, schedule, num_steps=number, key=key)
                evaluation = eqrl.evaluate(
                    agent, solution.state, env, num_episodes=1, key=key
                )
                returns.append(float(evaluation.returns[0]))
            kind = "sparse" if is_sparse else "dense"
            print(
                f"{seed},{kind},{returns[0]:.1f},{returns[1]:.1f},"
                f"{time.perf_counter() - start:.0f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
