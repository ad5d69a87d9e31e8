# %% [markdown]
# # A population that tunes itself
#
# Learning rates and the discount decide whether an agent learns at all, and the best
# values are rarely known. Population based training (PBT) finds them while it trains:
# eight agents learn side by side, and again and again the two worst are replaced by
# copies of the two best, whose hyperparameters are varied a little. So values can
# change during training, and what comes out is a schedule. At the end we see it.
#
# To JAX a processor is one device. `use_all_cores` makes a device of each core, among
# which the eight are divided. It must come before anything else that JAX does, so it
# stands right behind the imports.

# %%
import jax.random as jr

import eqrl


eqrl.use_all_cores()

# %% [markdown]
# ## What is tuned
#
# Pendulum is to be swung up and held. A return of about -140 is very good, and random
# actions get about -1,200.
#
# `where` picks the hyperparameters of the agent, and each has a prior from which its
# first values are drawn. Ours are wide on purpose: rates from 3e-5 to 3e-2, of which
# the extremes fail. The discount is drawn as one minus its value, so that 0.9 and 0.999
# are equally natural, and that none exceeds 1.

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
# score. Behind each generation but the last, two members are replaced. The replay of a
# parent is copied too, so that its child goes on where the parent stood.

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
# mean return. A line joins it to the member from which it comes, a darker one where
# that was a copy. The thick red line leads from the best member of the last generation,
# in the circle, back through its ancestors: these are the values with which the winner
# has really learned. Most steps of a line are small; but a quarter of the values of a
# child are drawn anew from their prior, and these may lie anywhere.

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
# In the beginning every dot is dark: 2,000 steps, of which 1,000 are random, are not
# enough for any member. The first bright one is in generation 1, and from then on its
# descendants spread. Rates of the critic of 1e-4 and below, and the highest rate of the
# actor, stay dark and are gone after generation 4. The red line holds the actor at
# about 1e-3 and the critic near 1e-2 for six generations and then goes down with both,
# as one would with a schedule made by hand; the discount comes closer to 1.
#
# But look at the colors, too. From generation 5 on all eight are about equally good, so
# that chance decides which one is the best, and with it on the last pieces of the line.
#
# ## The family tree
#
# The same history without the values: a row for each member, generations from left to
# right. A level line is a member that was kept. A curve that ends in a row means that
# the member there was replaced, by a copy of the one where the curve begins.

# %%
eqrl.draw_family_tree("family_tree.png", population)

# %% [markdown]
# ![Who was copied from whom](../images/tutorials/pbt_schedules_family_tree.png)
#
# Whoever is left in generation 5 descends from member 4 of generation 0: the other
# seven first members have no descendants there. The dark rows end one after another, 6
# and 7 last.
#
# ## The winner
#
# `best` gives the agent, with the hyperparameters that it ended with, and its state.
# The score of the best of eight is too high, as any maximum over noisy numbers is; so
# we evaluate it once more.

# %%
winner, state = eqrl.best(population)
evaluation = eqrl.evaluate(winner, state, env, num_episodes=64, key=jr.key(1))
print(winner.actor_lr, winner.critic_lr, winner.discount, evaluation.returns.mean())

# %% [markdown]
# It prints rates of 3.9e-4 and 1.9e-3, a discount of 0.997, and a mean return of -141.
#
# ## What to try next
#
# - Leave members alone that are drawn in the same way, with `None` in place of `pbt`
#   and `pbt.init(agent, 8, key=jr.key(1))` in place of the agent, and compare the last
#   generations.
# - Select by `eqrl.Tournament()`, rank by a `score` of your own, save and resume, or
#   use several devices: [Populations](../populations.md).
# - Do the same at the [command line](../command-line.md) by `eqrl pbt`.
