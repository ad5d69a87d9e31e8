"""Replays that are written outside the library train as the library's own does."""

import dataclasses
import functools
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, PRNGKeyArray

import eqrl
from docs.examples.n_step_replay import NStepReplay
from docs.examples.prioritized_replay import PrioritizedReplay, td_error
from eqrl.envs import Point

from ..toy import (
    Clock,
    GetKey,
    Scribe,
    make_linear_critic,
    make_linear_gaussian,
    transitions_of,
)


class WholeRuns(eqrl.AbstractReplay[eqrl.ReplayState[Any]]):
    """Draws runs of consecutive steps that stay within one episode."""

    capacity: int = eqx.field(static=True)
    batch_size: int = eqx.field(static=True)
    sequence_length: int = eqx.field(static=True)

    @property
    def _ring(self) -> eqrl.ReplayBuffer:
        return eqrl.ReplayBuffer(self.capacity, self.batch_size)

    def init(self, item: Any, num_envs: int) -> eqrl.ReplayState[Any]:
        return self._ring.init(item, num_envs)

    def add(
        self,
        state: eqrl.ReplayState[Any],
        items: Any,
        counts: eqrl.Counts,
        *,
        keep: Array | None = None,
    ) -> eqrl.ReplayState[Any]:
        return self._ring.add(state, items, counts, keep=keep)

    def sample(
        self, state: eqrl.ReplayState[Any], counts: eqrl.Counts, *, key: PRNGKeyArray
    ) -> Any:
        rows = state.data.reward.shape[1]
        filled = jnp.minimum(counts.rows_written, rows)
        age = jnp.arange(rows)
        row = (counts.rows_written - filled + age) % rows
        # The run that begins at each age, of which all but the last step must go on.
        run = (age[:, None] + jnp.arange(self.sequence_length)[None]) % rows
        over = (state.data.terminated | state.data.truncated)[:, row][:, run]
        whole = ~jnp.any(over[..., :-1], axis=-1)
        whole &= (age <= filled - self.sequence_length)[None]
        start = jr.categorical(
            key, jnp.where(whole, 0.0, -jnp.inf).ravel(), shape=(self.batch_size,)
        )
        env, begin = start // rows, start % rows
        return jax.tree.map(lambda x: x[env[:, None], row[run[begin]]], state.data)


def test_a_replay_of_sequences_trains_an_agent(getkey: GetKey) -> None:
    trainer = eqrl.Trainer(
        num_envs=2,
        batch_size=32,
        capacity=128,
        warmup_steps=40,
        make_replay=WholeRuns,
    )
    env, agent = Clock(longest=6), Scribe(length=3)

    @eqx.filter_jit
    def run(key: PRNGKeyArray) -> Any:
        init_key, run_key, sample_key = jr.split(key, 3)
        state, counts = trainer.init(agent, env, key=init_key)
        state, counts, metrics = trainer.run(
            agent, env, state, counts, num_steps=44, key=run_key
        )
        replay = trainer.replay(agent.sequence_length)
        batch = replay.sample(state.replay, counts, key=sample_key)
        return state.agent.num_updates, metrics["batch_size"], batch.timestep

    num_updates, batch_size, timestep = jax.device_get(run(getkey()))
    assert num_updates == 2
    assert batch_size == 32 * 3
    assert timestep.shape == (32, 3)
    # A run that went on into the next episode would fall back to 0.
    np.testing.assert_array_equal(np.diff(timestep), 1)


make_prioritized = functools.partial(PrioritizedReplay, td_error)
TRAINER = eqrl.Trainer(
    num_envs=2,
    batch_size=4,
    capacity=60,
    warmup_steps=20,
    make_replay=make_prioritized,
)
ENV = Point(max_steps=7, goal=(0.3, 0.1))
AGENT = eqrl.SAC(make_actor=make_linear_gaussian, make_critic=make_linear_critic)


def test_a_prioritized_replay_learns_from_each_update() -> None:
    solution = eqrl.train(
        AGENT, ENV, TRAINER, num_steps=40, key=jr.key(0), log_every=40
    )
    replay: Any = solution.trainer_state.replay
    priority = np.asarray(replay.priority)
    assert np.all(priority[:, :20] > 0) and np.all(priority[:, 20:] == 0)
    # Rows that no update has drawn still have the first priority of all, 1, or the
    # highest of when they were written; the others have an error of the critics.
    errors = eqx.filter_jit(td_error)(solution.state, rows(replay.ring.data))
    assert np.all(np.isfinite(errors))
    assert len(np.unique(priority[:, :20])) > 5
    assert np.isfinite(solution.metrics["critic_loss"][-1])


class Counting(eqrl.AbstractPrioritizedReplay[Any]):
    """Its batches say how many updates the last priorities are from."""

    capacity: int
    batch_size: int
    sequence_length: int

    def init(self, item: Any, num_envs: int) -> Any:
        ring = eqrl.ReplayBuffer(self.capacity, self.batch_size)
        return ring.init(item, num_envs), jnp.zeros((), int)

    def add(self, state: Any, items: Any, counts: Any, *, keep: Any = None) -> Any:
        ring = eqrl.ReplayBuffer(self.capacity, self.batch_size)
        return ring.add(state[0], items, counts, keep=keep), state[1]

    def sample(self, state: Any, counts: Any, *, key: PRNGKeyArray) -> Any:
        ring = eqrl.ReplayBuffer(self.capacity, self.batch_size)
        batch = ring.sample(state[0], counts, key=key)
        return dataclasses.replace(
            batch, timestep=jnp.broadcast_to(state[1], batch.timestep.shape)
        )

    def prioritize(
        self, state: Any, batch: Any, agent_state: Any, counts: Any, *, keep: Any = None
    ) -> Any:
        del batch, counts, keep
        return state[0], agent_state.num_updates


def test_priorities_are_those_of_the_last_update_also_within_an_iteration() -> None:
    trainer = eqrl.Trainer(
        num_envs=2,
        batch_size=4,
        capacity=60,
        warmup_steps=4,
        updates_per_iteration=3,
        make_replay=Counting,
    )
    solution = eqrl.train(Scribe(), Clock(), trainer, num_steps=8, key=jr.key(0))
    assert solution.state.timesteps[:6].tolist() == [0, 1, 2, 3, 4, 5]


def rows(data: Any) -> Any:
    """All transitions of a ring, with one leading axis."""
    return jax.tree.map(lambda x: np.asarray(x).reshape(-1, *x.shape[2:]), data)


@eqx.filter_jit
def add(replay: PrioritizedReplay, state: Any, items: Any, counts: eqrl.Counts) -> Any:
    return replay.add(state, items, counts)


@eqx.filter_jit
def sample(
    replay: PrioritizedReplay, state: Any, counts: eqrl.Counts, key: PRNGKeyArray
) -> Any:
    return replay.sample(state, counts, key=key)


@eqx.filter_jit
def prioritize(
    replay: PrioritizedReplay,
    state: Any,
    batch: Any,
    counts: eqrl.Counts,
    keep: Array | None = None,
) -> Any:
    return replay.prioritize(state, batch, None, counts, keep=keep)


def reward_of(state: None, batch: Any) -> Array:
    del state
    return batch.reward


def written(num_rows: int) -> tuple[PrioritizedReplay, Any, eqrl.Counts]:
    """A prioritized replay of two environments, whose priority is the reward."""
    replay = PrioritizedReplay(reward_of, capacity=10, batch_size=1000, exponent=1.0)
    item = transitions_of(jnp.zeros(1), action=jnp.zeros(1))
    state = replay.init(item, 2)
    zero = jnp.zeros((), int)
    counts = eqrl.Counts(updates=zero, rows_written=zero, rows_kept=zero)
    for index in range(num_rows):
        items = jax.tree.map(lambda x: np.stack([x, x]), item)
        reward = np.array([1, 3], np.float32) * (index + 1)
        items = eqx.tree_at(lambda items: items.reward, items, reward)
        state = add(replay, state, items, counts)
        counts = counts.after_rows(1)
    return replay, state, counts


def test_the_example_draws_in_proportion_to_priority(getkey: GetKey) -> None:
    replay, state, counts = written(2)
    batch = sample(replay, state, counts, getkey())
    state = prioritize(replay, state, batch, counts)
    batch = sample(replay, state, counts, getkey())
    # Rewards and so priorities 1, 3, 2 and 6, of 12.
    shares = [np.mean(np.asarray(batch.reward) == value) for value in (1, 3, 2, 6)]
    np.testing.assert_allclose(shares, np.array([1, 3, 2, 6]) / 12, atol=0.05)
    # Importance weights undo it, up to the power `correction`.
    weight = np.asarray(batch.extras.weight)
    expected = np.asarray(batch.reward) ** -0.4
    np.testing.assert_allclose(weight, expected, rtol=1e-3)


def test_what_is_not_to_keep_changes_no_priority(getkey: GetKey) -> None:
    replay, state, counts = written(3)
    batch = sample(replay, state, counts, getkey())
    after = prioritize(replay, state, batch, counts, jnp.array(False))
    assert eqx.tree_equal(after, state)
    assert not eqx.tree_equal(prioritize(replay, state, batch, counts), state)
    # Nor do errors of an agent that diverged, from which training may be resumed.
    for error in (jnp.nan, jnp.inf):
        reward = jnp.full_like(batch.reward, error)
        spoiled = dataclasses.replace(batch, reward=reward)
        assert eqx.tree_equal(prioritize(replay, state, spoiled, counts), state)


def test_a_population_of_prioritized_replays_is_traced(getkey: GetKey) -> None:
    agent, trainer = AGENT, TRAINER

    def members(keys: PRNGKeyArray) -> Any:
        state, counts = eqx.filter_vmap(
            lambda key: trainer.init(agent, ENV, key=key),
            out_axes=(eqx.if_array(0), None),
        )(keys)
        return eqx.filter_vmap(
            lambda state, key: trainer.run(
                agent, ENV, state, counts, num_steps=24, key=key
            )[0],
        )(state, keys)

    shapes = eqx.filter_eval_shape(members, jr.split(getkey(), 3))
    assert shapes.replay.priority.shape == (3, 2, 30)


def test_the_example_of_several_steps_sums_rewards_to_the_end(getkey: GetKey) -> None:
    # Two environments, of which the second one has rewards ten times as large. Their
    # rows are numbered by their rewards; the ring has gone on over row 0.
    num_rows, steps, discount = 11, 3, 0.5
    row = np.arange(num_rows)
    terminated, truncated = row == 3, row == 7
    transitions = eqrl.transitions_from_arrays(
        observation=row[:, None],
        action=row[:, None] / 10.0,
        reward=row + 1.0,
        next_observation=row[:, None] + 0.5,
        terminated=terminated,
        truncated=truncated,
    )
    transitions = dataclasses.replace(
        transitions,
        critic_observation=10 * transitions.observation,
        next_critic_observation=10 * transitions.next_observation,
    )
    both = jax.tree.map(lambda x: np.stack([x, x]), transitions)
    both = eqx.tree_at(
        lambda x: x.reward, both, both.reward * np.array([[1], [10]], "f")
    )
    replay = NStepReplay(steps, discount, capacity=20, batch_size=400)
    in_ring = np.array([10, *range(1, 10)])
    state = eqrl.ReplayState(
        jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[:, in_ring]), both)
    )
    zero = jnp.zeros((), int)
    counts = eqrl.Counts(updates=zero, rows_written=zero + num_rows, rows_kept=zero)
    batch = jax.device_get(
        eqx.filter_jit(lambda key: replay.sample(state, counts, key=key))(getkey())
    )
    expected = {}
    for start in range(1, num_rows - steps + 1):
        run = range(start, start + steps)
        end = next((x for x in run if terminated[x] or truncated[x]), run[-1])
        if not (truncated[end] and end < run[-1]):
            total = sum(
                discount ** (x - start) * (x + 1) for x in range(start, end + 1)
            )
            expected[start] = (total, end + 0.5, terminated[end], truncated[end])
    # Row 7 ends an episode by a time limit, with less than three steps from 6 and 7.
    assert sorted(expected) == [1, 2, 3, 4, 5, 8]
    drawn = batch.observation[:, 0].astype(int)
    assert set(drawn.tolist()) == set(expected)
    factor = set()
    for index, start in enumerate(drawn):
        total, reached, terminates, truncates = expected[int(start)]
        factor.add(round(float(batch.reward[index] / total), 4))
        assert batch.next_observation[index, 0] == reached
        assert batch.next_critic_observation[index, 0] == 10 * reached
        assert batch.terminated[index] == terminates
        assert batch.truncated[index] == truncates
        assert batch.action[index, 0] == np.float32(start / 10)
    assert factor == {1.0, 10.0}
    shares = np.array([np.mean(drawn == start) for start in expected])
    np.testing.assert_allclose(shares, 1 / 6, atol=0.07)


def test_the_default_replay_is_the_ring_and_equal_trainers_are_equal() -> None:
    trainer = eqrl.Trainer(batch_size=4, capacity=10)
    assert trainer.replay(2) == eqrl.ReplayBuffer(10, 4, 2)
    assert trainer == eqrl.Trainer(
        batch_size=4, capacity=10, make_replay=eqrl.ReplayBuffer
    )
    assert hash(trainer) == hash(eqrl.Trainer(batch_size=4, capacity=10))


def test_a_factory_of_something_else_is_refused(getkey: GetKey) -> None:
    make_dict: Any = dict
    trainer = eqrl.Trainer(
        batch_size=4, capacity=10, warmup_steps=4, make_replay=make_dict
    )
    with pytest.raises(ValueError, match=r"`make_replay` gives a dict"):
        eqx.filter_eval_shape(trainer.init, Scribe(), Clock(), key=getkey())
