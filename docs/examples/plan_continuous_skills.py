"""Planning over continuous skills of DADS, by model predictive path integral control.

A plan is a sequence of skills. Before each choice, sequences around it are imagined by
the dynamics that DADS has learned, and the plan moves to those of high reward.
"""

from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

import eqrl


GOALS = ((3.0, 2.0), (-1.0, 2.5), (0.5, -3.0))
LENGTH = 4  # skills in a plan
NUM_CANDIDATES, NUM_ROUNDS = 50, 10


def refined(
    dads: eqrl.DADS,
    state: Any,
    position: Array,
    goal: Array,
    plan: Array,
    *,
    num_steps: int,
    key: Array,
) -> Array:
    """Improves a plan of skills, each of which is run for `num_steps` steps."""

    def imagine(place: Array, skill: Array) -> tuple[Array, Array]:
        # The dynamics see nothing of a place.
        change = dads.predicted_change(state, jnp.zeros((1, 0)), skill[None])[0]
        return place + change, -jnp.linalg.norm(place + change - goal)

    def score(skills: Array) -> Array:
        return jnp.sum(lax.scan(imagine, position, jnp.repeat(skills, num_steps, 0))[1])

    def improve(plan: Array, key: Array) -> tuple[Array, None]:
        noise = jnp.sqrt(1.5) * jr.normal(key, (NUM_CANDIDATES, *plan.shape))
        skills = jnp.clip(plan[None] + noise, -1.0, 1.0)
        # Each skill resembles the one before it.
        smooth = lambda before, skill: (after := 0.9 * before + 0.1 * skill, after)
        rest = jax.vmap(lambda row: lax.scan(smooth, row[0], row[1:])[1])(skills)
        skills = jnp.concatenate([skills[:, :1], rest], axis=1)
        weights = jax.nn.softmax(10 * jax.vmap(score)(skills))
        return jnp.einsum("c,cls->ls", weights, skills), None

    return lax.scan(improve, plan, jr.split(key, NUM_ROUNDS))[0]


@eqx.filter_jit
def follow(
    choice: Any, dads: eqrl.DADS, state: Any, goal: Array, *, key: Array
) -> Array:
    """How far from the goal an episode ends whose skills are planned."""
    reset_key, plan_key, choose_key = jr.split(key, 3)
    world, _ = choice.reset(key=reset_key)
    keys = jr.split(choose_key, choice.spec.max_steps)

    def choose(carry: tuple[Any, Array], key: Array) -> tuple[tuple[Any, Array], None]:
        world, plan = carry
        here = choice.state_descriptor(world)
        plan_key, step_key, new_key = jr.split(key, 3)
        plan = refined(
            dads, state, here, goal, plan, num_steps=choice.num_steps, key=plan_key
        )
        world, _ = choice.step(world, plan[0], key=step_key)
        # The rest is still a good plan; only its last skill is new.
        new = jr.normal(new_key, plan[:1].shape)
        return (world, jnp.concatenate([plan[1:], new])), None

    plan = jr.normal(plan_key, (LENGTH, dads.skills.size))
    (world, _), _ = lax.scan(choose, (world, plan), keys)
    return jnp.linalg.norm(choice.state_descriptor(world) - goal)


def main() -> None:
    env = eqrl.envs.Point()
    skills = eqrl.UniformSkills(2)
    sac = eqrl.SAC(
        actor_lr=1e-3,
        critic_lr=1e-3,
        temperature_lr=1e-3,
        initial_temperature=0.1,
        make_actor=eqrl.nn.Gaussian((64, 64)),
        make_critic=eqrl.nn.Critic((64, 64)),
    )
    network = eqrl.nn.Features((64, 64))
    dads = eqrl.DADS(skills, lr=1e-3, dynamics_input="nothing", make_network=network)
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
