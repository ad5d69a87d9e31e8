"""Skills one after another on the command line."""

import contextlib
import csv
import dataclasses
import importlib
import io
import json
import shutil
import signal
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqrl
from eqrl._cli import jobs as _jobs, main
from eqrl._cli.commands import Place, Train, parse
from eqrl._reporting.progress import SkillProgressBar
from eqrl._run.files import claim_folder
from eqrl._training.train import jit_init
from tests.disk.heading import ENV, NUM_STEPS, TRAINER, Heading


# The agent, the environment and the sizes of `heading`, whose programs are compiled.
_AGENT = ["--agent", "tests.disk.heading:Heading"]
_DISK = [
    *("disk", *_AGENT, "--max-steps", "5", "--num-envs", "2", "--batch-size", "4"),
    *("--capacity", "24", "--warmup-steps", "6", "--num-steps", str(NUM_STEPS)),
    *("--num-skills", "3", "--num-collected-episodes", "2", "--log-every", "8"),
    *("--evaluate-every", "50", "--evaluation-episodes", "3"),
]
_LEARNER = eqrl.Intrinsic(Heading(), eqrl.Incremental())
_FILES = {
    ".lock",
    "config.json",
    "evaluation.json",
    "learning_curve.png",
    "library",
    "metrics.csv",
    "skills.json",
    "skills.png",
}


_WRITING: Any = importlib.import_module("eqrl._run.write")
_CALLED: dict[str, Any] = {}
_DRAWN: list[Any] = []


def _begin(agent: Any, env: Any, trainer: Any, **options: Any) -> eqrl.Skills[Any]:
    """Three skills as they begin, which were reported in three rows."""
    callbacks = options.pop("callback")
    _CALLED.update(options)
    state, counts = jit_init(trainer, agent, env, key=jr.key(0))
    states = eqx.filter_vmap(lambda key: agent.agent.init(env.spec, key=key))(
        jr.split(options["key"], 3)
    )
    number = lambda x: jnp.asarray(x, int)
    metrics = {
        "step": np.array([30, 60, 90]),
        "intrinsic_reward": np.array([1.0, 2.0, 3.0]),
        "skill": np.array([0, 1, 2]),
    }
    reached = [
        eqrl.Skills(
            states=states,
            count=number(min(skill, 3)),
            training=eqrl.SkillTraining(
                trainer_state=state,
                counts=counts,
                skill=number(min(skill, 2)),
                earlier_steps=number(30 * skill),
                collected_steps=number(0),
                world=number(0),
            ),
            metrics=metrics,
        )
        for skill in range(4)
    ]
    for skill in range(3):
        row = {name: np.asarray(values[skill]) for name, values in metrics.items()}
        for each in callbacks:
            each(30 * (skill + 1), row, reached[skill])
    return reached[3]


def _draw_nothing(path: Path, trajectories: object, **options: object) -> None:
    _DRAWN.append(trajectories)
    path.touch()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of three skills."""
    folder = tmp_path_factory.mktemp("runs") / "x"
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(io.StringIO()) as printed,
    ):
        patch.setattr(_jobs, "learn_skills", _begin)
        patch.setattr(_WRITING, "draw_skills", _draw_nothing)
        assert main([*_DISK, "--tensorboard", "--folder", str(folder)]) == 0
    out = printed.getvalue()
    assert "skill 3/3  78/78 steps" in out
    assert "reward 3.00" in out
    assert "skills learned: 3" in out
    return folder


@pytest.fixture(scope="module")
def library(trained: Path) -> eqrl.Skills[Any]:
    return eqrl.load_skills(trained / "library", _LEARNER, ENV, TRAINER)


def _parsed(*args: str) -> Any:
    command = parse(["disk", *args])
    assert isinstance(command, Train)
    return command.run


def test_disk_alone_learns_five_skills_of_the_point_with_sac() -> None:
    run = _parsed()
    assert (run.agent, run.settings.env) == ("sac", "eqrl/Point")
    assert run.schedule.num_skills == 5
    assert run.name == "disk-sac-eqrl-Point"
    assert run.title == "DISk with SAC on eqrl/Point"
    agent = run.make_agent()
    assert isinstance(agent.agent, eqrl.SAC)
    assert agent.reward == eqrl.Incremental()


def test_options_reach_the_reward_and_the_agent_within() -> None:
    run = _parsed(
        *("--agent", "td3", "--policy-delay", "3", "--normalize", "--k", "7"),
        *("--mode", "pseudocode", "--feature", "delta", "--alpha", "0.5"),
        *("--descriptor", "observation", "--per-timestep", "False"),
        *("--replay", "random_half"),
    )
    agent = run.make_agent()
    assert agent.agent.agent.policy_delay == 3
    reward = agent.reward
    assert (reward.mode, reward.k, reward.feature) == ("pseudocode", 7, "delta")
    assert (reward.descriptor, reward.per_timestep) == ("observation", False)
    assert (float(reward.alpha), reward.num_samples) == (0.5, 512)
    assert run.schedule.replay == "random_half"


def test_skills_are_written_with_all_that_is_said_of_them(trained: Path) -> None:
    assert {path.name for path in trained.iterdir()} == {*_FILES, "tensorboard"}
    with open(trained / "metrics.csv", newline="") as file:
        rows = [list(row.values()) for row in csv.DictReader(file)]
    assert rows == [["0", "30", "1.0"], ["1", "60", "2.0"], ["2", "90", "3.0"]]
    written = json.loads((trained / "skills.json").read_text())
    assert written["environment_returns"] == [0, 0, 0]
    assert np.shape(written["ends"]) == (3, 2)
    # All eight episodes of a skill begin at the origin.
    begun = _DRAWN[0].first_descriptors
    np.testing.assert_array_equal(begun, np.zeros((3, 8, 2)))
    # Three points, of which each stands for all episodes of a skill.
    ends = np.array(written["ends"])
    apart = np.linalg.norm(ends[:, None] - ends[None], axis=-1)
    mean = apart.sum() / 6
    far = apart + np.diag([np.inf] * 3)
    for name, expected in (
        ("pairwise_hausdorff", mean),
        ("union_hausdorff", apart.max(axis=1).mean()),
        ("nearest_distance", far.min(axis=1).mean()),
    ):
        np.testing.assert_allclose(written["distances"][name], expected, 1e-4)
    evaluation = json.loads((trained / "evaluation.json").read_text())
    assert np.shape(evaluation["returns"]) == (3, 1024)


def test_all_that_the_command_says_is_done(trained: Path) -> None:
    del trained
    key, evaluations = _CALLED.pop("key"), _CALLED.pop("evaluations")
    assert _CALLED == {
        "num_skills": 3,
        "num_steps": NUM_STEPS,
        "num_collected_episodes": 2,
        "replay": None,
        "initial": None,
        "log_every": 8,
    }
    assert key == jr.split(jr.key(0))[0]
    assert (evaluations._every, evaluations._num_episodes) == (50, 3)
    assert eqx.tree_equal(evaluations._agent, _LEARNER)
    # As different as that of the evaluations at the end.
    assert evaluations._key not in (jr.key(0), *jr.split(jr.key(0)))


def test_a_skill_is_loaded_by_its_number(
    trained: Path, library: eqrl.Skills[Any]
) -> None:
    assert int(library.count) == 3
    agent, state, env = eqrl.load_run(trained, 1, agent_type=Heading)
    assert (type(agent), env) == (Heading, ENV)
    assert eqx.tree_equal(state, eqrl.pick_skill(_LEARNER, library, 1)[1])
    with pytest.raises(ValueError, match=r"holds 3 skills, 0 to 2"):
        eqrl.load_run(trained, 3, agent_type=Heading)


def test_evaluate_prints_a_line_for_each_skill_that_there_is(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(trained), *_AGENT]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["skill", "0", "1", "2"]


def test_render_shows_one_skill(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = []
    monkeypatch.setattr(
        "eqrl._cli.finished.render",
        lambda agent, state, env, path, **options: shown.append(
            (state, path, options["title"])
        ),
    )
    render = ["render", str(trained), *_AGENT]
    assert main([*render, "--skill", "2"]) == 0
    ((state, path, title),) = shown
    assert title == "DISk with Heading on eqrl/Point, skill 2"
    assert eqx.tree_equal(state, eqrl.load_run(trained, 2, agent_type=Heading)[1])
    assert path == trained / "episode_of_skill_2.png"
    assert main([*render, "--seed", "2"]) == 2
    assert "choose one by `--skill`" in capsys.readouterr().err


def test_such_a_folder_may_be_overwritten(trained: Path, tmp_path: Path) -> None:
    folder = tmp_path / "x"
    shutil.copytree(trained, folder)
    (folder / "episode_of_skill_2.png").touch()
    with claim_folder(folder, overwrite=True):
        assert not (folder / "library").exists()
        assert not (folder / "episode_of_skill_2.png").exists()


def test_it_is_repeated_from_its_config(trained: Path) -> None:
    command: Any = parse(["rerun", str(trained), *_AGENT])
    assert command == Train(_parsed(*_DISK[1:]), Place(None), False)


@pytest.mark.parametrize(
    ("error", "code", "count"),
    [(eqrl.TrainingInterrupted, 130, 0), (eqrl.NonFiniteError, 1, 1)],
)
def test_what_was_reached_is_kept(
    error: Any,
    code: int,
    count: int,
    library: eqrl.Skills[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(_WRITING, "draw_skills", _draw_nothing)
    metrics = library.metrics if count > 0 else {}
    reached = dataclasses.replace(library, count=jnp.asarray(count), metrics=metrics)

    def stop(*args: Any, **options: Any) -> None:
        raise error(reached) if code == 130 else error(7, reached, "an action")

    monkeypatch.setattr(_jobs, "learn_skills", stop)
    folder = tmp_path / "x"
    assert main([*_DISK, "--folder", str(folder)]) == code
    out, err = capsys.readouterr()
    assert "mean return" not in out
    kept = eqrl.load_skills(folder / "library", _LEARNER, ENV, TRAINER)
    assert (int(kept.count), kept.training is None) == (count, False)
    assert (folder / "metrics.csv").is_file() == (count > 0)
    if count == 0:
        assert "No skill was learned to its end, so none is evaluated." in err
        assert main(["evaluate", str(folder), *_AGENT]) == 2
        assert "There is no skill in" in capsys.readouterr().err
    else:
        assert {path.name for path in folder.iterdir()} == _FILES
        written = json.loads((folder / "skills.json").read_text())
        assert written["distances"] == {}


def test_a_checkpoint_that_cannot_be_written_does_not_end_those_after_it(
    library: eqrl.Skills[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[object] = []

    def save(folder: object, skills: object) -> None:
        tried.append(skills)
        if len(tried) == 1:
            raise OSError("the disk is full")

    monkeypatch.setattr(_jobs, "learn_skills", _begin)
    monkeypatch.setattr(_jobs, "save_skills", save)
    command: Any = parse(_DISK)
    _jobs.make_job(command).train(tmp_path, None, 1)
    assert len(tried) == 3
    assert (tmp_path / "metrics.csv").is_file()


@pytest.mark.long
def test_skills_are_learned_and_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    show = SkillProgressBar.__call__

    def interrupt(self: Any, step: int, metrics: Any, skills: Any) -> None:
        show(self, step, metrics, skills)
        if step == 46:
            signal.raise_signal(signal.SIGINT)

    assert main([*_DISK, "--folder", str(tmp_path / "x")]) == 0
    monkeypatch.setattr(SkillProgressBar, "__call__", interrupt)
    assert main([*_DISK, "--folder", str(tmp_path / "y")]) == 130
    first, second = (
        eqrl.load_skills(tmp_path / name / "library", _LEARNER, ENV, TRAINER)
        for name in "xy"
    )
    assert (int(first.count), int(second.count)) == (3, 1)
    whole, begun = (eqrl.pick_skill(_LEARNER, each, 0)[1] for each in (first, second))
    assert eqx.tree_equal(whole, begun)
    # A row at every 8 steps of a skill, at its 26, and with the episode, at 30.
    assert list(first.metrics["step"][:7]) == [8, 16, 24, 26, 30, 38, 46]
    np.testing.assert_array_equal(second.metrics["step"], first.metrics["step"][:7])


_WRONG = [
    (
        ["--agent", "a2c"],
        "`agent='a2c'` must be one of 'csf', 'discrete-sac', 'dqn', 'ppo'",
    ),
    (["--agent", "csf"], "`csf` learns from no reward but its own"),
    (["--num-skills", "0"], "`num_skills=0` must be an integer, at least 1"),
    (["--k", "0"], "`k=0` must be an integer, at least 1"),
    (
        ["--agent", "taac", "--replay", "random_half"],
        "`replay='random_half'` leaves no consecutive steps",
    ),
]


def test_an_error_is_one_line_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "x"
    for args, message in _WRONG:
        assert main([*_DISK, *args, "--folder", str(folder)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
        assert not folder.exists()
