"""What happens between one skill and the next."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._agents import Intrinsic, IntrinsicState
from .._interaction.actors import start
from .._interaction.evaluate import rollout
from .._pytree.stack import take_element
from .._pytree.tree import tree_where
from .._rewards import IncrementalState
from .._rewards.incremental.mode import Replay
from .._training.replay import Counts, ReplayBuffer, ReplayState
from .._training.trainer import Trainer, TrainerState
from ..envs import AbstractEnv
from .checks import incremental_of


@eqx.filter_jit
def collect(
    agent: Intrinsic[Any, Any, Any, Any],
    env: AbstractEnv[Any],
    states: Any,
    reward_state: IncrementalState,
    *,
    index: Int[Array, ""],
    num_episodes: int,
    key: PRNGKeyArray,
) -> tuple[IncrementalState, Int[Array, ""]]:
    """Adds what one skill of a stack does to the past.

    **Returns:**

    What the reward knows then, and how many environment steps that took.
    """
    transitions, mask = rollout(
        agent.agent,
        take_element(states, index),
        env,
        num_episodes=num_episodes,
        key=key,
    )
    reward = incremental_of(agent)
    return reward.with_past(reward_state, transitions, mask), jnp.sum(mask)


@eqx.filter_jit(donate="all-except-first")
def begin_skill(
    kept: tuple[
        Trainer,
        Intrinsic[Any, Any, Any, Any],
        AbstractEnv[Any],
        Replay,
        Float[Array, ""],
        PRNGKeyArray,
    ],
    state: TrainerState[Any, Any, Any, Any],
    counts: Counts,
) -> tuple[TrainerState[Any, Any, Any, Any], Counts]:
    """A fresh agent with what the reward knows and what of the replay is kept.

    **Arguments:**

    - `kept`: trainer, agent, environment, what to keep of the replay, how many updates
        the skill will have, and a key.
    - `state`, `counts`: as the skill before ended. They are donated.
    """
    trainer, agent, env, replay, num_updates, key = kept
    agent_key, start_key = jr.split(key)
    reward = incremental_of(agent)
    fresh = agent.init(env.spec, key=agent_key)
    agent_state = IntrinsicState(
        agent=fresh.agent,
        reward=reward.begin_skill(state.agent.reward, num_updates=num_updates),
    )
    data, counts = _kept_replay(_cut(state.replay, counts), counts, replay)
    actors = start(agent, agent_state, env, num_envs=trainer.num_envs, key=start_key)
    state = TrainerState(
        agent=agent_state, actors=actors, replay=data, failed=jnp.array(False)
    )
    return state, counts


def _cut(replay: ReplayState[Any], counts: Counts) -> ReplayState[Any]:
    """Marks where environments are about to be restarted in mid-episode."""
    data = replay.data
    written = counts.rows_kept + counts.rows_written
    row = (written - 1) % data.timestep.shape[1]
    truncated = data.truncated.at[:, row].set(~data.terminated[:, row])
    cut = ReplayState(data=eqx.tree_at(lambda data: data.truncated, data, truncated))
    return tree_where(written > 0, cut, replay)


def _kept_replay(
    replay: ReplayState[Any], counts: Counts, kind: Replay
) -> tuple[ReplayState[Any], Counts]:
    rows = jax.tree.leaves(replay.data)[0].shape[1]
    filled = jnp.minimum(counts.rows_kept + counts.rows_written, rows)
    num_rows = {"keep": filled, "half": filled // 2, "clear": jnp.zeros_like(filled)}
    buffer = ReplayBuffer(capacity=rows, batch_size=1)
    return buffer.keep_newest(replay, counts, num_rows=num_rows[kind])
