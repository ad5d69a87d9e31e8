"""Libraries of skills on disk."""

import shutil
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqrl
import eqrl._disk.library
from eqrl._disk.library import init_library
from eqrl._pytree.tree import digest_of
from eqrl.envs import Point

from ..agents_under_test import all_finite, sac
from ..toy import same
from .heading import (
    AGENT,
    ENV,
    TRAINER,
    Heading,
    Recorder,
    learn,
    training_of,
)


SAC_AGENT = eqrl.Intrinsic(eqrl.Normalized(sac((8,))), eqrl.Incremental())


def reload(
    directory: Path,
    skills: eqrl.Skills[Any],
    agent: eqrl.AbstractAgent[Any, Any, Any] = AGENT,
) -> eqrl.Skills[Any]:
    """What is read of what was written."""
    eqrl.save_skills(directory, skills)
    return eqrl.load_skills(directory, agent, ENV, TRAINER)


def numbers(folder: Path) -> list[str]:
    return sorted(item.name for item in folder.iterdir())


@pytest.fixture(scope="module")
def recorded() -> tuple[Recorder, eqrl.Skills[Any]]:
    """What the callback of one call was given, and what it gave."""
    recorder = Recorder()
    whole = learn(callback=recorder)
    return recorder, whole


@pytest.fixture(scope="module")
def library(
    recorded: tuple[Recorder, eqrl.Skills[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """A directory with three skills."""
    directory = tmp_path_factory.mktemp("library")
    eqrl.save_skills(directory, recorded[1])
    return directory


@pytest.mark.long
def test_skills_of_networks_and_optimizers_go_on_from_disk_exactly(
    tmp_path: Path,
) -> None:
    recorder = Recorder()
    whole = learn(SAC_AGENT, num_skills=2, callback=recorder)
    assert int(whole.count) == 2
    assert all_finite((whole.states, whole.training))
    for name, values in whole.metrics.items():
        if not name.startswith("episode"):
            assert np.all(np.isfinite(values)), name
    for row in (3, 6):
        # Within the first skill at the end of its steps, and within the second.
        directory = tmp_path / str(row)
        loaded = reload(directory, recorder.skills[row], SAC_AGENT)
        assert same(loaded, recorder.skills[row])
        assert same(learn(SAC_AGENT, num_skills=2, initial=loaded), whole)


@pytest.mark.parametrize("row", [0, 4, 5])
def test_skills_go_on_from_disk_exactly(
    tmp_path: Path, recorded: tuple[Recorder, eqrl.Skills[Any]], row: int
) -> None:
    # In a first skill, at its end, and right behind it.
    recorder, whole = recorded
    loaded = reload(tmp_path, recorder.skills[row])
    assert same(loaded, recorder.skills[row])
    assert same(learn(initial=loaded), whole)


def test_a_state_may_hold_keys() -> None:
    one, same_one, other = (digest_of({"key": jr.key(seed)}) for seed in (0, 0, 1))
    assert np.array_equal(one, same_one) and not np.array_equal(one, other)


def test_a_library_may_be_saved_before_there_is_a_row(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        # What the callback raises ends it all: nothing of this call is left.
        learn(callback=lambda *args: 1 / 0)
    skills = init_library(AGENT, ENV, TRAINER, capacity=3, key=jr.key(0))
    loaded = reload(tmp_path, skills)
    assert same(loaded, skills)
    assert loaded.metrics == {}


def test_rollouts_are_counted_up_to_the_largest_integer(
    recorded: tuple[Recorder, eqrl.Skills[Any]],
) -> None:
    # The first skill is rolled out for 10 steps, both for 20.
    far = eqx.tree_at(
        lambda skills: skills.training.collected_steps,
        recorded[0].skills[4],
        jnp.asarray(2**31 - 15, int),
    )
    counts = learn(initial=far).metrics["collected_steps"][5::5]
    assert counts.tolist() == [2**31 - 5, 2**31 - 1]


@pytest.mark.parametrize("max_skills", [1, 3], ids=["no room", "room"])
def test_a_skill_added_to_a_saved_library_is_that_of_one_call(
    tmp_path: Path, recorded: tuple[Recorder, eqrl.Skills[Any]], max_skills: int
) -> None:
    first = learn(num_skills=1, max_skills=3)
    if max_skills == 1:
        # As `max_skills=1` gives it, at which all programs would be compiled anew.
        past = training_of(first).trainer_state.agent.reward.past
        first = eqx.tree_at(
            lambda skills: (
                skills.states,
                skills.training.trainer_state.agent.reward.past.features,
            ),
            first,
            (jax.tree.map(lambda x: x[:1], first.states), past.features[:, : 2 * 5]),
        )
    loaded = reload(tmp_path, first)
    skills = learn(initial=loaded)
    assert same(skills, recorded[1])
    assert same(reload(tmp_path, skills), skills)


def test_a_library_grows_in_one_directory(
    tmp_path: Path, recorded: tuple[Recorder, eqrl.Skills[Any]]
) -> None:
    for skills in (*recorded[0].skills[::5], jax.device_get(recorded[1])):
        eqrl.save_skills(tmp_path, skills)
    assert numbers(tmp_path / "skills") == ["0", "1", "2"]
    assert len(numbers(tmp_path / "training")) == 1
    assert numbers(tmp_path) == ["skills", "training"]
    assert same(eqrl.load_skills(tmp_path, AGENT, ENV, TRAINER), recorded[1])


def test_a_skill_is_written_once(
    tmp_path: Path,
    recorded: tuple[Recorder, eqrl.Skills[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    eqrl.save_skills(tmp_path, recorded[0].skills[6])
    written = []

    def save(directory: Path, step: int, tree: Any) -> None:
        written.append((directory.name, step))
        eqrl.save(directory, step, tree)

    monkeypatch.setattr(eqrl._disk.library, "save", save)
    eqrl.save_skills(tmp_path, recorded[1])
    assert written == [("skills", 1), ("skills", 2), ("training", 1)]


def test_one_skill_can_be_loaded_alone(
    library: Path, recorded: tuple[Recorder, eqrl.Skills[Any]]
) -> None:
    for index in range(3):
        agent, state = eqrl.load_skill(library, AGENT, ENV, index)
        expected_agent, expected = eqrl.pick_skill(AGENT, recorded[1], index)
        assert agent is expected_agent
        assert same(state, expected)


def test_skills_can_be_loaded_without_a_trainer_to_use_them(
    library: Path, recorded: tuple[Recorder, eqrl.Skills[Any]]
) -> None:
    skills = eqrl.load_skills(library, AGENT, ENV)
    assert skills.training is None and skills.metrics == {}
    assert same(skills.states, recorded[1].states)
    state = eqrl.pick_skill(AGENT, skills, 2)[1]
    assert same(state, eqrl.pick_skill(AGENT, recorded[1], 2)[1])


@pytest.mark.parametrize(
    "world", [lambda skill: ENV, {0: ENV, 7: ENV}], ids=["function", "dictionary"]
)
def test_a_world_that_changes_will_do_to_load(
    library: Path, recorded: tuple[Recorder, eqrl.Skills[Any]], world: Any
) -> None:
    assert same(eqrl.load_skills(library, AGENT, world, TRAINER), recorded[1])


# Killed midway.


@pytest.mark.parametrize("num_saved", [0, 1], ids=["skill", "training"])
def test_a_library_stays_whole_where_saving_it_again_is_killed(
    tmp_path: Path,
    recorded: tuple[Recorder, eqrl.Skills[Any]],
    monkeypatch: pytest.MonkeyPatch,
    num_saved: int,
) -> None:
    recorder, whole = recorded
    eqrl.save_skills(tmp_path, recorder.skills[6])
    left = iter(range(num_saved))

    def killed(directory: Path, step: int, tree: Any) -> None:
        if next(left, None) is None:
            raise RuntimeError("killed")
        eqrl.save(directory, step, tree)

    monkeypatch.setattr(eqrl._disk.library, "save", killed)
    with pytest.raises(RuntimeError, match="killed"):
        eqrl.save_skills(tmp_path, recorder.skills[11])
    monkeypatch.undo()
    loaded = eqrl.load_skills(tmp_path, AGENT, ENV, TRAINER)
    assert same(loaded, recorder.skills[6])
    # Learning goes on from there, and saves as it goes on.
    again = learn(
        initial=loaded,
        callback=lambda step, row, skills: eqrl.save_skills(tmp_path, skills),
        log_every=1_000,
    )
    assert same(again.states, whole.states)
    assert same(reload(tmp_path, again), again)


def second_skill_changed(skills: eqrl.Skills[Any]) -> eqrl.Skills[Any]:
    def changed(leaf: Any) -> jax.Array:
        leaf = np.array(leaf)
        leaf[1] += 1
        return jnp.asarray(leaf)

    states = jax.tree.map(changed, skills.states)
    return eqx.tree_at(lambda skills: skills.states, skills, states)


def test_what_a_killed_call_left_gives_way_to_another_skill(
    tmp_path: Path,
    recorded: tuple[Recorder, eqrl.Skills[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorder, _ = recorded
    eqrl.save_skills(tmp_path, recorder.skills[6])

    def killed(directory: Path, step: int, tree: Any) -> None:
        if directory.name == "training":
            raise RuntimeError("killed")
        eqrl.save(directory, step, tree)

    with monkeypatch.context() as patch:
        patch.setattr(eqrl._disk.library, "save", killed)
        with pytest.raises(RuntimeError, match="killed"):
            eqrl.save_skills(tmp_path, recorder.skills[11])
    assert numbers(tmp_path / "skills") == ["0", "1"]
    other = second_skill_changed(recorder.skills[11])
    assert same(reload(tmp_path, other).states, other.states)


# What was damaged, and what is not of the library.


@pytest.mark.parametrize("number", ["0", "1", "5"])
def test_a_folder_that_the_library_did_not_write_is_never_deleted(
    tmp_path: Path, recorded: tuple[Recorder, eqrl.Skills[Any]], number: str
) -> None:
    precious = tmp_path / "skills" / number / "precious.txt"
    precious.parent.mkdir(parents=True)
    precious.touch()
    with pytest.raises(ValueError, match=f"/skills/{number}` is not of the library"):
        eqrl.save_skills(tmp_path, recorded[0].skills[5])
    assert precious.is_file()
    assert not (tmp_path / "training").exists()


def test_a_library_that_lost_its_training_is_not_written_over(
    library: Path, tmp_path: Path, recorded: tuple[Recorder, eqrl.Skills[Any]]
) -> None:
    copied = shutil.copytree(library, tmp_path / "copied")
    shutil.rmtree(copied / "training")
    with pytest.raises(ValueError, match=r"/skills/1` is not of the library"):
        eqrl.save_skills(copied, second_skill_changed(recorded[1]))
    assert numbers(copied / "skills") == ["0", "1", "2"]
    # The very library may be saved there again.
    assert same(reload(copied, recorded[1]), recorded[1])


def test_skills_that_changed_places_are_noticed(library: Path, tmp_path: Path) -> None:
    copied = shutil.copytree(library, tmp_path / "copied")
    (copied / "skills" / "0").rename(tmp_path / "0")
    (copied / "skills" / "1").rename(copied / "skills" / "0")
    (tmp_path / "0").rename(copied / "skills" / "1")
    with pytest.raises(ValueError, match=r"/skills/0` is damaged: it is not the skill"):
        eqrl.load_skill(copied, AGENT, ENV, 0)


@pytest.mark.parametrize("name", ["training", "skills"])
def test_damaged_files_of_a_library_are_named(
    library: Path, tmp_path: Path, name: str
) -> None:
    folder = shutil.copytree(library, tmp_path / "copied") / name / "0"
    record = folder / "record" / "metadata"
    text = record.read_text()
    for damaged in (text[:-20], text.replace("32", "16", 1)):
        assert damaged != text
        record.write_text(damaged)
        with pytest.raises(ValueError) as raised:
            eqrl.load_skills(tmp_path / "copied", AGENT, ENV, TRAINER)
        assert str(raised.value).startswith(f"`{record}` ")
        assert "\n" not in str(raised.value)
    record.write_text(text)
    shutil.rmtree(folder / "arrays")
    with pytest.raises(ValueError, match=rf"/{name}/0/arrays` is damaged"):
        eqrl.load_skills(tmp_path / "copied", AGENT, ENV, TRAINER)


# What does not fit.


def test_another_library_is_refused(
    library: Path, recorded: tuple[Recorder, eqrl.Skills[Any]]
) -> None:
    other = learn(key=jr.key(1))
    with pytest.raises(ValueError, match=r"holds 3 skills.*another library"):
        eqrl.save_skills(library, other)
    with pytest.raises(ValueError, match=r"first of the 1 in.*another library"):
        eqrl.save_skills(library, recorded[0].skills[5])
    assert same(eqrl.load_skills(library, AGENT, ENV, TRAINER), recorded[1])


def test_skills_that_are_only_to_be_used_are_not_saved(
    library: Path, tmp_path: Path
) -> None:
    skills = eqrl.load_skills(library, AGENT, ENV)
    with pytest.raises(ValueError, match=r"`skills\.training` is None"):
        eqrl.save_skills(tmp_path, skills)


def test_skills_that_are_only_to_be_used_are_not_gone_on_with(library: Path) -> None:
    skills = eqrl.load_skills(library, AGENT, ENV)
    with pytest.raises(ValueError, match="load them with the trainer"):
        learn(num_skills=4, initial=skills)


@pytest.mark.parametrize("name", ["empty", "missing", "other"])
def test_a_directory_without_skills_is_refused(
    library: Path, tmp_path: Path, name: str
) -> None:
    (tmp_path / "empty").mkdir()
    # Checkpoints, but not of a library.
    shutil.copytree(library / "skills", tmp_path / "other" / "training")
    with pytest.raises(ValueError, match="no skills in"):
        eqrl.load_skills(tmp_path / name, AGENT, ENV, TRAINER)


@pytest.mark.parametrize("index", [-1, 3])
def test_a_skill_that_is_not_there_is_refused(library: Path, index: int) -> None:
    with pytest.raises(ValueError, match=rf"Skill {index} .*holds 3 skills"):
        eqrl.load_skill(library, AGENT, ENV, index)


def test_skills_of_another_agent_are_refused(library: Path) -> None:
    with pytest.raises(ValueError, match="does not fit"):
        eqrl.load_skills(library, SAC_AGENT, ENV, TRAINER)


def test_skills_of_another_trainer_are_refused(library: Path) -> None:
    trainer = eqrl.Trainer(num_envs=2, batch_size=4, capacity=40, warmup_steps=6)
    with pytest.raises(ValueError, match="does not fit"):
        eqrl.load_skills(library, AGENT, ENV, trainer)


def test_an_agent_without_an_incremental_reward_is_refused(library: Path) -> None:
    for agent in (Heading(), eqrl.diayn(Heading(), 3)):
        with pytest.raises(ValueError, match="`agent` is "):
            eqrl.load_skills(library, agent, ENV, TRAINER)  # pyright: ignore[reportArgumentType]
        with pytest.raises(ValueError, match="`agent` is "):
            eqrl.load_skill(library, agent, ENV, 0)  # pyright: ignore[reportArgumentType]


def test_loaded_skills_can_be_evaluated_elsewhere(library: Path) -> None:
    agent, state = eqrl.load_skill(library, AGENT, ENV, 1)
    evaluation = eqrl.evaluate(
        agent, state, Point(max_steps=3), num_episodes=2, key=jr.key(0)
    )
    assert evaluation.lengths.tolist() == [3, 3]
    assert all(isinstance(x, jax.Array) for x in jax.tree.leaves(state))
