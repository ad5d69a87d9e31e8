"""Runs of papers are stopped and resumed, and their files are read as written."""

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqrl
from benchmarks.papers import diayn, disk, metra, page, pbt, run as papers_run, taac
from benchmarks.papers.diayn import minutes_of_training
from benchmarks.papers.page import center, final, training_return, value_after
from benchmarks.papers.paper import Experiment, Outcome, Record
from benchmarks.papers.papers import PAPERS, load
from benchmarks.papers.run import Job, read_run, run, write_run
from benchmarks.papers.skills import read_skills
from benchmarks.papers.training import Training
from eqrl._training.trainer import check_sizes

from .toy import transitions_of


TRAINING = Training(
    make_agent=lambda: eqrl.SAC(
        make_actor=eqrl.nn.Gaussian((8,)), make_critic=eqrl.nn.Critic((8,))
    ),
    make_trainer=lambda: eqrl.Trainer(batch_size=4, warmup_steps=4, capacity=100),
    num_steps=60,
    evaluate_every=20,
    num_episodes=2,
    log_every=10,
    checkpoint_seconds=1e-6,
    measure_end=lambda agent, state, env, key: {"temperature": state.log_temperature},
)


def experiment_of(training: Training) -> Experiment:
    return Experiment("gymnax/Pendulum-v1", {"SAC": training}, options={"max_steps": 5})


def test_the_center_of_a_swimmer_is_that_of_mujoco() -> None:
    env: Any = gymnasium.make("Swimmer-v5").unwrapped
    observation, _ = env.reset(seed=0)
    for stroke in ((1.0, -1.0), (-1.0, 0.5)):
        for _ in range(20):
            observation, *_ = env.step(np.array(stroke))
        # Otherwise the center is that before the last step.
        env.set_state(env.data.qpos, env.data.qvel)
        found = disk.center_of_swimmer(env.data.qpos[:2], observation)
        center = env.data.subtree_com[0, :2]
        np.testing.assert_allclose(found, center, atol=1e-5)
        assert np.linalg.norm(center - env.data.qpos[:2]) > 0.1


def test_a_run_that_was_stopped_ends_as_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papers_run, "DATA", tmp_path / "data")
    whole = TRAINING.run(experiment_of(TRAINING), 3, tmp_path / "whole", "whole")
    job = Job("toy", 0, "SAC", 3, tmp_path / "runs")
    checkpoints = job.folder / "toy" / "gymnax-Pendulum-v1" / "SAC-3" / "checkpoints"
    # Killed while it saved for the first time.
    (checkpoints / "10.orbax-checkpoint-tmp").mkdir(parents=True)
    (checkpoints.parent / "notes.json").write_text('[["earlier"], 9.0]')
    half = dataclasses.replace(TRAINING, num_steps=30)
    half.run(experiment_of(half), 3, checkpoints, "half")
    assert (checkpoints / "30").exists()
    run(job, experiment_of(TRAINING))
    record = read_run(tmp_path / "data" / "toy" / "gymnax-Pendulum-v1" / "SAC-3.csv")
    for name, values in whole.columns.items():
        np.testing.assert_allclose(record.columns[name], values, rtol=1e-5)
    assert list(record.columns["step"]) == [10, 20, 30, 40, 50, 60]
    assert len(record.evaluations) == 3
    assert record.facts["seed"] == "3"
    assert record.facts["eqrl"].startswith("earlier, ")
    assert float(record.facts["processor minutes"]) > 9
    temperature = float(record.facts["temperature"])
    assert temperature == pytest.approx(float(whole.facts["temperature"]), rel=1e-5)
    # Its folder is no longer needed.
    assert not checkpoints.parent.exists()


def test_figures_of_a_file_are_those_worked_out_by_hand(tmp_path: Path) -> None:
    nan = float("nan")
    columns: dict[str, Any] = {
        "step": [400, 1_000, 1_200, 2_000],
        # 40, none, 20 and 80 episodes; of the first of these no one is left.
        "episode_return": [5.0, nan, 1.0, 2.0],
        "episode_length": [10.0, nan, 10.0, 10.0],
        "evaluation_return": [nan, 3.0, nan, 4.0],
    }
    write_run(tmp_path / "run.csv", Outcome(columns), {"env": "eqrl/Point: one"})
    record = read_run(tmp_path / "run.csv")
    assert record.facts == {"env": "eqrl/Point: one"}
    assert training_return(record) == pytest.approx((80 * 2.0 + 20 * 1.0) / 100)
    assert final(record) == 3.5
    ends = [value_after(record, "evaluation_return", x) for x in (1_999, 2_000, 2_001)]
    np.testing.assert_array_equal(ends, [3, 4, nan])

    def run_of(seed: int, more: float) -> Record:
        facts = {"seed": str(seed), "processor minutes": "1"}
        returns = record.columns["evaluation_return"] + more
        return Record(facts, {**record.columns, "evaluation_return": returns})

    found = {
        "SAC": [run_of(0, 0), run_of(1, 10)],
        "TAAC": [run_of(1, 13), run_of(0, 1)],
    }
    ahead = "TAAC less SAC, mean of all evaluations, over 2 seeds: 2 (1 to 3)."
    assert f"\n{ahead}" in taac.report(found)
    assert center([1.0, 1.0]) == "1 (1 to 1)"


def test_skills_of_a_run_that_was_stopped_are_those_of_one_that_was_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(papers_run, "DATA", tmp_path / "data")
    monkeypatch.setattr(diayn, "CHECKPOINT_SECONDS", 1e-6)
    settings = diayn.Settings(
        num_steps=60,
        evaluate_every=20,
        num_episodes=2,
        num_envs=4,
        updates_per_iteration=1,
        capacity=40,
        num_skills=2,
        hidden_sizes=(8,),
        batch_size=4,
    )
    ours = diayn.Ours(settings)
    # Longer than the points of an episode in its file.
    experiment = Experiment("eqrl/Point", {"eqrl": ours}, options={"max_steps": 60})
    whole = ours.run(experiment, 3, tmp_path / "whole" / "checkpoints", "whole")
    job = Job("toy", 0, "eqrl", 3, tmp_path / "runs")
    path = job.path_of(experiment)
    checkpoints = job.folder / "toy" / "eqrl-Point" / "eqrl-3" / "checkpoints"
    half = diayn.Ours(dataclasses.replace(settings, num_steps=40))
    checkpoints.parent.mkdir(parents=True)
    half.run(experiment, 3, checkpoints, "half")
    run(job, experiment)
    record = read_run(path)
    for name in diayn.MEASURES:
        np.testing.assert_allclose(record.columns[name], whole.columns[name], rtol=1e-5)
    assert list(record.columns["step"]) == [20, 40, 60]
    assert minutes_of_training(record) > 0
    skills, played = read_skills(papers_run.skills_of(path)), whole.skills
    assert played is not None
    assert skills.mask.shape == (2, 2, 60)
    for step in (0, 3, 57, 59):
        np.testing.assert_allclose(
            skills.descriptors[:, :, step], played.descriptors[:, :, step], atol=1e-3
        )
    rows = papers_run.skills_of(path).read_text().splitlines()
    assert len(rows) == 1 + 2 * 2 * 21


def test_agents_and_trainers_of_every_paper_fit_each_other() -> None:
    for name in PAPERS:
        for experiment in load(name).experiments:
            assert {*experiment.published} <= {"", *experiment.contenders}
            assert {*experiment.named_only} <= experiment.contenders.keys()
            for contender in experiment.contenders.values():
                if isinstance(contender, Training):
                    agent, trainer = contender.make_agent(), contender.make_trainer()
                    check_sizes(trainer, sequence_length=agent.sequence_length)
                    trainer.check_num_steps(contender.num_steps)
                if isinstance(contender, metra.Unrewarded):
                    reward, prior, _ = contender.make()
                    known = isinstance(reward, eqrl.AbstractSkillReward)
                    assert (reward.skills if known else None) is prior


def test_what_runs_only_if_it_is_named() -> None:
    usual = {"TAAC", "SAC", "SAC-sampled"}
    pendulum = "envpool/InvertedDoublePendulum-v4"
    for envs, names, expected in (
        (None, None, [usual, usual, set[str]()]),
        (None, ["TAAC-1td"], [{"TAAC-1td"}, {"TAAC-1td"}, set[str]()]),
        ([pendulum], None, [set[str](), set[str](), usual | {"TAAC-1td"}]),
        ([pendulum], ["SAC"], [set[str](), set[str](), {"SAC"}]),
    ):
        assert [
            {name for name in x.contenders if x.is_asked(name, envs, names)}
            for x in taac.PAPER.experiments
        ] == expected


def test_names_that_begin_alike_and_missing_seeds_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "DATA", tmp_path)
    folder = tmp_path / "toy" / "eqrl-Point"
    for name, seed in (("A", 0), ("A", 2), ("A-8", 1)):
        outcome = Outcome({"step": [1], **{f"member_{i}": [seed] for i in range(8)}})
        write_run(folder / f"{name}-{seed}.csv", outcome, {"seed": str(seed)})
    seen: list[Any] = []
    experiment = Experiment(
        "eqrl/Point",
        dict.fromkeys(("A", "A-8"), TRAINING),
        report=lambda found: seen.append(found) or ["."],
        curves=(),
    )
    page._part("toy", experiment)
    ends = {name: pbt.ends(seen[0], name) for name in ("A", "A-8", "B")}
    assert {name: {*each} for name, each in ends.items()} == {
        "A": {"0", "2"},
        "A-8": {"1"},
        "B": set(),
    }
    assert list(ends["A"]["2"]) == [2.0] * 8


def test_cells_of_training_are_counted() -> None:
    visited, env = metra.Visited(), eqrl.envs.Point()
    cells = visited.init(env.spec, key=jr.key(0))
    assert cells.shape == (512, 512)
    transitions = transitions_of(
        jnp.zeros((2, 2)),
        action=jnp.zeros((2, 2)),
        # One of them is beyond the grid, on the side of negative numbers.
        state_descriptor=jnp.array([[0.1, -0.1], [-300.0, 0.0]]),
        next_state_descriptor=jnp.array([[-0.5, 0.2], [0.0, 0.0]]),
    )
    seen = np.argwhere(visited.observe(cells, transitions)) - 256
    assert seen.tolist() == [[-1, 0], [0, -1], [0, 0]]
