"""Between two skills: when one ends, and what the next inherits of the replay."""

import itertools
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray

import eqrl
from eqrl._disk.learn import keep_replay
from eqrl._training.replay import (
    Counts,
    ReplayBuffer,
    ReplayState,
    truncate_last_row,
)
from eqrl.envs import AbstractEnv, Outcome

from ..toy import Clock, random_transitions, same
from .heading import Heading, Recorder, learn, training_of


CLOCK = Clock(longest=4)
# It learns from windows of 2 steps.
CLOCK_AGENT = eqrl.Intrinsic(Heading(length=2), eqrl.Incremental(feature="next_state"))
# Three environments with 10 rows each; the first 2 of a skill are random.
CLOCK_TRAINER = eqrl.Trainer(num_envs=3, batch_size=4, capacity=32, warmup_steps=6)


def learn_clock(num_steps: int | Sequence[int], **options: Any) -> Recorder:
    """Two skills in an environment whose episodes have random lengths, below 5."""
    recorder = Recorder()
    defaults = {
        "num_skills": 2,
        "max_skills": 3,
        "num_collected_episodes": 5,
        "log_every": 6,
        "callback": recorder,
    }
    learn(CLOCK_AGENT, CLOCK, CLOCK_TRAINER, num_steps=num_steps, **defaults | options)
    return recorder


def rows_of(skills: eqrl.Skills[Any]) -> Any:
    """What the replay holds, oldest first, with leading axes `(envs, rows)`."""
    training = training_of(skills)
    data = training.trainer_state.replay.data
    capacity = data.timestep.shape[1]
    written = int(training.counts.rows_kept + training.counts.rows_written)
    filled = min(written, capacity)
    order = [(written - filled + index) % capacity for index in range(filled)]
    return jax.tree.map(lambda x: np.asarray(x)[:, order], data)


def at_switch(
    recorder: Recorder, skill: int = 1
) -> tuple[eqrl.Skills[Any], eqrl.Skills[Any]]:
    """At the end of the skill before, and after the first row of this one."""
    first = [int(row["skill"]) for row in recorder.rows].index(skill)
    return recorder.skills[first - 1], recorder.skills[first]


# When it is.


@pytest.mark.parametrize("seed", range(3))
def test_a_skill_ends_with_an_episode_of_the_first_environment(seed: int) -> None:
    num_steps = (6, 12, 42)
    recorder = learn_clock(num_steps, num_skills=3, key=jr.key(seed))
    at_end = [at_switch(recorder, skill)[0] for skill in (1, 2)]
    for skills, steps in zip([*at_end, recorder.skills[-1]], num_steps, strict=True):
        rows = rows_of(skills)
        # The last step that `num_steps` asks for may be the end of an episode.
        num_after = int(training_of(skills).counts.rows_written) - steps // 3
        ends = rows.terminated[0, rows.terminated.shape[1] - num_after - 1 :]
        assert ends.tolist() == [False] * num_after + [True]
        assert int(training_of(skills).trainer_state.actors.timestep[0]) == 0


class Fragile(AbstractEnv[Int[Array, ""]]):
    """Its state is the time, up to 6; the reward of one step may not be finite."""

    broken_at: Int[Array, ""]

    @property
    def spec(self) -> eqrl.EnvSpec:
        return eqrl.EnvSpec(
            observation_size=1, action_size=1, state_descriptor_size=1, max_steps=6
        )

    def reset(self, *, key: PRNGKeyArray) -> tuple[Int[Array, ""], Float[Array, "1"]]:
        del key
        return jnp.zeros((), int), jnp.zeros(1)

    def step(
        self, state: Int[Array, ""], action: Float[Array, "1"], *, key: PRNGKeyArray
    ) -> tuple[Int[Array, ""], Outcome]:
        del key
        return state + 1, Outcome(
            observation=action,
            reward=jnp.where(state == self.broken_at, jnp.nan, 0.0),
            terminated=jnp.array(False),
            truncated=state >= 5,
        )

    def state_descriptor(self, state: Int[Array, ""]) -> Float[Array, "1"]:
        return state.astype(float)[None]


# An iteration is 4 steps of 2 environments, an episode is 6.
STEPPING = eqrl.Trainer(
    num_envs=2, batch_size=4, capacity=24, warmup_steps=8, steps_per_iteration=4
)
SINGLE = eqrl.Trainer(num_envs=2, batch_size=4, capacity=24, warmup_steps=8)
AGENT = eqrl.Intrinsic(Heading(), eqrl.Incremental())


def learn_fragile(
    trainer: eqrl.Trainer, broken_at: Sequence[int], **options: Any
) -> eqrl.Skills[Any]:
    """As many skills as there are steps at which the environment is broken."""
    defaults = {"num_skills": len(broken_at), "num_steps": 24, "log_every": 8}
    return learn(
        AGENT,
        lambda skill: Fragile(broken_at=jnp.asarray(broken_at[skill], int)),
        trainer,
        **defaults | options,
    )


@pytest.mark.long
def test_a_skill_ends_with_the_iteration_in_which_an_episode_does() -> None:
    recorder = Recorder()
    whole = learn_fragile(STEPPING, [-1, -1], num_steps=8, callback=recorder)
    # The episode that goes on after 4 steps ends within the second iteration.
    assert recorder.steps == [8, 16, 24, 32]
    assert whole.metrics["skill"].tolist() == [0, 0, 1, 1]
    for skills in recorder.skills:
        again = learn_fragile(STEPPING, [-1, -1], num_steps=8, initial=skills)
        assert same(again, whole)


def test_what_was_not_finite_ends_it_with_the_skills_so_far() -> None:
    whole = learn_fragile(SINGLE, [-1, -1])
    with pytest.raises(eqrl.NonFiniteError, match="environment step 34") as error:
        learn_fragile(SINGLE, [-1, 5])
    # The first skill has 24 steps, and 5 of each environment were finite after it.
    assert error.value.step == 34
    reached = error.value.solution
    assert int(reached.count) == 1
    assert reached.metrics["step"].tolist() == [8, 16, 24, 32, 34]
    again = learn_fragile(SINGLE, [-1, -1], initial=reached)
    assert same((again.states, again.training), (whole.states, whole.training))


def test_it_goes_on_from_the_middle_of_an_iteration() -> None:
    with pytest.raises(eqrl.NonFiniteError) as error:
        learn_fragile(STEPPING, [-1, 5])
    reached = error.value.solution
    assert int(training_of(reached).counts.rows_written) == 5
    again = learn_fragile(STEPPING, [-1, -1], initial=reached)
    assert int(again.count) == 2
    # Whole iterations of 4 rows, with the end of an episode at the twelfth.
    assert int(training_of(again).counts.rows_written) == 13


def test_a_row_for_the_rest_of_an_episode_may_end_with_what_is_not_finite() -> None:
    with pytest.raises(eqrl.NonFiniteError) as error:
        learn_fragile(SINGLE, [-1, 5], num_steps=4)
    reached = error.value.solution
    # Skill 1 is asked for 2 steps of each environment; 5 were finite.
    assert reached.metrics["step"].tolist() == [4, 12, 16, 22]
    again = learn_fragile(SINGLE, [-1, -1], num_steps=4, initial=reached)
    whole = learn_fragile(SINGLE, [-1, -1], num_steps=4)
    assert same((again.states, again.training), (whole.states, whole.training))


# What becomes of the replay.


def restated(before: Any, num_kept: int) -> Any:
    """The newest rows, the last one marked as truncated where nothing terminated."""
    rows = jax.tree.map(np.copy, before)
    num_rows = rows.timestep.shape[1]
    for env in range(rows.timestep.shape[0]):
        rows.truncated[env, -1] = not rows.terminated[env, -1]
    return jax.tree.map(lambda x: x[:, num_rows - num_kept :], rows)


@eqx.filter_jit
def handed_over(replay: ReplayState[Any], counts: Counts, kept: Any) -> Any:
    return keep_replay(truncate_last_row(replay, counts), counts, kept, key=jr.key(0))


def ring_of(written: Any, number: int, capacity: int) -> Any:
    """A ring into which the first rows of these were written, one after another."""

    def fill(rows: np.ndarray) -> np.ndarray:
        ring = np.zeros((rows.shape[0], capacity, *rows.shape[2:]), rows.dtype)
        for row in range(number):
            ring[:, row % capacity] = rows[:, row]
        return ring

    return jax.tree.map(fill, written)


@pytest.mark.parametrize("kept", ["keep", "half", "clear"])
def test_a_ring_is_handed_over_whatever_was_written(kept: str) -> None:
    batch = random_transitions(jr.key(0), 36, observation_size=1, action_size=1)
    batch = eqx.tree_at(lambda batch: batch.timestep, batch, jnp.arange(36))
    rows = jax.tree.map(lambda x: np.asarray(x).reshape(3, 12, *x.shape[1:]), batch)
    for rows_kept, rows_written in itertools.product(range(5), range(7)):
        number = rows_kept + rows_written
        counts = Counts(
            updates=jnp.asarray(9, int),
            rows_written=jnp.asarray(rows_written, int),
            rows_kept=jnp.asarray(rows_kept, int),
        )
        ring = ReplayState(data=ring_of(rows, number, capacity=4))
        replay, after = handed_over(ring, counts, kept)
        filled = min(number, 4)
        num_kept = {"keep": filled, "half": filled // 2, "clear": 0}[kept]
        assert (int(after.rows_kept), int(after.rows_written)) == (num_kept, 0)
        assert int(after.updates) == 0
        if number > 0:
            held = jax.tree.map(lambda x, n=number: x[:, :n], rows)
            found = jax.tree.map(
                lambda x, n=num_kept: np.asarray(x[:, :n]), replay.data
            )
            assert same(found, restated(held, num_kept))


@pytest.mark.parametrize(
    ("replay", "num_steps", "skill", "seed"),
    [("keep", 60, 2, 0), ("half", 6, 1, 1), ("half", 60, 2, 1), ("clear", 6, 1, 0)],
)
def test_a_switch_keeps_what_it_should_of_the_replay(
    replay: str, num_steps: int, skill: int, seed: int
) -> None:
    recorder = learn_clock(
        num_steps, replay=replay, key=jr.key(seed), num_skills=skill + 1
    )
    before, after = at_switch(recorder, skill)
    old, rows = rows_of(before), rows_of(after)
    filled = old.timestep.shape[1]
    assert (filled == 10) == (num_steps == 60)
    num_kept = {"keep": filled, "half": filled // 2, "clear": 0}[replay]
    counts = training_of(after).counts
    assert int(counts.updates) == 0
    assert int(counts.rows_kept) == num_kept
    assert int(counts.rows_written) == 2
    expected = restated(old, num_kept)
    # The two rows since then may have overwritten some.
    num_left = rows.timestep.shape[1] - 2
    assert num_left == min(num_kept, 10 - 2)
    assert same(
        jax.tree.map(lambda x: x[:, :num_left], rows),
        jax.tree.map(lambda x: x[:, num_kept - num_left :], expected),
    )


def test_a_random_half_holds_rows_of_all_times() -> None:
    """Those of each environment are drawn alone, and stay in their order."""
    num_envs, rows = 50, 8
    time = np.arange(12)
    ring = np.zeros((num_envs, rows), int)
    for number in (12, 5):
        for row in range(number):
            ring[:, row % rows] = time[row]
        counts = Counts(
            updates=jnp.asarray(9, int),
            rows_written=jnp.asarray(number, int),
            rows_kept=jnp.asarray(0, int),
        )
        buffer = ReplayBuffer(capacity=num_envs * rows, batch_size=1)
        filled = min(number, rows)
        replay, after = buffer.keep_random(
            ReplayState(data=jnp.asarray(ring)),
            counts,
            num_rows=jnp.asarray(filled // 2, int),
            key=jr.key(0),
        )
        assert (int(after.rows_kept), int(after.rows_written)) == (filled // 2, 0)
        held = np.asarray(replay.data)[:, : filled // 2]
        assert np.all(np.diff(held, axis=1) > 0)
        found, shares = np.unique(held, return_counts=True)
        assert found.tolist() == list(range(number - filled, number))
        np.testing.assert_allclose(shares / held.size, 1 / filled, atol=0.06)
        assert len(np.unique(held, axis=0)) > 5


def test_some_environments_are_cut_in_mid_episode() -> None:
    cut, whole = 0, 0
    for seed in range(3):
        recorder = learn_clock(12, replay="keep", key=jr.key(seed))
        before, after = at_switch(recorder)
        last = rows_of(before).timestep.shape[1] - 1
        rows = rows_of(after)
        cut += int(rows.truncated[:, last].sum())
        whole += int(rows.terminated[:, last].sum())
        # Episodes of this environment are never truncated otherwise.
        assert int(rows.truncated.sum()) == int(rows.truncated[:, last].sum())
        # All begin anew.
        assert rows.timestep[:, last + 1].tolist() == [0, 0, 0]
    assert cut > 0 and whole >= 3


def test_half_is_the_default() -> None:
    before, after = at_switch(learn_clock(12))
    num_rows = rows_of(before).timestep.shape[1]
    assert int(training_of(after).counts.rows_kept) == num_rows // 2


def test_every_skill_begins_with_random_steps() -> None:
    recorder = learn_clock(24, replay="clear", log_every=1_000)
    for skills in recorder.skills[1::2]:
        actions = np.abs(rows_of(skills).action).max(axis=(0, 2))
        num_rows = int(training_of(skills).counts.rows_written)
        assert 8 <= num_rows <= 10
        assert (actions < 0.1).tolist() == [True] * 2 + [False] * (num_rows - 2)
        # One update after each of the others.
        assert int(training_of(skills).counts.updates) == num_rows - 2


@pytest.mark.parametrize("replay", ["half", "clear"])
def test_windows_are_drawn_from_what_was_kept(replay: str) -> None:
    recorder = learn_clock(24, replay=replay)
    skills = recorder.skills[-1]
    assert np.isfinite(skills.metrics["loss"]).sum() >= 4
    assert np.all(np.isfinite(skills.states.direction))


# What skills show.


def test_what_showing_costs_is_the_length_of_the_episodes() -> None:
    recorder = learn_clock(12, num_skills=3)
    total = 0
    for skill in (1, 2):
        index = [int(row["skill"]) for row in recorder.rows].index(skill)
        past = training_of(recorder.skills[index]).trainer_state.agent.reward.past
        num_steps = int(past.counts[0])
        # What is kept of a step is ten times the time after it.
        times = np.asarray(past.features[0, :num_steps, 0]) / 10
        reached = [int(np.sum(times == time)) for time in (1, 2, 3, 4)]
        assert reached[0] == 5 * skill and sum(reached) == num_steps
        assert reached == sorted(reached, reverse=True) and reached[3] < reached[0]
        total += num_steps
        assert int(recorder.rows[index]["collected_steps"]) == total
