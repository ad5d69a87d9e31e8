# %% [markdown]
# # A population that tunes itself
#
# Learning rates and the discount decide whether an agent learns at all, and the best
# values are rarely known. Population based training (PBT) finds them during training:
# eight agents learn side by side, and copies of the two best repeatedly replace the two
# worst, with perturbed hyperparameters. So values can change during training, and the
# result is a schedule, which we plot at the end.
#
# To JAX a processor is one device. `use_all_cores` makes a device of each core, and the
# eight agents are divided among them. It must come before anything else that uses JAX,
# so it follows the imports.

# %%
import jax.random as jr

import eqrl


eqrl.use_all_cores()

# %% [markdown]
# ## What is tuned
#
# In Pendulum, the agent swings a pendulum up and holds it. A return of about -140 is
# very good; random actions get about -1,200.
#
# `where` selects the hyperparameters of the agent, and each has a prior for its initial
# values. These priors are wide on purpose: rates from 3e-5 to 3e-2, whose extremes
# fail. The discount is drawn as one minus its value, so that 0.9 and 0.999 are equally
# natural and no value exceeds 1.

# %%
env = eqrl.envs.make("gymnax/Pendulum-v1")
agent = eqrl.SAC(
    make_actor=eqrl.nn.Gaussian((64, 64)), make_critic=eqrl.nn.Critic((64, 64))
)
rate = eqrl.LogUniform(3e-5, 3e-2)
pbt = eqrl.PBT(
    where=lambda a: (a.actor_lr, a.critic_lr, a.discount),
    priors=(rate, rate, eqrl.OneMinus(eqrl.LogUniform(1e-3, 1e-1))),
    selection=eqrl.Truncation(num_replaced=2, num_elite=2),
)

# %% [markdown]
# ## Training
#
# A generation is 2,000 steps of each member, then 16 greedy episodes that give its
# score. After each generation but the last, two members are replaced. A child also
# copies the replay of its parent, so that it continues where the parent was.

# %%
population = eqrl.train_population(
    agent,
    env,
    eqrl.Trainer(batch_size=64),
    pbt,
    size=8,
    num_generations=10,
    steps_per_generation=2_000,
    num_episodes=16,
    key=jr.key(0),
)
print(population.returns.mean(axis=2).round())

# %% [markdown]
# ## The schedules
#
# Each panel is a hyperparameter, each dot a member in a generation. Its color is the
# mean return. A line joins it to its parent, a darker one if it was copied. The thick
# red line leads from the best member of the last generation, in the circle, back
# through its ancestors: these are the values with which the winner learned. Most steps
# of a line are small, but a quarter of the values of a child are drawn anew from their
# prior and may lie anywhere.

# %%
eqrl.draw_schedules(
    "schedules.png",
    population,
    logarithmic=["actor_lr", "critic_lr", "discount"],
    one_minus=["discount"],
)

# %% [markdown]
# ![Rates and discount of each member](../images/tutorials/pbt_schedules_schedules.png)
#
# In the beginning every dot is dark: 2,000 steps, 1,000 of them random, are not enough
# for any member. The first bright dot is in generation 1, and from then on its
# descendants spread. Rates of the critic of 1e-4 and below, and the highest rate of the
# actor, stay dark and are gone after generation 4. The red line holds the actor at
# about 1e-3 and the critic near 1e-2 for six generations and then lowers both, like a
# schedule made by hand; the discount comes closer to 1.
#
# But look at the colors, too. From generation 5 on all eight are about equally good, so
# chance decides which one is the best, and with it the last pieces of the line.
#
# ## The family tree
#
# This is the same history without the values: a row for each member, generations from
# left to right. A level line is a member that was kept. A curve that ends in a row
# shows a copy: it begins at the parent and replaces the member in that row.

# %%
eqrl.draw_family_tree("family_tree.png", population)

# %% [markdown]
# ![Who was copied from whom](../images/tutorials/pbt_schedules_family_tree.png)
#
# All members of generation 5 descend from member 4 of generation 0: the other seven
# initial members have no descendants there. The dark rows end one after another, 6 and
# 7 last.
#
# ## The winner
#
# `best` returns the agent, with its final hyperparameters, and its state. The score of
# the best of eight is too high, as any maximum of noisy numbers is, so we evaluate the
# agent once more.

# %%
winner, state = eqrl.best(population)
evaluation = eqrl.evaluate(winner, state, env, num_episodes=64, key=jr.key(1))
print(winner.actor_lr, winner.critic_lr, winner.discount, evaluation.returns.mean())

# %% [markdown]
# This prints rates of 3.9e-4 and 1.9e-3, a discount of 0.997, and a mean return of
# -141.
#
# ## What to try next
#
# - Train the same initial members without replacement, with `None` in place of `pbt`
#   and `pbt.init(agent, 8, key=jr.fold_in(jr.key(0), 0))` in place of the agent, and
#   compare the last generations.
# - Select with `eqrl.Tournament()`, rank by a custom `score`, save and resume, or use
#   several devices: [Populations](../populations.md).
# - Do the same at the [command line](../command-line.md) with `eqrl pbt`.
