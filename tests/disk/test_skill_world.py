"""The past that a skill is compared with, also in a world that changes."""

import dataclasses
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqrl
from eqrl._disk.learn import enlarge_past, resume_library
from eqrl._disk.library import init_library
from eqrl.envs import DisabledActions, Point, TimeLimit, sectors

from ..toy import Clock, Drift, same
from .heading import AGENT, ENV, TRAINER, Heading, Recorder, learn, past_of, training_of


RELEASED = eqrl.Intrinsic(Heading(), eqrl.Incremental(mode="released"))
PSEUDOCODE = eqrl.Intrinsic(Heading(), eqrl.Incremental(mode="pseudocode"))


def record(*args: Any, **options: Any) -> tuple[Recorder, eqrl.Skills[Any]]:
    recorder = Recorder()
    skills = learn(*args, callback=recorder, **options)
    return recorder, skills


def at(recorder: Recorder, step: int) -> eqrl.Skills[Any]:
    """After the row that ends at a step."""
    return recorder.skills[recorder.steps.index(step)]


def shown(skills: eqrl.Skills[Any], step_sizes: list[float]) -> np.ndarray:
    """How the first skills move, two episodes of 5 steps each, one after another."""
    moves = [
        step_size * np.asarray(skills.states.direction[index])
        for index, step_size in enumerate(step_sizes)
    ]
    return np.repeat(np.stack(moves), 10, axis=0)


def worlds(skill: int) -> Point:
    """Steps become larger from skill to skill."""
    return Point(step_size=0.1 * (skill + 1), max_steps=5)


def open_worlds(skill: int) -> DisabledActions[Any]:
    """The same, within walls that are all open, with no action disabled."""
    env = Point(step_size=0.1 * (skill + 1), max_steps=5, walls=sectors(4), num_open=4)
    return DisabledActions(env, [])


def step_sizes(skills: eqrl.Skills[Any], num_rows: int) -> np.ndarray:
    """How far the newest steps of the replay led, by the action; `(envs, rows)`."""
    training = training_of(skills)
    counts = training.counts
    data = training.trainer_state.replay.data
    written = int(counts.rows_kept + counts.rows_written)
    rows = np.arange(written - num_rows, written) % data.timestep.shape[1]
    moves = np.asarray(data.next_state_descriptor) - np.asarray(data.state_descriptor)
    return (moves / np.asarray(data.action))[:, rows].mean(axis=-1)


# What is shown.


def test_all_skills_so_far_show_what_they_do() -> None:
    recorder, whole = record()
    assert past_of(at(recorder, 30)).size == 0
    np.testing.assert_allclose(past_of(at(recorder, 38)), shown(whole, [0.1]), 1e-5)
    np.testing.assert_allclose(
        past_of(at(recorder, 68)), shown(whole, [0.1, 0.1]), 1e-5
    )
    # Until its end nothing is added.
    assert same(past_of(at(recorder, 90)), past_of(at(recorder, 68)))


def test_the_released_code_leaves_out_the_newest_skill() -> None:
    recorder, whole = record(RELEASED)
    assert past_of(at(recorder, 38)).size == 0
    np.testing.assert_allclose(past_of(at(recorder, 68)), shown(whole, [0.1]), 1e-5)
    assert whole.metrics["collected_steps"][[5, 10]].tolist() == [0, 10]


@pytest.mark.long
def test_the_pseudocode_adds_the_newest_to_what_was_shown_before() -> None:
    recorder, whole = record(PSEUDOCODE, open_worlds)
    past = training_of(at(recorder, 68)).trainer_state.agent.reward.past
    assert past.counts.tolist() == [4] * 5
    directions = np.asarray(whole.states.direction)
    for timestep in range(5):
        # Positions: skill 0 in the second world, skill 1 in the third.
        expected = [(timestep + 1) * 0.2 * directions[0]] * 2
        expected += [(timestep + 1) * 0.3 * directions[1]] * 2
        found = past.features[timestep, :4]
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert whole.metrics["collected_steps"][[5, 10]].tolist() == [10, 20]


def test_the_pseudocode_refreshes_nothing_within_a_skill() -> None:
    world = {0: open_worlds(0), 44: open_worlds(2)}
    recorder, _ = record(PSEUDOCODE, world, num_skills=2, max_skills=3)
    before, after = at(recorder, 38), at(recorder, 60)
    pasts = [training_of(x).trainer_state.agent.reward.past for x in (before, after)]
    assert same(*pasts)
    np.testing.assert_allclose(step_sizes(after, 8), 0.3, rtol=1e-4)


def test_what_more_episodes_of_earlier_skills_left_is_kept() -> None:
    agent = enlarge_past(PSEUDOCODE, ENV, num_episodes=4)
    skills = init_library(agent, ENV, TRAINER, capacity=2, key=jr.key(0))
    where = lambda x: (x.training.trainer_state.agent.reward.past.counts, x.count)
    skills = eqx.tree_at(where, skills, (jnp.full(5, 4), jnp.asarray(2)))
    larger, _ = resume_library(
        PSEUDOCODE, ENV, TRAINER, skills, capacity=7, num_collected_episodes=1
    )
    # 4 of the first skill, and one of each of the five after the second.
    reward: Any = larger.reward
    assert reward.past_capacity == 9


@pytest.mark.parametrize("agent", [AGENT, RELEASED], ids=["paper", "released"])
def test_the_recent_set_begins_empty_but_for_the_released_code(
    agent: eqrl.AbstractAgent[Any, Any, Any],
) -> None:
    recorder, _ = record(agent)
    recent = [
        int(training_of(at(recorder, step)).trainer_state.agent.reward.recent.counts[0])
        for step in (30, 38, 68)
    ]
    assert recent == ([30, 8, 8] if agent is AGENT else [30, 38, 68])


def test_the_reward_knows_how_many_updates_there_will_be() -> None:
    agent = eqrl.Intrinsic(Heading(), eqrl.Incremental(), reward_minibatches=2)
    trainer = dataclasses.replace(TRAINER, updates_per_iteration=3)
    recorder, _ = record(agent, ENV, trainer, num_steps=[26, 20, 26])
    scales = [
        training_of(x).trainer_state.agent.reward.scale for x in recorder.skills[::5]
    ]
    # 20 steps of 2 environments, six updates after each, as if none were random.
    assert [float(scale.expected_calls) for scale in scales[:2]] == [0, 60]
    assert [int(scale.calls) for scale in scales[:2]] == [6, 6]


# A world that changes with the skill.


def test_old_skills_show_what_they_do_in_the_world_of_the_next() -> None:
    recorder, whole = record(env=worlds)
    np.testing.assert_allclose(past_of(at(recorder, 38)), shown(whole, [0.2]), 1e-5)
    np.testing.assert_allclose(
        past_of(at(recorder, 68)), shown(whole, [0.3, 0.3]), 1e-5
    )
    for skill, step in enumerate((30, 60, 90)):
        sizes = step_sizes(at(recorder, step), 12)
        np.testing.assert_allclose(sizes, 0.1 * (skill + 1), rtol=1e-3)
    # Once before each skill.
    assert int(training_of(whole).collected_steps) == 10 + 20


def test_it_goes_on_exactly_where_the_world_is_that_of_a_skill() -> None:
    recorder, whole = record(env=worlds)
    for row in (4, 6, 9, 10):
        assert same(learn(env=worlds, initial=recorder.skills[row]), whole)


def test_environments_are_made_once() -> None:
    made: list[int] = []

    def world(skill: int) -> Point:
        made.append(skill)
        return worlds(skill)

    learn(env=world)
    assert made == [0, 1, 2]


def test_skills_can_be_added_in_another_world() -> None:
    first = learn(num_skills=2, max_skills=3)
    recorder, whole = record(env=worlds(4), initial=first)
    np.testing.assert_allclose(
        past_of(recorder.skills[0]), shown(whole, [0.5] * 2), 1e-5
    )
    assert same(whole.states.direction[:2], first.states.direction[:2])


def test_changes_that_come_with_the_library_compile_nothing(
    compilations: list[str],
) -> None:
    at_skill: dict[int, int] = {}

    def world(skill: int) -> Any:
        env = Point(max_steps=5, walls=sectors(4), num_open=skill)
        return DisabledActions(env, [] if skill == 0 else [skill % 2])

    def count(step: int, row: dict[str, Any], skills: Any) -> None:
        del step, skills
        at_skill[int(row["skill"])] = len(compilations)

    learn(PSEUDOCODE, world, callback=count)
    assert at_skill[0] > 0
    later = compilations[at_skill[1] :]
    assert [event for event in later if not event.endswith(" bind")] == []


# A world that changes at given steps.


CHANGE = 43


def changing(step: int = CHANGE) -> dict[int, Point]:
    """From some step on, steps are twice as large."""
    return {step: Point(step_size=0.2, max_steps=5), 0: ENV}


@pytest.fixture(scope="module")
def in_mid_skill() -> tuple[Recorder, eqrl.Skills[Any]]:
    """The world changes while the second skill is learnt, from step 30 to 60."""
    return record(env=changing())


def test_a_change_comes_into_force_at_the_next_iteration(
    in_mid_skill: tuple[Recorder, eqrl.Skills[Any]],
) -> None:
    recorder, _ = in_mid_skill
    # A row ends there.
    assert recorder.steps[4:10] == [30, 38, 44, 46, 54, 56]
    np.testing.assert_allclose(step_sizes(at(recorder, 44), 7), 0.1, rtol=1e-3)
    sizes = step_sizes(at(recorder, 60), 12)
    expected = np.repeat([0.1, 0.2], [4, 8])
    np.testing.assert_allclose(sizes, np.stack([expected] * 2), rtol=1e-3)


def test_a_change_does_not_end_an_episode(
    in_mid_skill: tuple[Recorder, eqrl.Skills[Any]],
) -> None:
    training = training_of(at(in_mid_skill[0], 60))
    # Three episodes of 5 steps since step 30, of which the ring holds 12 rows.
    newest = np.arange(-12, 0) + int(
        training.counts.rows_kept + training.counts.rows_written
    )
    data = training.trainer_state.replay.data
    expected = [3, 4, 0, 1, 2, 3, 4, 0, 1, 2, 3, 4]
    assert data.timestep[0, newest % 12].tolist() == expected
    ends = [timestep == 4 for timestep in expected]
    assert data.truncated[0, newest % 12].tolist() == ends


def test_the_past_is_shown_again_in_the_changed_world(
    in_mid_skill: tuple[Recorder, eqrl.Skills[Any]],
) -> None:
    recorder, whole = in_mid_skill
    np.testing.assert_allclose(past_of(at(recorder, 44)), shown(whole, [0.1]), 1e-5)
    np.testing.assert_allclose(past_of(at(recorder, 46)), shown(whole, [0.2]), 1e-5)
    np.testing.assert_allclose(past_of(at(recorder, 68)), shown(whole, [0.2] * 2), 1e-5)
    costs = whole.metrics["collected_steps"]
    assert costs.tolist() == [0] * 5 + [10] * 2 + [20] * 4 + [40] * 5


@pytest.mark.parametrize("step", [38, 44, 46, 60])
def test_it_goes_on_exactly_around_a_change(
    in_mid_skill: tuple[Recorder, eqrl.Skills[Any]], step: int
) -> None:
    recorder, whole = in_mid_skill
    assert same(learn(env=changing(), initial=at(recorder, step)), whole)


def test_a_change_within_the_first_skill_shows_nothing() -> None:
    recorder, whole = record(env=changing(9), num_skills=1, max_skills=3)
    assert recorder.steps == [8, 10, 16, 24, 26, 30]
    np.testing.assert_allclose(step_sizes(whole, 10), 0.2, rtol=1e-3)
    assert int(training_of(whole).collected_steps) == 0
    # A second change in the same skill.
    twice = changing(9) | {17: Point(step_size=0.4, max_steps=5)}
    recorder, whole = record(env=twice, num_skills=1, max_skills=3)
    assert recorder.steps == [8, 10, 16, 18, 24, 26, 30]
    expected = np.repeat([0.2, 0.4], [4, 6])
    np.testing.assert_allclose(
        step_sizes(whole, 10), np.stack([expected] * 2), rtol=1e-3
    )


@pytest.mark.parametrize("change", [56, 57, 60])
def test_the_rest_of_a_last_episode_is_played_in_the_world_as_it_was(
    change: int,
) -> None:
    # The second skill's steps end at 56, its last episode at 60.
    recorder, whole = record(env=changing(change))
    np.testing.assert_allclose(step_sizes(at(recorder, 60), 12), 0.1, rtol=1e-3)
    np.testing.assert_allclose(step_sizes(at(recorder, 90), 12), 0.2, rtol=1e-3)
    np.testing.assert_allclose(past_of(at(recorder, 68)), shown(whole, [0.2] * 2), 1e-5)
    assert int(training_of(whole).collected_steps) == 10 + 20
    for step in (56, 60, 68):
        assert same(learn(env=changing(change), initial=at(recorder, step)), whole)


# What is refused, at once.


@pytest.mark.parametrize(
    ("world", "message"),
    [
        ({}, r"from the steps \[\]; one of them must be 0"),
        ({5: ENV}, r"from the steps \[5\]; one of them must be 0"),
        ({-5: ENV, 0: ENV}, r"the steps \[-5, 0\]; one of them must be 0, and none"),
        (lambda skill: ENV if skill < 2 else Clock(), "`env` changes its `spec`"),
        ({0: ENV, 900: Point(max_steps=6)}, "`env` changes its `spec`"),
        (lambda skill: [Drift(), Clock(), Clock()][skill], "`env` changes its `spec`"),
    ],
    ids=["empty", "no 0", "negative", "spec", "limit", "function"],
)
def test_a_world_that_does_not_fit_is_refused(world: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        learn(env=world, callback=lambda *args: pytest.fail("it was not at once"))


def test_a_world_whose_states_change_their_kind_is_refused() -> None:
    world = {0: Clock(), 9: TimeLimit(Clock(has_limit=False), max_steps=4)}
    assert world[0].spec == world[9].spec
    with pytest.raises(ValueError, match=r"`env` changes its state from ClockState"):
        learn(env=world)
