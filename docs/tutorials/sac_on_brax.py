# %% [markdown]
# # SAC balances a pole
#
# A cart on a rail carries a pole that can fall to either side. The agent pushes the
# cart, and each step during which the pole stays up is worth 1. We train SAC in this
# environment of brax, evaluate it during training, plot its returns, and watch the
# policy in a browser.

# %%
import jax.random as jr
import numpy as np

import eqrl


# %% [markdown]
# ## The environment
#
# `make` makes an environment from its name. An episode of `inverted_pendulum` ends when
# the pole has fallen too far, and after 1,000 steps at the latest, so the best possible
# return is 1,000. The first end is a termination, with no value after it; the second is
# only a time limit, and eqrl distinguishes the two.

# %%
env = eqrl.envs.make("brax/inverted_pendulum", backend="generalized")
print(env.spec)

# %% [markdown]
# ## The agent and its trainer
#
# An agent is a value that holds hyperparameters and learns nothing itself; its state
# holds what it learns. Observations have four numbers here, so small networks suffice,
# with higher learning rates than the default of 3e-4.
#
# The trainer defines how steps and updates alternate: one step in each of four
# environments, then four updates with 64 transitions each.

# %%
agent = eqrl.SAC(
    actor_lr=1e-3,
    critic_lr=1e-3,
    temperature_lr=1e-3,
    make_actor=eqrl.nn.Gaussian((64, 64)),
    make_critic=eqrl.nn.Critic((64, 64)),
)
trainer = eqrl.Trainer(num_envs=4, batch_size=64, updates_per_iteration=4)

# %% [markdown]
# ## Training
#
# During training, SAC samples its actions to explore. Greedy actions show how much it
# has learned: `Evaluations` plays 16 greedy episodes every 1,000 steps, which do not
# affect the training. All counts are environment steps, summed over the four
# environments.

# %%
evaluations = eqrl.Evaluations(agent, env, every=1_000, num_episodes=16, key=jr.key(1))
solution = eqrl.train(
    agent, env, trainer, num_steps=25_000, key=jr.key(0), callback=evaluations
)

# %% [markdown]
# ## The learning curve
#
# `solution.metrics` is a dictionary of arrays, with a row for every 1,000 steps. Its
# `episode_return` is that of the training episodes that ended within a row, averaged
# first over those that ended at the same step. We plot it beside the scores of
# evaluations.

# %%
greedy = {
    "step": np.array(evaluations.steps),
    "episode_return": np.array(evaluations.scores),
}
eqrl.draw_learning_curves(
    "returns.png",
    {"while exploring": solution.metrics, "greedy": greedy},
    title="SAC on inverted_pendulum",
)

# %% [markdown]
# ![Returns over the steps](../images/tutorials/sac_on_brax_returns.png)
#
# The greedy policy holds the pole through all 16 episodes from 14,000 steps on; before,
# the mean of its returns is not much over 100. The exploring policy follows later, and
# its line is straight between 15,000 and 19,000 steps: none of its episodes ended
# there, since each of the four environments needs 1,000 steps for a full one.
#
# ## The best policy
#
# The last policy need not be the best. `evaluations.best` is the first policy with the
# highest score. A maximum of many scores is too high, so we evaluate the policy again,
# with another key.

# %%
best = evaluations.best
assert best is not None
evaluation = eqrl.evaluate(agent, best.state, env, num_episodes=64, key=jr.key(2))
print(best.step, evaluation.returns.mean(), evaluation.returns.min())

# %% [markdown]
# The best policy is from step 14,000, the first with 1,000, and the mean and the lowest
# of the 64 new returns are 1,000 as well.
#
# ## Watching
#
# `render` plays one greedy episode. For brax it writes a page with a player whose view
# can be rotated and zoomed; open `policy.html` in a browser. If MuJoCo can draw, a path
# that ends in `.gif` gives an animation instead.

# %%
eqrl.render(agent, best.state, env, "policy.html", key=jr.key(3))

# %% [markdown]
# ## What to try next
#
# - Replace `SAC` with `eqrl.TD3`, or with `eqrl.PPO` and a trainer for it; [Choosing an
#   agent](../choosing-an-agent.md) compares the agents and has presets, including the
#   settings above.
# - Stop early with `target=1_000` in `Evaluations`, or show the progress with a
#   `ProgressBar`: [Callbacks](../callbacks.md).
# - Train several seeds with `train_seeds`: [Getting
#   started](../getting-started.md#learning-curves).
# - Use another environment of brax, such as `brax/reacher`:
#   [Environments](../environments.md).
# - Tune the learning rates during training: [the next tutorial](pbt_schedules.md).
