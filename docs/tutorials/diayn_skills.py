# %% [markdown]
# # Eight skills of a point
#
# Can an agent learn something useful without a reward? With DIAYN it learns eight
# distinct skills: a discriminator looks at the states reached and predicts the active
# skill, and the agent is rewarded if that is easy. We learn skills of a point in the
# plane, look at their paths, and then use one of them to reach a goal.

# %%
import jax
import jax.numpy as jnp
import jax.random as jr

import eqrl


# %% [markdown]
# ## The point and the agent
#
# `Point` starts at the origin. In each of 50 steps an action moves it by up to 0.1
# along each axis, so it can reach up to 5 along each. Its reward is always 0.
#
# `diayn` wraps skills and a discriminator around any agent, here SAC. A skill is a
# number from 0 to 7, drawn at the start of an episode, which policy and critics see
# together with the observation. The temperature of SAC begins at 0.1 rather than 1;
# otherwise its bonus for random actions outweighs the reward in such a short training.

# %%
env = eqrl.envs.make("eqrl/Point")
sac = eqrl.SAC(
    initial_temperature=0.1,
    actor_lr=1e-3,
    critic_lr=1e-3,
    temperature_lr=1e-3,
    make_actor=eqrl.nn.Gaussian((64, 64)),
    make_critic=eqrl.nn.Critic((64, 64)),
)
agent = eqrl.diayn(
    sac,
    num_skills=8,
    lr=1e-3,
    make_network=eqrl.nn.CategoricalDiscriminator((64, 64)),
)

# %% [markdown]
# ## Training
#
# The discriminator sees only the position, the point's own description of its state. So
# skills must differ in where they go, not in how.

# %%
trainer = eqrl.Trainer(batch_size=128)
solution = eqrl.train(agent, env, trainer, num_steps=40_000, key=jr.key(0))

# %% [markdown]
# ## How good are they?
#
# `evaluate_skills` plays a greedy episode with each skill. **Accuracy** is the share of
# steps at which the discriminator predicts the active skill; chance is 1/8. The
# **diversity return** is the sum of the rewards of an episode. A step at which the
# discriminator is certain is worth log 8, so 50 of them are worth at most 104.

# %%
skills = eqrl.evaluate_skills(agent, solution.state, env, num_episodes=1, key=jr.key(1))
print(skills.accuracy, skills.diversity_returns.mean())

# %% [markdown]
# The accuracy is 0.99, and the mean diversity return 102.6, close to its maximum.
#
# Both measure how well the skills can be told apart, but not how far they go. A picture
# shows that.

# %%
eqrl.draw_skills("skills.png", skills, names=("x", "y"))

# %% [markdown]
# ![Paths of eight skills](../images/tutorials/diayn_skills_skills.png)
#
# Each skill takes its own direction and then continues almost straight, since distant
# skills are the easiest to tell apart. All but skill 0 end close to the border of what
# 50 steps can reach. Near the origin, where the lines part, states of several skills
# lie close together. Nothing rewards even angles, and they are not even.
#
# ## Choosing a skill for a goal
#
# Now there is a goal, and with it a reward: minus the remaining distance. Of the eight
# skills we take the one whose episode ends nearest to the goal. `fix_skill` turns it
# into an ordinary agent.

# %%
goal = jnp.array([3.0, 3.0])
ends = skills.descriptors[:, 0, -1]
nearest = int(jnp.argmin(jnp.linalg.norm(ends - goal, axis=1)))
fixed, state = eqrl.fix_skill(agent, solution.state, jax.nn.one_hot(nearest, 8))

world = eqrl.envs.Point(goal=(3.0, 3.0))
before = eqrl.evaluate(fixed, state, world, num_episodes=1, key=jr.key(2))
print(nearest, ends[nearest], before.returns)

# %% [markdown]
# ## Fine-tuning it
#
# This agent can continue to learn, now for the reward of the world.

# %%
tuned = eqrl.train(
    fixed, world, trainer, num_steps=20_000, key=jr.key(3), agent_state=state
)
after = eqrl.evaluate(fixed, tuned.state, world, num_episodes=1, key=jr.key(2))
print(after.returns)
eqrl.render(fixed, tuned.state, world, "tuned.png", key=jr.key(4))

# %% [markdown]
# ![The path to the goal](../images/tutorials/diayn_skills_tuned.png)
#
# Skill 4 ended nearest to the goal, at (4.3, 3.7), beyond it. Its return was -103.5,
# and after 20,000 steps it is -67.2: the agent has learned to slow down and to stay
# close to the star. The shortest path to the goal, without a step beyond, would return
# -61.5.
#
# ## What to try next
#
# - Learn directions instead of numbers, with `eqrl.SphereSkills()` for `num_skills` and
#   without `make_network`: [Skills without a reward](../skills.md).
# - Let a second agent choose among the skills with `eqrl.SkillChoice`; see the same
#   page.
# - Learn skills [one after another](disk_opening_world.md), in a world that changes.
