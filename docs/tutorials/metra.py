# %% [markdown]
# # Directions that lead far
#
# DIAYN's skills have little reason to move on once they can be told apart. METRA's do:
# it learns a space in which no step of the environment is longer than 1, and rewards a
# skill, which is a direction there, for moving along it. So skills go as far as the
# world allows, in all directions, and the space itself knows the way to a goal. We
# learn such skills of a point in the plane, and then steer it to goals without further
# training.

# %%
import dataclasses
from typing import Any

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

import eqrl


# %% [markdown]
# ## A world that is round
#
# `Point` moves by up to 0.1 along each axis, so that diagonal steps are longer, and the
# best skills would all lead to a corner. A wrapper of the environment makes the longest
# step the same in all directions: in 50 steps the point gets 5 away from the origin,
# wherever it goes.


# %%
class Disc(eqrl.envs.AbstractStatelessWrapper[Any]):
    env: eqrl.envs.AbstractEnv[Any]

    @property
    def spec(self) -> eqrl.EnvSpec:
        return self.env.spec

    def reset(self, *, key: Array) -> tuple[Any, Array]:
        return self.env.reset(key=key)

    def step(
        self, state: Any, action: Array, *, key: Array
    ) -> tuple[Any, eqrl.envs.Outcome]:
        shorter = action / jnp.maximum(jnp.linalg.norm(action), 1)
        return self.env.step(state, shorter, key=key)


env = Disc(eqrl.envs.Point())

# %% [markdown]
# ## The agent
#
# `SkillConditioned` gives any agent a skill, here a direction in two dimensions, and
# `Intrinsic` supplies the reward, here `METRA`. The rates are ten times those of the
# paper, which are for hundreds of thousands of updates. METRA must see the position;
# it is in the observation of `Point`.

# %%
directions = eqrl.SphereSkills(2)
sac = eqrl.SAC(
    initial_temperature=0.1,
    actor_lr=1e-3,
    critic_lr=1e-3,
    temperature_lr=1e-3,
    make_actor=eqrl.nn.Gaussian((64, 64)),
    make_critic=eqrl.nn.Critic((64, 64)),
)
reward = eqrl.METRA(
    directions,
    lr=1e-3,
    multiplier_lr=1e-3,
    make_network=eqrl.nn.Features((64, 64)),
)
agent = eqrl.Intrinsic(eqrl.SkillConditioned(sac, directions), reward)

# %% [markdown]
# ## Training
#
# The agent learns from METRA's reward alone. `step_length` is the mean squared
# length of a step in the learned space: near 0 METRA sees nothing that moves, and far
# above 1 its constraint does not hold.

# %%
trainer = eqrl.Trainer(batch_size=128)
solution = eqrl.train(agent, env, trainer, num_steps=20_000, key=jr.key(0))
print(solution.metrics["step_length"][-1], solution.metrics["dual_penalty"][-1])

# %% [markdown]
# ## How far do they go?
#
# We play 16 directions, spread evenly over the circle, one greedy episode each, and see
# how far from the origin they end.

# %%
angles = 2 * jnp.pi * jnp.arange(16) / 16
shown = jnp.stack([jnp.cos(angles), jnp.sin(angles)], axis=1)
skills = eqrl.evaluate_skills(
    agent, solution.state, env, num_episodes=1, key=jr.key(1), skills=shown
)
distances = jnp.linalg.norm(skills.descriptors[:, 0, -1], axis=1)
print(distances.min(), distances.mean(), distances.max())
eqrl.draw_skills("skills.png", skills, names=("x", "y"))

# %% [markdown]
# ![Paths of sixteen skills](../images/tutorials/metra_skills.png)
#
# The squared length of a step was 0.89 on one processor and 0.86 on another, which
# [rounds differently](../reproducibility.md): just below the most that is allowed. The
# ends of the skills were between 4.85 and 5.0 away on both, 4.99 and 4.97 on average:
# the edge of what 50 steps can reach, in all directions. The directions of the plane
# are not those of the learned space, whose axes are arbitrary: all of it may be rotated
# or reflected.
#
# ## The learned space
#
# `represent` maps states to points in it. We play the same skills once more and keep
# whole observations, which METRA sees.

# %%
seen = eqrl.evaluate_skills(
    agent,
    solution.state,
    env,
    num_episodes=1,
    key=jr.key(1),
    skills=shown,
    descriptor="observation",
)
phi = dataclasses.replace(
    seen,
    descriptors=reward.represent(solution.state.reward, seen.descriptors),
    first_descriptors=None,
)
eqrl.draw_skills("phi.png", phi, names=("first of phi", "second of phi"))

# %% [markdown]
# ![The same skills in the learned space](../images/tutorials/metra_phi.png)
#
# Here each skill leads along its own direction and ends some 50 away, about 1 for each
# of its 50 steps. A name that ends in `.gif` gives an animation.
#
# ## Goals without learning
#
# The learned space also says which skill leads from one state to another: the direction
# between them. `seek_goal` returns an agent that recomputes this direction in every
# state. We give it an observation at the goal: the position, and no last action.

# %%
goals = [(3.0, 2.0), (-1.0, 2.5), (0.5, -3.0)]
for goal in goals:
    observation = jnp.array([*goal, 0.0, 0.0])
    seeking, state = eqrl.seek_goal(agent, solution.state, observation)
    rows, _ = eqrl.rollout(seeking, state, env, num_episodes=1, key=jr.key(2))
    reached = rows.next_observation[0, :, :2]
    left = jnp.linalg.norm(reached - jnp.array([goal]), axis=1)
    print(goal, left.min(), left[-1])

# %% [markdown]
# On the first processor each goal was passed at 0.03 or less, and the episodes ended
# within 0.09 of it, less than a step of 0.1. On the second processor two goals were
# passed at 0.04 or less, and the third was missed by 0.46. The agent has seen no goal
# before.
#
# ## What to try next
#
# - One-hot skills, `eqrl.OneHotSkills(16)`, in place of directions, or `eqrl.LSD`,
#   which needs no multiplier: [Choosing a method for skills](../choosing-skills.md).
# - Fine-tune one skill for a reward, as in [Eight skills of a point](diayn_skills.md).
# - Do the same on the command line: `eqrl train metra`.
