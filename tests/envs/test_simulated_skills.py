"""Skills of simulators outside JAX against the simulators, stepped by hand."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqrl
from eqrl.envs import ActionRepeat

from ..disk.heading import Heading, HeadingState
from ..simulators import Repeated, check_rows, groups_of, interacted, seeds as seeds
from ..toy import Compass, same
from .test_by_hand import LIMIT, ByHand, Rover, make


AGENT = eqrl.Intrinsic(Heading(), eqrl.Incremental())
TRAINER = eqrl.Trainer(num_envs=2, batch_size=4, capacity=120, warmup_steps=6)


def learn(env: Any, num_skills: int, **options: Any) -> eqrl.Skills[Any]:
    given: dict[str, Any] = {
        "num_skills": num_skills,
        "max_skills": 2,
        "num_steps": 26,
        "num_collected_episodes": 2,
        "replay": "keep",
        "key": jr.key(0),
    }
    return eqrl.learn_skills(AGENT, env, TRAINER, **given | options)


def rover(seed: int) -> ByHand:
    return ByHand("Rover", seed)


def check_stored(
    skills: eqrl.Skills[Any], begin: int, end: int, seeds: list[int]
) -> None:
    """Checks rows of the replay, of which the last may be cut short."""
    assert skills.training is not None
    data = skills.training.trainer_state.replay.data
    rows = jax.tree.map(lambda x: x[:, begin : end - 1], data)
    check_rows(rows, seeds, rover)


def num_rows(skills: eqrl.Skills[Any]) -> int:
    assert skills.training is not None
    counts = skills.training.counts
    return int(counts.rows_kept + counts.rows_written)


def test_skills_are_learned_one_after_another(
    seeds: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = make("Rover")
    first = learn(env, 1)
    middle = num_rows(first)
    eqrl.save_skills(tmp_path, first)
    whole = learn(env, 2, initial=first)
    # The simulators of the rollout and those of the first skill are closed.
    assert len(list(groups_of(env))) == 1
    check_stored(whole, 0, middle, seeds[0])
    check_stored(whole, middle, num_rows(whole), seeds[2])
    other = make("Rover")
    loaded = eqrl.load_skills(tmp_path, AGENT, other, TRAINER)
    assert same(learn(other, 2, initial=loaded).states, whole.states)
    # Saved in its last row, a skill has ended but is not counted yet.
    in_row = tmp_path / "in_row"
    keep = lambda step, metrics, skills: eqrl.save_skills(in_row, skills)
    learn(make("Rover"), 1, callback=keep, log_every=26)
    other = make("Rover")
    loaded = eqrl.load_skills(in_row, AGENT, other, TRAINER)
    assert int(loaded.count) == 0
    assert same(learn(other, 2, initial=loaded).states, whole.states)
    # What was learned before a rollout that fails is kept.
    monkeypatch.setattr(Rover, "fault", ("raise", Rover.num_steps + 3))
    with pytest.raises(eqrl.SimulatorError, match="on fire") as raised:
        learn(env, 2, initial=first)
    assert same(learn(env, 2, initial=raised.value.solution).states, whole.states)
    monkeypatch.setattr(Rover, "fault", ("raise", Rover.num_steps + 3))
    with pytest.raises(eqrl.SimulatorError, match="on fire"):
        eqrl.play_skills(AGENT, whole, env, num_episodes=2, key=jr.key(0))


def test_skills_go_on_in_the_simulators_of_another_environment(
    seeds: list[list[int]],
) -> None:
    env, other = make("Rover"), make("Rover")
    skills = learn({0: env, 16: other}, 1)
    check_stored(skills, 0, 8, seeds[0])
    check_stored(skills, 8, num_rows(skills), seeds[1])
    assert (len(list(groups_of(env))), len(list(groups_of(other)))) == (0, 1)


def test_skills_are_evaluated(
    seeds: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    env, agent = make("Rover"), eqrl.diayn(Compass(), eqrl.SphereSkills())
    skills = jnp.array([[1.0, 0.0], [-0.6, 0.8]])
    state = agent.init(env.spec, key=jr.key(0))

    def evaluate() -> eqrl.SkillEvaluation:
        return eqrl.evaluate_skills(
            agent, state, env, num_episodes=3, skills=skills, key=jr.key(1)
        )

    evaluation = evaluate()
    for index, seed in enumerate(seeds[0]):
        simulator, total, ends = rover(seed), np.float32(0), (False, False)
        _, place = simulator.begin()
        while not any(ends):
            _, reward, *ends, place = simulator.step(np.asarray(skills[index // 3]))
            total += np.float32(reward)
        place_of = (index // 3, index % 3)
        last = evaluation.lengths[place_of] - 1
        assert np.allclose(evaluation.returns[place_of], total, rtol=1e-6)
        assert np.allclose(evaluation.descriptors[place_of][last], place)
    assert not list(groups_of(env))
    monkeypatch.setattr(Rover, "fault", ("raise", Rover.num_steps + 3))
    with pytest.raises(eqrl.SimulatorError, match="on fire"):
        evaluate()


class Chosen:
    """A rover by hand, which is told which of two directions to take."""

    def __init__(self, seed: int, directions: Any) -> None:
        self._directions = np.asarray(directions)
        self._rover = Repeated(rover(seed), 2, limit=LIMIT)

    def begin(self) -> tuple[Any, Any]:
        return self._rover.begin()

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, Any]:
        return self._rover.step(self._directions[np.argmax(action)])


def test_skills_are_chosen(seeds: list[list[int]]) -> None:
    directions = jnp.array([[0.5, -0.5], [-0.25, 1.0]])
    states = HeadingState(directions, jnp.zeros(2, int), jnp.zeros(2, int))
    env = eqrl.SkillChoice(
        make("Rover"), Heading(), states, num_skills=None, num_steps=2
    )
    rows = interacted(env, num_envs=3, num_steps=40, key=jr.key(5))
    check_rows(rows, seeds[0], lambda seed: Chosen(seed, directions))
    assert np.any(rows.terminated) and np.any(rows.truncated)
    # An episode has at most three choices.
    twice = ActionRepeat(env, 2)
    rows = interacted(twice, num_envs=3, num_steps=40, key=jr.key(6))
    by_hand = lambda seed: Repeated(Chosen(seed, directions), 2, limit=3)
    check_rows(rows, seeds[1], by_hand)
