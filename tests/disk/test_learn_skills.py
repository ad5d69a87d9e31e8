"""Skills one after another: resuming, Ctrl-C, compiling once, learning."""

import itertools
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.random as jr
import numpy as np
import pytest

import eqrl
import eqrl._disk.learn
from eqrl._pytree.tree import giving_away
from eqrl.envs import Point

from ..agents_under_test import all_finite, sac, taac, td3
from ..toy import interrupt_in_piece, same
from .heading import (
    AGENT,
    ENV,
    NUM_STEPS,
    TRAINER,
    Recorder,
    learn,
    training_of,
)


pytestmark = pytest.mark.checks_keys

# Rows end every 8 steps of a skill, at its 26 steps, and with the episode, at 30.
ENDS = [8, 16, 24, 26, 30, 38, 46, 54, 56, 60, 68, 76, 84, 86, 90]


class Recorded(NamedTuple):
    """What the callback of one call was given, what it returned and compiled."""

    recorder: Recorder
    whole: eqrl.Skills[Any]
    compiled: list[str]


@pytest.fixture(scope="module")
def recorded() -> Recorded:
    recorder = Recorder()
    with recorder.counting() as compiled:
        whole = learn(callback=recorder)
    return Recorded(recorder, whole, compiled)


@pytest.fixture(scope="module")
def whole(recorded: Recorded) -> eqrl.Skills[Any]:
    """The three skills of one call."""
    return recorded.whole


# In a first skill, in the last episode of it, at its end, and within a second skill.
@pytest.mark.parametrize("step", [8, 26, 30, 46])
def test_killed_after_any_row_it_goes_on_as_if_never_stopped(
    recorded: Recorded, step: int
) -> None:
    recorder, whole, _ = recorded
    assert same(learn(initial=recorder.skills[ENDS.index(step)]), whole)


def test_killed_in_random_steps_it_goes_on_as_if_never_stopped(
    whole: eqrl.Skills[Any],
) -> None:
    recorder = Recorder()
    learn(num_skills=1, max_skills=3, log_every=4, callback=recorder)
    initial = recorder.skills[0]
    assert recorder.steps[0] == 4
    assert int(training_of(initial).counts.updates) == 0
    other = learn(initial=initial)
    assert same((other.states, other.training), (whole.states, whole.training))


def test_how_often_is_logged_makes_no_difference(whole: eqrl.Skills[Any]) -> None:
    other = learn(log_every=1_000)
    assert same((other.states, other.training), (whole.states, whole.training))


def test_evaluations_add_columns_and_leave_the_skills_as_they_are(
    whole: eqrl.Skills[Any],
) -> None:
    def evaluations(**options: Any) -> eqrl.Evaluations[Any]:
        return eqrl.Evaluations(
            AGENT, ENV, every=30, num_episodes=2, key=jr.key(3), **options
        )

    evaluated = evaluations()
    other = learn(evaluations=evaluated)
    assert same((other.states, other.training), (whole.states, whole.training))
    # The rows that end with a skill reach a multiple of 30.
    column = other.metrics["evaluation_return"]
    steps = other.metrics["step"][~np.isnan(column)]
    assert steps.tolist() == evaluated.steps == [30, 60, 90]
    learned = jax.tree.map(lambda x: x[2], other.states)
    inner, key = AGENT.agent, jr.fold_in(jr.key(3), 90)
    alone = eqrl.evaluate(inner, learned, ENV, num_episodes=2, key=key)
    np.testing.assert_array_equal(evaluated.returns[2], alone.returns)
    ended = learn(evaluations=evaluations(target=-1e9))
    assert ended.metrics["step"][-1] == 30 and int(ended.count) == 0


def test_the_callback_may_be_left_out(whole: eqrl.Skills[Any]) -> None:
    assert same(learn(), whole)


def test_skills_may_be_learned_one_call_each(whole: eqrl.Skills[Any]) -> None:
    skills = None
    for number in (1, 2, 3):
        skills = learn(num_skills=number, max_skills=3, initial=skills)
        assert int(skills.count) == number
    assert same(skills, whole)


@pytest.mark.long
def test_skills_beyond_those_there_was_room_for_are_the_same(
    whole: eqrl.Skills[Any],
) -> None:
    # A first skill is not told how often it will be rolled out.
    first = learn(num_skills=1, num_collected_episodes=3)
    assert first.states.direction.shape[0] == 1
    past = training_of(first).trainer_state.agent.reward.past
    assert past.features.shape[1] == 3 * 5
    assert same(learn(initial=first), whole)


def test_skills_that_are_there_already_are_given_back(
    whole: eqrl.Skills[Any],
) -> None:
    # The capacity of the past stays, though fewer episodes would need less.
    assert same(learn(num_skills=2, num_collected_episodes=1, initial=whole), whole)


def test_initial_skills_stay_usable(recorded: Recorded) -> None:
    initial = recorded.recorder.skills[6]
    learn(num_skills=2, initial=initial)
    arrays = [x for x in jax.tree.leaves(initial) if isinstance(x, jax.Array)]
    assert not any(array.is_deleted() for array in arrays)
    copied = eqrl.tree_copy(initial)
    with giving_away():
        learn(num_skills=2, initial=copied)
    assert training_of(copied).trainer_state.replay.data.reward.is_deleted()


def test_skills_may_be_played_again_with_the_same_key(
    whole: eqrl.Skills[Any],
) -> None:
    options: dict[str, Any] = {"num_episodes": 2, "key": jr.key(7)}
    first, again = (eqrl.play_skills(AGENT, whole, ENV, **options) for _ in range(2))
    assert same(first, again)
    assert first.mask.shape == (3, 2, 5)
    short = eqrl.play_skills(AGENT, whole, ENV, **options, mode="sample", max_steps=3)
    assert short.mask.shape == (3, 2, 3)
    np.testing.assert_array_equal(short.first_descriptors, first.first_descriptors)
    assert not np.any(short.descriptors == first.descriptors[:, :, :3])


def test_a_skill_never_changes_once_it_is_learned(
    recorded: Recorded,
) -> None:
    recorder, whole, _ = recorded
    for skills in recorder.skills:
        count = int(skills.count)
        one, other = (
            jax.tree.map(lambda x, n=count: x[:n], tree.states)
            for tree in (skills, whole)
        )
        assert same(one, other)


def test_a_skill_is_what_the_agent_had_learned_at_its_end(
    recorded: Recorded,
) -> None:
    recorder, whole, _ = recorded
    for skill, step in enumerate((30, 60, 90)):
        at_end = training_of(recorder.skills[ENDS.index(step)])
        agent, state = eqrl.pick_skill(AGENT, whole, skill)
        assert same(state, at_end.trainer_state.agent.agent)
        assert agent is AGENT.agent


def test_each_skill_begins_with_nothing_learned(
    recorded: Recorded,
) -> None:
    # The first row of a skill is 4 steps of each of 2 environments, 3 of them random.
    for skill in range(3):
        state = training_of(
            recorded.recorder.skills[5 * skill]
        ).trainer_state.agent.agent
        assert int(state.num_observed) == 8
        assert int(state.num_updates) == 1


def test_each_skill_begins_otherwise(
    recorded: Recorded,
) -> None:
    # After one update, which turns them by little.
    one, two, three = (
        np.asarray(training_of(skills).trainer_state.agent.agent.direction)
        for skills in recorded.recorder.skills[::5]
    )
    pairs = ((one, two), (one, three), (two, three))
    assert min(np.abs(a - b).max() for a, b in pairs) > 0.1


def test_num_steps_may_be_one_for_each() -> None:
    skills = learn(num_steps=(10, 6, 20), log_every=100)
    assert skills.metrics["step"].tolist() == [10, 16, 20, 40]
    assert skills.metrics["skill"].tolist() == [0, 1, 1, 2]


# The metrics.


def test_the_metrics_have_a_row_every_log_every_steps_of_a_skill(
    whole: eqrl.Skills[Any],
) -> None:
    assert whole.metrics["step"].tolist() == ENDS
    assert {value.shape for value in whole.metrics.values()} == {(len(ENDS),)}


def test_the_metrics_name_the_skill_and_what_collecting_cost(
    whole: eqrl.Skills[Any],
) -> None:
    # Skills show 2 episodes of 5 steps: one skill at first, then two.
    assert whole.metrics["skill"].tolist() == [0] * 5 + [1] * 5 + [2] * 5
    assert whole.metrics["collected_steps"].tolist() == [0] * 5 + [10] * 5 + [30] * 5
    assert np.issubdtype(whole.metrics["skill"].dtype, np.integer)
    assert int(training_of(whole).collected_steps) == 30


def test_no_loss_is_reported_before_there_is_an_update(
    whole: eqrl.Skills[Any],
) -> None:
    small = learn(num_steps=2, log_every=2, num_skills=2, max_skills=3)
    # The tail of an episode is one row: the mean of what is known in its steps.
    assert small.metrics["step"].tolist() == [2, 10, 12, 20]
    assert np.isnan(small.metrics["loss"]).tolist() == [True, False, True, False]
    # Steps 3 to 5 of each environment; an update after the fourth and the fifth.
    assert small.metrics["update"][1] == 0.5
    assert np.all(whole.metrics["nonfinite"] == 0)


def test_the_callback_is_given_every_row(
    recorded: Recorded,
) -> None:
    recorder, whole, _ = recorded
    assert recorder.steps == whole.metrics["step"].tolist()
    for name in set(whole.metrics) - {"step"}:
        given = np.stack([row[name] for row in recorder.rows])
        assert same(given, whole.metrics[name]), name


# Ctrl-C.


def interrupt() -> None:
    signal.raise_signal(signal.SIGINT)


def interrupt_at(step: int) -> Callable[..., None]:
    return lambda now, row, skills: interrupt() if now == step else None


def interrupted(**options: Any) -> eqrl.Skills[Any]:
    with pytest.raises(eqrl.TrainingInterrupted) as error:
        learn(**options)
    return error.value.solution


@pytest.mark.parametrize("step", [16, 26, 30, 90])
def test_after_ctrl_c_it_goes_on_as_if_never_stopped(
    recorded: Recorded, step: int
) -> None:
    recorder, whole, _ = recorded
    solution = interrupted(callback=interrupt_at(step))
    assert same(solution, recorder.skills[ENDS.index(step)])
    assert same(learn(initial=solution), whole)
    # A callback that returns true ends it there, too.
    assert same(learn(callback=lambda now, row, skills: now == step), solution)


# In the first row, in a later one, in the last episode of a skill, and in the next one.
@pytest.mark.parametrize("number", [1, 10, 13, 20])
def test_ctrl_c_within_a_row_loses_nothing(
    whole: eqrl.Skills[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    number: int,
) -> None:
    with monkeypatch.context() as patched:
        interrupt_in_piece(patched, number)
        solution = interrupted()
    assert training_of(solution).unfinished is not None
    eqrl.save_skills(tmp_path, solution)
    loaded = eqrl.load_skills(tmp_path, AGENT, ENV, TRAINER)
    assert same(loaded, solution)
    assert same(learn(initial=loaded), whole)


def test_ctrl_c_while_skills_show_what_they_do_loses_nothing(
    whole: eqrl.Skills[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    collect = eqrl._disk.learn.collect

    def interrupting(*args: Any, **options: Any) -> Any:
        interrupt()
        return collect(*args, **options)

    monkeypatch.setattr(eqrl._disk.learn, "collect", interrupting)
    solution = interrupted()
    monkeypatch.undo()
    assert int(training_of(solution).skill) == 1
    assert int(training_of(solution).counts.rows_written) == 0
    assert same(learn(initial=solution), whole)


# Compilation.


def test_skills_after_the_second_compile_nothing(recorded: Recorded) -> None:
    recorder, _, compiled = recorded
    at_skill = [recorder.num_compiled[ENDS.index(step)] for step in (8, 38)]
    assert 0 < at_skill[0] < at_skill[1]
    # The tests' search for keys that are used twice traces every use.
    later = compiled[at_skill[1] :]
    assert [event for event in later if not event.endswith(" bind")] == []


def test_more_skills_of_which_there_is_room_compile_copies_at_most(
    whole: eqrl.Skills[Any], compilations: list[str]
) -> None:
    first = learn(num_skills=2, max_skills=3)
    compilations.clear()
    assert same(learn(initial=first), whole)
    compiled = {event for event in compilations if "backend_compile" in event}
    assert {event.split()[-1] for event in compiled} <= {"jit(copy)"}


# Around any agent.


# `test_store.py` learns skills of a normalized SAC.
@pytest.mark.long
@pytest.mark.parametrize(
    "agent", [td3((8,)), taac((8,), window_length=2)], ids=["TD3", "TAAC"]
)
def test_any_agent_can_be_within(agent: eqrl.AbstractAgent[Any, Any, Any]) -> None:
    agent = eqrl.Intrinsic(agent, eqrl.Incremental())
    skills = learn(agent, num_skills=2, log_every=NUM_STEPS)
    assert int(skills.count) == 2
    for name, values in skills.metrics.items():
        if not name.startswith("episode"):
            assert np.all(np.isfinite(values)), name
    assert all_finite((skills.states, training_of(skills).trainer_state))


@pytest.mark.long
def test_three_skills_end_in_three_places() -> None:
    env = Point(max_steps=20)
    agent = eqrl.Intrinsic(
        sac(
            (64, 64),
            actor_lr=1e-3,
            critic_lr=1e-3,
            temperature_lr=1e-3,
            initial_temperature=0.1,
        ),
        eqrl.Incremental(),
    )
    skills = learn(
        agent,
        env,
        eqrl.Trainer(batch_size=128, capacity=2_000, warmup_steps=60),
        num_steps=600,
        num_collected_episodes=5,
        log_every=600,
    )
    ends = []
    for index in range(3):
        transitions, _ = eqrl.rollout(
            *eqrl.pick_skill(agent, skills, index),
            env,
            num_episodes=1,
            key=jr.key(index),
        )
        ends.append(np.asarray(transitions.next_state_descriptor)[0, -1])
    distances = [np.linalg.norm(a - b) for a, b in itertools.combinations(ends, 2)]
    assert np.mean(distances) >= 2.5
