# %% [markdown]
# # TAAC or SAC
#
# A car stands in a valley, and its engine is too weak for the hill. It has to drive
# back and forth to gather speed. Only the top is rewarded, with 100, and each step
# costs a little for the force used. An agent that pushes left and right at random
# hardly moves, and learns that it is best to do nothing.
#
# TAAC decides at each step whether to repeat the last action or to take a new one. Its
# random pushes therefore last, and some of them reach the top. We compare it with SAC.

# %%
import jax.random as jr

import eqrl


eqrl.use_all_cores()

# %% [markdown]
# ## The two agents
#
# Networks, learning rates and batches are the same. TAAC learns from windows of four
# steps, so 16 windows have as many transitions as the batches of 64 for SAC. Its two
# target entropies are for the action and for the choice between acting and repeating.

# %%
env = eqrl.envs.make("gymnax/MountainCarContinuous-v0")
actor, critic = eqrl.nn.Gaussian((64, 64)), eqrl.nn.Critic((64, 64))
sac = eqrl.SAC(
    actor_lr=1e-3,
    critic_lr=1e-3,
    temperature_lr=3e-4,
    make_actor=actor,
    make_critic=critic,
)
taac = eqrl.TAAC(
    actor_lr=1e-3,
    critic_lr=1e-3,
    temperature_lr=3e-4,
    make_actor=actor,
    make_critic=critic,
    window_length=4,
    target_entropy=-1.609,
    switch_target_entropy=0.1985,
)

# %% [markdown]
# ## Before any learning
#
# How often does chance reach the top? We play 1,000 episodes with random actions. The
# choice of TAAC is random, too: at each step it repeats with probability 1/2. Episodes
# that reach the top have a positive return.

# %%
sac_state = sac.init(env.spec, key=jr.key(0))
random_sac = eqrl.evaluate(
    sac, sac_state, env, num_episodes=1_000, key=jr.key(1), mode="random"
)
taac_state = taac.init(env.spec, key=jr.key(0))
random_taac = eqrl.evaluate(
    taac, taac_state, env, num_episodes=1_000, key=jr.key(1), mode="random"
)
print((random_sac.returns > 0).mean(), (random_taac.returns > 0).mean())

# %% [markdown]
# This prints 0.002 for fresh actions and 0.121 for repeated ones. Without a success,
# the agent learns only from the costs.
#
# ## Training
#
# We train four seeds of each, with 20,000 random steps at the beginning.

# %%
sac_seeds = eqrl.train_seeds(
    sac,
    env,
    eqrl.Trainer(
        num_envs=4, batch_size=64, warmup_steps=20_000, updates_per_iteration=2
    ),
    num_seeds=4,
    num_steps=60_000,
    log_every=4_000,
    key=jr.key(2),
)
taac_seeds = eqrl.train_seeds(
    taac,
    env,
    eqrl.Trainer(
        num_envs=4, batch_size=16, warmup_steps=20_000, updates_per_iteration=2
    ),
    num_seeds=4,
    num_steps=60_000,
    log_every=4_000,
    key=jr.key(2),
)

# %% [markdown]
# ## The learning curves

# %%
runs = {"SAC": sac_seeds.metrics, "TAAC": taac_seeds.metrics}
eqrl.draw_learning_curves("returns.png", runs, title="MountainCarContinuous-v0")

# %% [markdown]
# ![Returns of SAC and TAAC](../images/tutorials/taac_or_sac_returns.png)
#
# SAC begins at -33, the cost of random pushes, and rises towards 0: it learns to save
# force, and so to do nothing. Its four seeds differ so little that the shaded area is
# invisible. Some of TAAC's random steps are successful, which raises its mean. From
# 28,000 steps on it climbs, some seeds earlier than others, hence the wide shaded area;
# at the end all four are near the best.
#
# ## Greedy episodes

# %%
for seed in range(4):
    of_sac = eqrl.evaluate(
        sac, eqrl.member(sac_seeds.state, seed), env, num_episodes=16, key=jr.key(3)
    )
    of_taac = eqrl.evaluate(
        taac, eqrl.member(taac_seeds.state, seed), env, num_episodes=16, key=jr.key(3)
    )
    print(seed, of_sac.returns.mean(), of_taac.returns.mean())

# %% [markdown]
# The four greedy policies of SAC return between -0.13 and 0, and those of TAAC between
# 92.3 and 94.3.
#
# ## When it repeats
#
# `draw_repeats` shows the choices of a TAAC policy: above, a row for each of 16
# episodes, dark where the action was repeated; below, the share of episodes that repeat
# at each step. All of them end before step 100, so we play no further.

# %%
transitions, mask = eqrl.rollout(
    taac,
    eqrl.member(taac_seeds.state, 0),
    env,
    num_episodes=16,
    max_steps=100,
    key=jr.key(4),
)
eqrl.draw_repeats("repeats.png", transitions, mask)

# %% [markdown]
# ![When the policy repeats](../images/tutorials/taac_or_sac_repeats.png)
#
# Each row ends when the car has reached the top, after 67 to 86 steps. In all episodes
# the policy holds its first action for about 18 steps, switches at every step around
# step 38, where the share falls to 0, and then holds again. Repetition is not only a
# way to explore: the learned policy uses it, too.
#
# ## What to try next
#
# - Continue a slope or a curve instead of a constant action, with
#   `trajectory=eqrl.LinearTrajectory()`: [Act or repeat](../act-or-repeat.md).
# - Compare TAAC in other environments: [Results](../results/index.md).
# - Plot interquartile means of more seeds: [Getting
#   started](../getting-started.md#learning-curves).
