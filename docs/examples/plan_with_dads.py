"""Planning over skills of DADS: it predicts where each leads, so nothing is learned.

Before each choice every skill is imagined for some steps, by the dynamics that DADS has
learned with it, and the one that is expected to end nearest to the goal is run.
"""

from typing import Any

import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

import eqrl


GOALS = ((3.0, 2.0), (-1.0, 2.5), (0.5, -3.0))


def plan(
    dads: eqrl.DADS, state: Any, position: Array, goal: Array, *, num_steps: int
) -> Array:
    """The one-hot skill that is expected to end nearest to the goal."""
    skills = jnp.eye(dads.skills.size)

    def imagine(places: Array, _: None) -> tuple[Array, None]:
        return places + dads.predicted_change(state, places, skills), None

    begin = jnp.broadcast_to(position, (len(skills), len(position)))
    ends, _ = lax.scan(imagine, begin, length=num_steps)
    return skills[jnp.argmin(jnp.linalg.norm(ends - goal[None], axis=1))]


@eqx.filter_jit
def follow(
    choice: Any, dads: eqrl.DADS, state: Any, goal: Array, *, key: Array
) -> Array:
    """How far from the goal an episode ends whose skills are planned."""
    world, _ = choice.reset(key=key)

    def choose(world: Any, key: Array) -> tuple[Any, Any]:
        position = choice.state_descriptor(world)
        skill = plan(dads, state, position, goal, num_steps=choice.num_steps)
        return choice.step(world, skill, key=key)

    world, _ = lax.scan(choose, world, jr.split(key, choice.spec.max_steps))
    return jnp.linalg.norm(choice.state_descriptor(world) - goal)


def main() -> None:
    env = eqrl.envs.Point()
    skills = eqrl.OneHotSkills(8)
    sac = eqrl.SAC(
        actor_lr=1e-3,
        critic_lr=1e-3,
        temperature_lr=1e-3,
        initial_temperature=0.1,
        make_actor=eqrl.nn.Gaussian((64, 64)),
        make_critic=eqrl.nn.Critic((64, 64)),
    )
    dads = eqrl.DADS(
        skills,
        lr=1e-3,
        dynamics_input="descriptor",
        make_network=eqrl.nn.Features((64, 64)),
    )
    agent = eqrl.Intrinsic(eqrl.SkillConditioned(sac, skills), dads)
    trainer = eqrl.Trainer(batch_size=128)
    trained = eqrl.train(agent, env, trainer, num_steps=20_000, key=jr.key(0)).state
    played = eqrl.evaluate_skills(agent, trained, env, num_episodes=1, key=jr.key(1))
    ends = played.descriptors[:, 0, -1]
    choice = eqrl.SkillChoice(env, agent, trained, None, num_steps=5)
    print("goal, distance of the planned end, of the nearest end of one skill")
    for goal in map(jnp.array, GOALS):
        planned = follow(choice, dads, trained.reward, goal, key=jr.key(2))
        nearest = jnp.min(jnp.linalg.norm(ends - goal[None], axis=1))
        print(goal, f"{planned:.2f}", f"{nearest:.2f}")


if __name__ == "__main__":
    main()
