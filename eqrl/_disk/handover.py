"""Resets agent, replay and reward between skills."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._agents import IntrinsicState
from .._interaction.actors import start
from .._interaction.rollout import rollout
from .._pytree.stack import take_element
from .._pytree.tree import tree_where
from .._rewards import IncrementalState
from .._rewards.incremental.mode import Replay
from .._training.counts import Counts
from .._training.replay import ReplayBuffer, ReplayState
from .._training.trainer import AnyTrainerState, Trainer, TrainerState
from ..envs._base import AnyEnv
from .library import Task


@eqx.filter_jit
def collect(
    task: Task,
    env: AnyEnv,
    states: Any,
    reward_state: IncrementalState,
    *,
    index: Int[Array, ""],
    num_episodes: int,
    key: PRNGKeyArray,
) -> tuple[IncrementalState, Int[Array, ""]]:
    """Rolls out one skill of a stack and adds its features to the past.

    **Returns:**

    The state of the reward, and the number of environment steps.
    """
    transitions, mask = rollout(
        task.agent.agent,
        take_element(states, index),
        env,
        num_episodes=num_episodes,
        key=key,
    )
    return task.reward.with_past(reward_state, transitions, mask), jnp.sum(mask)


@eqx.filter_jit(donate="all-except-first")
def begin_skill(
    kept: tuple[Task, AnyEnv, Trainer, Replay, Float[Array, ""], PRNGKeyArray],
    state: AnyTrainerState,
    counts: Counts,
) -> tuple[AnyTrainerState, Counts]:
    """The training state at the beginning of the next skill.

    The agent starts afresh. The reward keeps the past, the replay what it should.

    **Arguments:**

    - `kept`: task, environment, trainer, what to keep of the replay, the number of
        updates that the skill will have, and a key.
    - `state`, `counts`: at the end of the previous skill. They are donated.
    """
    task, env, trainer, replay, num_updates, key = kept
    agent_key, start_key, replay_key = jr.split(key, 3)
    fresh = task.agent.init(env.spec, key=agent_key)
    agent_state = IntrinsicState(
        agent=fresh.agent,
        reward=task.reward.begin_skill(state.agent.reward, num_updates=num_updates),
    )
    data = truncate_last_row(state.replay, counts)
    data, counts = keep_replay(data, counts, replay, key=replay_key)
    actors = start(
        task.agent, agent_state, env, num_envs=trainer.num_envs, key=start_key
    )
    state = TrainerState(
        agent=agent_state, actors=actors, replay=data, failed=jnp.array(False)
    )
    return state, counts


def truncate_last_row(replay: ReplayState[Any], counts: Counts) -> ReplayState[Any]:
    """Marks the newest row as truncated unless it is terminated.

    The environments are about to be reset, so no window may reach across.
    """
    data = replay.data
    written = counts.rows_kept + counts.rows_written
    row = (written - 1) % data.timestep.shape[1]
    truncated = data.truncated.at[:, row].set(~data.terminated[:, row])
    cut = ReplayState(data=eqx.tree_at(lambda data: data.truncated, data, truncated))
    return tree_where(written > 0, cut, replay)


def keep_replay(
    replay: ReplayState[Any], counts: Counts, kept: Replay, *, key: PRNGKeyArray
) -> tuple[ReplayState[Any], Counts]:
    """Keeps all rows, half of them, the newest or any, or none."""
    rows = jax.tree.leaves(replay.data)[0].shape[1]
    filled = jnp.minimum(counts.rows_kept + counts.rows_written, rows)
    num_rows = {"keep": filled, "half": filled // 2, "clear": jnp.zeros_like(filled)}
    buffer = ReplayBuffer(capacity=rows, batch_size=1)
    if kept == "random_half":
        return buffer.keep_random(replay, counts, num_rows=filled // 2, key=key)
    return buffer.keep_newest(replay, counts, num_rows=num_rows[kept])
