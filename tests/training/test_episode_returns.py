"""Returns of episodes in a replay, beside a list of all rows."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array

import eqrl
from eqrl._training.replay import transitions_at, truncate_last_row
from tests.toy import transitions_of


NUM_ENVS, NUM_ROWS = 3, 6
BUFFER = eqrl.ReplayBuffer(
    NUM_ENVS * NUM_ROWS, batch_size=4, sequence_length=1, episode_returns=True
)
ITEM = jax.tree.map(
    lambda x: x[0], transitions_of(jnp.zeros((1, 2)), action=jnp.zeros((1, 1)))
)


def counts_of(written: int) -> eqrl.Counts:
    zero = jnp.asarray(0, int)
    return eqrl.Counts(
        updates=zero, rows_written=jnp.asarray(written, int), rows_kept=zero
    )


@eqx.filter_jit
def add(
    state: eqrl.ReplayState[Any], items: Any, counts: eqrl.Counts, keep: Array
) -> eqrl.ReplayState[Any]:
    return BUFFER.add(state, items, counts, keep=keep)


def expected_of(
    rewards: list[np.ndarray], over: list[np.ndarray], env: int, row: int
) -> float:
    """The sum of the rewards of an episode, by looking for its ends."""
    ends = [each[env] for each in over]
    first = row
    while first > 0 and not ends[first - 1]:
        first -= 1
    last = row
    while last < len(ends) - 1 and not ends[last]:
        last += 1
    if not ends[last]:
        return np.nan
    return float(sum(each[env] for each in rewards[first : last + 1]))


@pytest.mark.parametrize("share_over", [0.7, 0.1])
def test_returns_are_those_of_whole_episodes(share_over: float) -> None:
    random = np.random.default_rng(0)
    state = BUFFER.init(ITEM, NUM_ENVS)
    rewards: list[np.ndarray] = []
    over: list[np.ndarray] = []
    expected: list[list[float]] = []
    take = jax.jit(transitions_at)
    cut = jax.jit(truncate_last_row)
    # The oldest row that is kept is not at the first place.
    for step in range(41):
        reward = random.integers(1, 9, NUM_ENVS).astype(np.float32)
        terminated = random.random(NUM_ENVS) < share_over / 2
        truncated = ~terminated & (random.random(NUM_ENVS) < share_over / 2)
        items = transitions_of(
            jnp.zeros((NUM_ENVS, 2)),
            action=jnp.zeros((NUM_ENVS, 1)),
            reward=jnp.asarray(reward),
            terminated=jnp.asarray(terminated),
            truncated=jnp.asarray(truncated),
        )
        written = counts_of(len(rewards))
        # A row that is not to be kept leaves no trace.
        ignored = dataclasses.replace(items, reward=items.reward + 100)
        state = add(state, ignored, written, jnp.array(False))
        state = add(state, items, written, jnp.array(True))
        rewards.append(reward)
        over.append(terminated | truncated)
        if step == 25:
            state = cut(state, counts_of(len(rewards)))
            over[-1][:] = True
        held = range(max(0, len(rewards) - NUM_ROWS), len(rewards))
        env, row = np.meshgrid(np.arange(NUM_ENVS), list(held), indexing="ij")
        batch = take(state, jnp.asarray(env), jnp.asarray(row))
        expected = [
            [expected_of(rewards, over, each, number) for number in held]
            for each in range(NUM_ENVS)
        ]
        np.testing.assert_array_equal(batch.episode_return, expected)
    counts = counts_of(len(rewards))
    state, counts = BUFFER.keep_newest(state, counts, num_rows=jnp.asarray(4, int))
    env, row = np.meshgrid(np.arange(NUM_ENVS), np.arange(4), indexing="ij")
    batch = take(state, jnp.asarray(env), jnp.asarray(row))
    np.testing.assert_array_equal(batch.episode_return, np.asarray(expected)[:, -4:])
    with pytest.raises(ValueError, match="keep_newest"):
        BUFFER.keep_random(state, counts, num_rows=jnp.asarray(2, int), key=jr.key(0))
