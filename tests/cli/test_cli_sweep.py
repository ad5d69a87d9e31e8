"""Sweeps on the command line."""

import csv
import dataclasses
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eqrl
from eqrl._cli import main, sweep as sweep_command
from eqrl._population.prior import Setting
from eqrl._run.files import claim_folder
from eqrl._run.write import read_sweep
from eqrl._storage.files import locked
from tests.toy import closed_output, interrupt_in_piece


# As the runs of `test_cli.py`.
_TINY = [
    *("--env", "eqrl/Point", "--max-steps", "5", "--hidden-sizes", "8"),
    *("--num-steps", "60", "--log-every", "20"),
    *("--warmup-steps", "20", "--batch-size", "4", "--capacity", "64"),
]
_SWEEP = [
    *("sweep", "td3", *_TINY, "--seeds", "2", "--num-episodes", "2"),
    *("--env-option", "goal=(1,1)"),
    *("--grid", "actor-lr", "1e-3", "1e-2", "--members-at-once", "2"),
]


def test_a_sweep_is_interrupted_resumed_drawn_evaluated_and_overwritten(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "sweep"
    with monkeypatch.context() as patch:
        # Within the second setting.
        interrupt_in_piece(patch, 80)
        assert main([*_SWEEP, "--folder", str(folder)]) == 130
    assert f"`eqrl sweep --resume {folder}` resumes it" in capsys.readouterr().err
    assert len([*(folder / "trained").iterdir()]) == 1
    for words in (["evaluate"], ["render"]):
        assert main([*words, str(folder)]) == 2
        assert "has not ended" in capsys.readouterr().err
    # What has trained can be drawn.
    output = tmp_path / "curves.png"
    words = ["plot", str(folder), "--output", str(output)]
    assert main([*words, "--logarithmic", "y"]) == 2
    assert "no value of `episode_return` is positive" in capsys.readouterr().err
    centers: list[str] = []

    def draw(*given: Any, **options: Any) -> None:
        centers.append(options["center"])
        eqrl.draw_learning_curves(*given, **options)

    monkeypatch.setattr("eqrl._cli.sweep.draw_learning_curves", draw)
    assert main(words) == 0 and centers == ["iqm"]
    assert capsys.readouterr().out.split() == [
        str(output),
        str(tmp_path / "curves_scores.png"),
    ]
    assert main(["sweep", "--resume", str(folder)]) == 0
    resumed = capsys.readouterr().out
    assert re.search(r"\n\* +0\.0\d+ +0 ", resumed) and f"folder: {folder}" in resumed
    assert "actor_lr; num_episodes=2, center=iqm" in resumed
    assert "evaluation_episodes" not in resumed
    with pytest.raises(ValueError, match="of a sweep, not of a run"):
        eqrl.load_run(folder)
    table = (folder / "settings.csv").read_text()
    whole = tmp_path / "whole"

    def alone(*given: Any, **options: Any) -> Any:
        # From its first file on, no other process writes to the folder.
        with pytest.raises(ValueError, match="another process"), locked(whole):
            raise AssertionError
        return eqrl.sweep(*given, **options)

    with monkeypatch.context() as patch, closed_output():
        patch.setattr(sweep_command, "sweep", alone)
        assert main([*_SWEEP, "--folder", str(whole)]) == 0
    with monkeypatch.context() as patch:
        interrupt = lambda *given: signal.raise_signal(signal.SIGTERM)
        patch.setattr("eqrl._run.sweep.write_sweep", interrupt)
        assert main(["evaluate", str(whole)]) == 143
    assert (whole / "settings.csv").read_text() == table
    assert (whole / "sweep.png").exists() and (whole / "learning_curves.png").exists()
    capsys.readouterr()
    assert main(["evaluate", str(folder), "--num-episodes", "0"]) == 2
    out, error = capsys.readouterr()
    assert not out and "`num_episodes=0` must be an integer, at least 1" in error
    # What has ended is read without a lock.
    with locked(folder):
        assert main(["evaluate", str(folder), "--num-episodes", "3"]) == 0
    printed = capsys.readouterr().out
    assert "setting 1: actor_lr=0.01" in printed
    assert len(re.findall(r"^ +[01] +[01] .*\d$", printed, re.MULTILINE)) == 4
    with monkeypatch.context() as patch:
        whole_sweep = sweep_command._sweep
        patch.setattr(
            sweep_command,
            "_sweep",
            lambda *given: dataclasses.replace(
                found := whole_sweep(*given), scores=np.nan * found.scores
            ),
        )
        assert main(["evaluate", str(folder), "--num-episodes", "3"]) == 0
    assert capsys.readouterr().out.count("  diverged\n") == 4
    with open(folder / "settings.csv") as file:
        best = max(
            enumerate(csv.DictReader(file)), key=lambda row: float(row[1]["iqm"])
        )
    scores = read_sweep(folder).scores[best[0]]
    assert main(["render", str(folder)]) == 0
    picture = f"episode_of_setting_{best[0]}_seed_{scores.argmax()}.png"
    assert capsys.readouterr().out == f"{folder / picture}\n"
    exported = tmp_path / "new" / "best.policy"
    words = ["export", str(folder), "--output", str(exported), "--seed"]
    assert main([*words, str(scores.argmin())]) == 0
    assert f"{best[0]}, actor_lr={best[1]['actor_lr']}" in capsys.readouterr().err
    worse = exported.read_bytes()
    assert main(words[:-1]) == 0 and exported.read_bytes() != worse
    assert f"is its seed {scores.argmax()}" in capsys.readouterr().err
    assert main([*words, str(scores.argmax())]) == 0
    assert eqrl.load_policy(exported).act(np.zeros(4)).shape == (2,)
    capsys.readouterr()
    for wrong, message in (
        (["2"], "the seeds, 0 to 1"),
        (["0", "--skill", "0"], "of skills"),
    ):
        assert main([*words, *wrong]) == 2
        assert message in capsys.readouterr().err
    for words in (["train", "--resume"], ["rerun"]):
        assert main([*words, str(folder)]) == 2
        assert "is the folder of a sweep" in capsys.readouterr().err
    # A sweep without a reward says so.
    found = read_sweep(folder)
    zeros = [{"episode_return": 0 * x["episode_return"]} for x in found.metrics]
    empty = dataclasses.replace(found, scores=0 * found.scores, metrics=tuple(zeros))
    with monkeypatch.context() as patch:
        patch.setattr("eqrl._cli.sweep._sweep", lambda *_: empty)
        assert main(["sweep", "--resume", str(folder)]) == 0
    assert "Every return was 0" in capsys.readouterr().err
    assert main(["evaluate", str(folder), "--json"]) == 2
    assert f"this sweep, `{folder}/settings.csv`" in capsys.readouterr().err
    # A sweep that is refused overwrites nothing, however late its mistake is found.
    files = sorted(folder.rglob("*"))
    wrong = ["--grid", "num_envs", "7", "--overwrite"]
    assert main([*_SWEEP, "--folder", str(folder), *wrong]) == 2
    assert "`num_steps=60` must be a whole number" in capsys.readouterr().err
    assert sorted(folder.rglob("*")) == files
    # A sweep leaves nothing that another may not overwrite.
    with claim_folder(folder, overwrite=True):
        assert [path.name for path in folder.iterdir()] == [".lock"]


def test_a_name_is_that_of_the_option_of_the_agent_within_its_wrappers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    agents: list[Any] = []

    def refuse(settings: list[Setting], *args: object) -> None:
        agents.extend(setting.agent for setting in settings)
        raise ValueError("This is as far as it has to come.")

    monkeypatch.setattr("eqrl._cli.sweep.group_settings", refuse)
    agent = ["ppo", "--env", "eqrl/Point", "--num-steps", "2048", "--normalize"]
    assert main(["sweep", *agent, "--grid", "clip", "0.1", "0.3", "--random", "1"]) == 2
    assert all(isinstance(each, eqrl.Normalized) for each in agents)
    assert len({each.clip for each in agents}) == 1
    clips = [float(each.agent.clip) for each in agents]
    assert clips == pytest.approx([0.1, 0.3])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--num-episodes", "4"], r"Nothing varies.*`--grid NAME VALUE \.\.\.`"),
        (["--grid", "lr", "1"], "There is no hyperparameter `lr`"),
        (["--grid", "actor_lr", "-1"], r"`actor_lr=-1` is out of range"),
        (["--grid", "actor_lr", "1", "-1e-3"], r"`actor_lr=-0.001` is out of range"),
        (["--grid", "actor_lr"], "must be a list of values"),
        (
            ["--prior", "actor-lr", "uniform", "-1e-3", "1", "--random", "1"],
            "The prior of `actor_lr` is wrong: .*-0.001",
        ),
        (["--grid", "actor_lr", "1", "--devices", "2"], "`devices=2` must be 1"),
        (["--prior", "actor_lr", "uniform", "0", "1"], "by `--random DRAWS`"),
        (["--num-episodes", "0"], "`num_episodes=0` must be an integer, at least 1"),
        (["--random", "0"], "`random=0` must be an integer, at least 1"),
        (
            ["--prior", "x", "uniform", "1", "a"],
            "x uniform 1 a` must end in two numbers",
        ),
        (["--evaluate-every", "9"], "a sweep evaluates each seed after its training"),
        (["--evaluate_every=9"], "a sweep evaluates each seed after its training"),
        (["--evaluation-episodes=9"], "`--evaluation-episodes` is for `eqrl train`"),
        (["--random", "2", "--grid", "actor_lr", "1", "--tensorboard"], "leave it out"),
        (["--resume", "x", "--seeds", "4"], "must be left out"),
        (["--resume=x"], "holds no sweep of the command line"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(
    words: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    agent = [] if words[0].startswith("--resume") else ["td3", *_TINY]
    assert main(["sweep", *agent, *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(message, line)
    assert not [*tmp_path.rglob("*.json")]
