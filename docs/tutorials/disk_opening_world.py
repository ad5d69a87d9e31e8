# %% [markdown]
# # A world that opens
#
# DIAYN learns all its skills together, in one world. DISk learns one skill after
# another. Each skill is a separate agent, rewarded for going where no earlier skill
# goes, and never changes once it is learned. So DISk can continue in a world that has
# changed. Here a room in the middle of the plane opens to one more sector before each
# skill, and we check whether the skills use it.

# %%
import jax.random as jr

import eqrl
from eqrl.envs import Point, sector_of, sectors


# %% [markdown]
# ## The world
#
# `sectors(4)` are the walls of a room and of four sectors around it, the quadrants of
# the plane. The first walls are the sides of the room, and `num_open` is the number of
# open ones. So the world of skill 0 is a closed room, and the world of skill 4 has all
# four sectors. These worlds differ only in an array, so nothing is compiled twice.

# %%
walls = sectors(4, radius=0.14)


def world(skill: int) -> Point:
    return Point(max_steps=20, walls=walls, num_open=skill)


# %% [markdown]
# ## The agent
#
# `Incremental` is the reward: a weighted difference of *diversity*, the distance of a
# state from those of earlier skills, and *consistency*, its distance from the latest
# states of the skill itself. The position matters here, so the feature is the state
# reached, and the weight `alpha` of consistency is small.

# %%
sac = eqrl.SAC(
    initial_temperature=0.3,
    actor_lr=1e-3,
    critic_lr=1e-3,
    temperature_lr=1e-3,
    make_actor=eqrl.nn.Gaussian((64, 64)),
    make_critic=eqrl.nn.Critic((64, 64)),
)
agent = eqrl.Intrinsic(sac, eqrl.Incremental(feature="next_state", alpha=0.1))
trainer = eqrl.Trainer(batch_size=128, warmup_steps=200)

# %% [markdown]
# ## The first three skills
#
# Each skill learns for 2,000 steps, and 200 of them are random. Before a skill begins,
# all earlier skills play five episodes in the current world. The replay is cleared,
# since it contains walls that no longer exist. `max_skills` leaves room for two more
# skills.

# %%
skills = eqrl.learn_skills(
    agent,
    world,
    trainer,
    num_skills=3,
    max_skills=5,
    num_steps=2_000,
    num_collected_episodes=5,
    replay="clear",
    key=jr.key(0),
)
played = eqrl.play_skills(agent, skills, world(2), num_episodes=1, key=jr.key(1))
eqrl.draw_skills("three.png", played, names=("x", "y"), env=world(2))

# %% [markdown]
# ![Three skills](../images/tutorials/disk_opening_world_three.png)
#
# The black lines are walls that are still closed. Skill 1 went into the first sector,
# at the top right, when that was the only one, and skill 2 into the next. Skill 0
# learned in a closed room; now that the walls above are gone it leaves the room, but
# not far.
#
# ## Two more
#
# The remaining sectors open, and training continues from the existing skills. With the
# same key, the five skills are, bit for bit, those of one call.

# %%
skills = eqrl.learn_skills(
    agent,
    world,
    trainer,
    num_skills=5,
    num_steps=2_000,
    num_collected_episodes=5,
    replay="clear",
    initial=skills,
    key=jr.key(0),
)
played = eqrl.play_skills(agent, skills, world(4), num_episodes=1, key=jr.key(1))
ends = eqrl.terminal_descriptors(played.descriptors, played.mask)
print(sector_of(ends[:, 0], radius=0.14))

# %% [markdown]
# This prints the sector in which each skill ends, counted counter-clockwise from 0, now
# that all are open. Skills 1 to 4 end in sectors 0 to 3, each in the one that had just
# opened. Skill 0, from the closed room, ends in sector 1.

# %%
eqrl.draw_skills("five.png", played, names=("x", "y"), env=world(4))

# %% [markdown]
# ![Five skills](../images/tutorials/disk_opening_world_five.png)
#
# Skills 1 to 4 share the four sectors and go straight outwards. The first three skills
# are unchanged.
#
# ## What to try next
#
# - Change the world in the middle of a skill, or break a leg of an ant, and save the
#   library of skills: [Skills one after another](../one-after-another.md).
# - Use `alpha=1.0`, or the feature `"delta"`, and see which skills stay in the room.
# - Compare with [skills that are learned together](diayn_skills.md).
