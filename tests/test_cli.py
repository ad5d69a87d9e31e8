import dataclasses
import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import eqrl
from eqrl._cli import main
from eqrl._cli.commands import Evaluate, Render, Train, parse
from eqrl._cli.options import argument_texts, options_of
from eqrl._reporting.progress import ProgressBar


# Few steps of an environment that compiles fast.
_TINY = [
    *("--env", "eqrl/Point", "--max-steps", "5", "--hidden-sizes", "8"),
    *("--num-steps", "60", "--log-every", "20"),
    *("--warmup-steps", "20", "--batch-size", "4", "--capacity", "64"),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with two seeds."""
    folder = tmp_path_factory.mktemp("runs") / "x"
    options = ["--seeds", "2", "--tensorboard", "--folder", str(folder)]
    assert main(["train", "td3", *_TINY, *options]) == 0
    return folder


def _parsed_run(*args: str) -> Any:
    command = parse(["train", *args])
    assert isinstance(command, Train)
    return command.run


def test_train_alone_is_sac_on_the_pendulum() -> None:
    run = _parsed_run()
    assert (run.agent, run.settings.env) == ("sac", "gymnax/Pendulum-v1")


def test_a_leading_option_means_sac() -> None:
    assert _parsed_run("--env", "eqrl/Point").agent == "sac"


def test_an_agent_is_chosen_by_its_name() -> None:
    assert _parsed_run("td3", "--env", "eqrl/Point").agent == "td3"


def test_options_reach_agent_trainer_and_settings() -> None:
    run = _parsed_run(
        *("sac", "--actor-lr", "0.5", "--no-learn-temperature", "--num-envs", "3"),
        *("--hidden-sizes", "7", "9", "--normalize", "--target-entropy", "-2.5"),
    )
    assert run.agent_options["actor_lr"] == 0.5
    assert run.agent_options["learn_temperature"] is False
    assert run.agent_options["target_entropy"] == -2.5
    assert run.trainer_options["num_envs"] == 3
    assert run.settings.hidden_sizes == (7, 9)
    assert run.settings.normalize


def test_evaluate_takes_a_folder_and_options() -> None:
    command = parse(["evaluate", "x", "--num-episodes", "3", "--mode", "sample"])
    assert command == Evaluate(Path("x"), num_episodes=3, mode="sample", seed=0)


def test_render_takes_a_folder_and_options() -> None:
    command = parse(["render", "x", "--seed", "2", "--output", "y.gif"])
    assert command == Render(Path("x"), seed=2, output=Path("y.gif"))


@pytest.mark.parametrize("agent", [eqrl.SAC, eqrl.TD3, eqrl.TAAC])
def test_all_but_functions_and_tuples_of_an_agent_is_an_option(agent: type) -> None:
    names = {field.name for field in dataclasses.fields(options_of(agent, {}))}
    others = {"make_actor", "make_critic", "make_optimizer", "td_loss"}
    others |= {"trajectory", "reward_weights", "advantage_clip"}
    assert names == {field.name for field in dataclasses.fields(agent)} - others


@pytest.mark.parametrize("module", [eqrl.SAC, eqrl.TD3, eqrl.TAAC, eqrl.Trainer])
def test_defaults_of_options_are_those_of_the_module(module: type) -> None:
    options = dataclasses.asdict(options_of(module, {})())
    made = module()
    for name, value in options.items():
        given = getattr(made, name)
        is_number = isinstance(value, (int, float))
        assert np.isclose(value, given) if is_number else value == given, name


def test_defaults_of_options_can_be_replaced() -> None:
    assert options_of(eqrl.SAC, {"discount": 0.5})().discount == 0.5


@pytest.mark.parametrize("module", [eqrl.SAC, eqrl.TD3, eqrl.TAAC, eqrl.Trainer])
def test_every_option_has_a_help_text(module: type) -> None:
    fields = dataclasses.fields(options_of(module, {}))
    assert {field.name for field in fields} <= argument_texts(module).keys()


def test_a_help_text_goes_on_over_lines_and_loses_its_backticks() -> None:
    assert argument_texts(eqrl.SAC)["target_entropy"] == (
        "In nats, summed over the dimensions of the action; None is minus the number "
        "of dimensions, as in the paper."
    )


def test_help_shows_the_texts(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "td3", "--help"])
    assert stop.value.code == 0
    assert "actions are in [-1, 1]" in capsys.readouterr().out


def test_a_run_writes_all_its_files(trained: Path) -> None:
    assert {path.name for path in trained.iterdir()} == {
        "config.json",
        "evaluation.json",
        "learning_curve.png",
        "metrics.csv",
        "policy",
        "tensorboard",
    }


def test_a_run_is_evaluated_with_64_episodes_of_each_seed(trained: Path) -> None:
    evaluation = json.loads((trained / "evaluation.json").read_text())
    assert np.shape(evaluation["returns"]) == (2, 64)


def test_the_same_seed_trains_the_same(tmp_path: Path) -> None:
    for name in ("a", "b"):
        main(["train", *_TINY, "--seed", "3", "--folder", str(tmp_path / name)])
    texts = [(tmp_path / name / "metrics.csv").read_text() for name in ("a", "b")]
    assert texts[0] == texts[1]


def test_another_seed_trains_otherwise(tmp_path: Path) -> None:
    for seed in ("3", "4"):
        main(["train", *_TINY, "--seed", seed, "--folder", str(tmp_path / seed)])
    texts = [(tmp_path / seed / "metrics.csv").read_text() for seed in ("3", "4")]
    assert texts[0] != texts[1]


def test_without_a_folder_runs_is_where_to_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "20260101-120000")
    for _ in range(2):
        main(["train", *_TINY])
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        "sac-eqrl-Point-20260101-120000",
        "sac-eqrl-Point-20260101-120000-2",
    }


def test_evaluate_prints_a_line_for_each_seed(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["evaluate", str(trained), "--num-episodes", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == ["seed", "0", "1"]


def test_render_writes_into_the_folder(trained: Path) -> None:
    assert main(["render", str(trained), "--seed", "1"]) == 0
    path = trained / "episode_of_seed_1.png"
    assert path.is_file()
    path.unlink()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train", "--env", "eqrl/Pont"], "There is no environment `eqrl/Pont`"),
        (["train", *_TINY, "--num-envs", "7"], "`num_steps=60` must be a whole number"),
        (["train", *_TINY, "--discount", "2"], "`discount=2` is out of range"),
        (["train", *_TINY, "--log-every", "0"], "`log_every=0` must be at least 1"),
        (["train", *_TINY, "--warmup-steps", "99"], "`warmup_steps=99` is more than"),
        (["evaluate", "/nowhere"], "`/nowhere` is not the folder of a run"),
        (["evaluate", "/no\nwhere"], "`/no where` is not the folder of a run"),
        (["render", "/nowhere"], "`/nowhere` is not the folder of a run"),
    ],
)
def test_an_error_is_one_line(
    args: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(args) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"eqrl: {message}")


@pytest.mark.parametrize(
    "wrong", [("--warmup-steps", "99"), ("--num-envs", "7"), ("--log-every", "0")]
)
def test_an_error_writes_nothing(tmp_path: Path, wrong: tuple[str, str]) -> None:
    folder = tmp_path / "x"
    main(["train", *_TINY, *wrong, "--folder", str(folder)])
    assert not folder.exists()


def test_a_run_is_never_written_over(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *_TINY, "--folder", str(trained)]) == 2
    assert "is there already and not empty" in capsys.readouterr().err


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """Exit code and folder of a run in which Ctrl-C was pressed after the first row."""
    folder = tmp_path_factory.mktemp("runs") / "x"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            ProgressBar,
            "__call__",
            lambda self, step, metrics, state: signal.raise_signal(signal.SIGINT),
        )
        return main(["train", *_TINY, "--folder", str(folder)]), folder


def test_ctrl_c_exits_with_130(interrupted: tuple[int, Path]) -> None:
    assert interrupted[0] == 130


def test_ctrl_c_leaves_a_complete_folder(interrupted: tuple[int, Path]) -> None:
    assert {path.name for path in interrupted[1].iterdir()} == {
        "config.json",
        "evaluation.json",
        "learning_curve.png",
        "metrics.csv",
        "policy",
    }


def test_ctrl_c_leaves_what_was_reached(interrupted: tuple[int, Path]) -> None:
    evaluation = json.loads((interrupted[1] / "evaluation.json").read_text())
    assert evaluation["step"] == 20


def test_ctrl_c_while_nothing_is_reached_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("eqrl._cli.train.train", interrupt)
    assert main(["train", *_TINY, "--folder", str(tmp_path / "x")]) == 130


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, Path]:
    """Exit code and folder of a run whose agent came to give nan."""
    folder = tmp_path_factory.mktemp("runs") / "x"
    rates = ["--actor-lr", "1e30", "--critic-lr", "1e30"]
    return main(["train", *_TINY, *rates, "--folder", str(folder)]), folder


def test_nan_exits_with_1(diverged: tuple[int, Path]) -> None:
    assert diverged[0] == 1


def test_nan_leaves_a_complete_folder(diverged: tuple[int, Path]) -> None:
    assert {path.name for path in diverged[1].iterdir()} == {
        "config.json",
        "evaluation.json",
        "learning_curve.png",
        "metrics.csv",
        "policy",
    }


def test_nan_in_some_seeds_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from eqrl._cli import train as _train

    solve = _train.train_seeds

    def lose_seed_1(*args: Any, **options: Any) -> Any:
        solution = solve(*args, **options)
        solution.metrics["nonfinite"][-1, 1] = 1
        return solution

    monkeypatch.setattr(_train, "train_seeds", lose_seed_1)
    main(["train", "td3", *_TINY, "--seeds", "2", "--folder", str(tmp_path / "x")])
    assert "nan or infinite in the seeds 1," in capsys.readouterr().err


def test_python_m_eqrl_is_the_command_line() -> None:
    process = subprocess.run(
        [sys.executable, "-m", "eqrl", "evaluate", "/nowhere"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert process.returncode == 2
    assert process.stderr.startswith("eqrl: `/nowhere` is not")


def test_importing_eqrl_imports_nothing_heavy() -> None:
    heavy = ["tyro", "rich", "matplotlib", "orbax", "tensorboardX", "brax", "gymnax"]
    code = f"import sys, eqrl; print([name for name in {heavy} if name in sys.modules])"
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout == "[]\n"
