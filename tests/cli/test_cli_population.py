import csv
import dataclasses
import importlib
import json
import signal
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
import pytest

import eqrl
from eqrl._cli import main
from eqrl._cli.commands import Train, parse
from eqrl._cli.jobs import make_job
from eqrl._population.solution import ancestors_of
from eqrl._reporting.progress import PopulationProgressBar
from eqrl._run.config import Population, select_tuned, write_config
from eqrl._training.mesh import most_shares

from ..toy import interrupt_in_piece


_TINY = [
    *("--env", "eqrl/Point", "--max-steps", "5", "--hidden-sizes", "8"),
    *("--size", "3", "--num-generations", "3", "--steps-per-generation", "40"),
    *("--num-episodes", "2", "--num-replaced", "1", "--num-elite", "1"),
    *("--warmup-steps", "20", "--batch-size", "4", "--capacity", "64"),
]
_PRIORS = [
    *("--prior", "discount", "oneminus-uniform", "0.1", "0.5"),
    *("--prior", "critic_lr", "loguniform", "1e-4", "1e-2"),
]
# Every run here is of this agent and these sizes, so that it is compiled once.
_UNTUNED = ["pbt", "td3", "--normalize", *_TINY]
_PBT = [*_UNTUNED, *_PRIORS]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a population of td3 within `Normalized`."""
    folder = tmp_path_factory.mktemp("runs") / "x"
    assert main([*_PBT, "--folder", str(folder)]) == 0
    return folder


def _parsed(*args: str) -> Train:
    command = parse(["pbt", *args])
    assert isinstance(command, Train)
    return command


def _rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def _column(folder: Path, name: str) -> np.ndarray:
    """Of each generation and member."""
    values = [float(row[name]) for row in _rows(folder)]
    return np.reshape(values, (-1, 3))


def test_pbt_alone_is_sac_on_the_pendulum_with_three_priors() -> None:
    run = _parsed().run
    assert (run.agent, run.settings.env) == ("sac", "gymnax/Pendulum-v1")
    assert (run.schedule.size, run.schedule.num_generations) == (8, 10)
    assert [name for name, *_ in run.priors] == ["actor_lr", "critic_lr", "discount"]


def test_priors_and_options_are_taken() -> None:
    command = _parsed(
        *("td3", *_PRIORS, "--no-copy-replay", "--selection", "tournament"),
        *("--members", "together", "--devices", "2", "--policy-delay", "3"),
    )
    run = command.run
    assert run.priors == (
        ("discount", "oneminus-uniform", 0.1, 0.5),
        ("critic_lr", "loguniform", 1e-4, 1e-2),
    )
    assert not run.schedule.copy_replay
    assert run.schedule.selection == "tournament"
    agent = run.make_agent()
    pbt = run.schedule.make_pbt(agent, run.priors)
    assert pbt.scheme == eqrl.Tournament() and not pbt.copy_replay
    limited = dataclasses.replace(run.schedule, num_replaced=3)
    assert limited.make_pbt(agent, run.priors).scheme == eqrl.Tournament(3)
    assert (run.schedule.members, run.schedule.devices) == ("together", 2)
    assert run.agent_options["policy_delay"] == 3


def test_a_population_writes_all_its_files(trained: Path) -> None:
    assert {path.name for path in trained.iterdir()} == {
        ".lock",
        "checkpoints",
        "config.json",
        "evaluation.json",
        "family_tree.png",
        "hyperparameters.png",
        "learning_curve.png",
        "metrics.csv",
        "policy",
    }


def test_metrics_have_a_row_for_each_generation_and_member(trained: Path) -> None:
    rows = [(row["generation"], row["member"], row["step"]) for row in _rows(trained)]
    assert rows == [
        (str(generation), str(member), str(40 * (generation + 1)))
        for generation in range(3)
        for member in range(3)
    ]


def test_hyperparameters_have_the_names_that_were_given_and_their_values(
    trained: Path,
) -> None:
    discounts = _column(trained, "discount")
    assert np.all((discounts >= 0.5) & (discounts <= 0.9))
    rates = _column(trained, "critic_lr")
    assert np.all((rates >= 0.99e-4) & (rates <= 1.01e-2))
    assert len(np.unique(rates[0])) == 3


def test_parents_are_those_of_the_hyperparameters(trained: Path) -> None:
    parents = _column(trained, "parent").astype(int)
    np.testing.assert_array_equal(parents[0], [0, 1, 2])
    rates = _column(trained, "critic_lr")
    kept = parents == np.arange(3)
    np.testing.assert_array_equal(rates[1:][kept[1:]], rates[:-1][kept[1:]])
    assert ancestors_of(0, parents).shape == (3,)


def test_a_loaded_member_is_its_own_with_its_own_hyperparameters(trained: Path) -> None:
    states = []
    for index in range(3):
        agent, state, env = eqrl.load_run(trained, seed=index)
        assert isinstance(agent, eqrl.Normalized)
        assert isinstance(agent.agent, eqrl.TD3)
        expected = _column(trained, "discount")[-1, index]
        np.testing.assert_allclose(agent.agent.discount, expected, rtol=1e-6)
        leaves = jax.tree.leaves(eqx.filter(state, eqx.is_array))
        assert all(isinstance(leaf, jax.Array) for leaf in leaves)
        # As it was evaluated at the end of training.
        key = jr.fold_in(jr.split(jr.key(0))[1], index)
        evaluation = eqrl.evaluate(agent, state, env, num_episodes=1024, key=key)
        written = json.loads((trained / "evaluation.json").read_text())["returns"]
        np.testing.assert_allclose(evaluation.returns, written[index], rtol=1e-5)
        states.append(state)
    assert not eqx.tree_equal(states[0], states[1])
    with pytest.raises(ValueError, match=r"which has the members 0 to 2"):
        eqrl.load_run(trained, seed=3)


def test_the_evaluation_names_the_best(trained: Path) -> None:
    evaluation = json.loads((trained / "evaluation.json").read_text())
    assert np.shape(evaluation["returns"]) == (3, 1024)
    assert evaluation["step"] == 120
    means = _column(trained, "evaluation_return")[-1]
    assert evaluation["best"] == np.argmax(means)


def test_evaluate_lists_members_and_render_shows_the_best_by_default(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", str(trained)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-4:]] == ["member", "0", "1", "2"]
    evaluation = json.loads((trained / "evaluation.json").read_text())
    changed = trained / "evaluation.json"
    text = changed.read_text()
    del evaluation["digest"]
    changed.write_text(json.dumps({**evaluation, "best": 2}))
    assert main(["render", str(trained)]) == 0
    changed.write_text(text)
    path = trained / "episode_of_member_2.png"
    assert path.is_file()
    path.unlink()


_WRONG = [
    (["--prior", "lr", "uniform", "0", "1"], "There is no hyperparameter `lr`"),
    (
        ["--prior", "discount", "normal", "0", "1"],
        "must be one of 'uniform', 'loguniform'",
    ),
    (["--prior", "discount", "uniform", "1", "0"], "`discount` is wrong: `high=0`"),
    (["--prior", "discount", "uniform", "0", "2"], "`discount=2` is out of range"),
    (["--prior", "discount", "loguniform", "0", "1"], "`low=0` is out of range"),
    (["--prior", "actor_lr", "oneminus-uniform", "0", "2"], "`actor_lr=-1` is out"),
    ([*_PRIORS, *_PRIORS], "There are two priors of `discount`"),
    (["--num-elite", "3"], "`num_elite=3` and `num_replaced=1` are more than"),
    (["--devices", "64"], "`devices=64` must be from 1 to"),
    (["--devices", "0"], "`devices=0` must be from 1 to"),
    (["--warmup-steps", "99"], "`warmup_steps=99` is more than"),
    (["--num-episodes", "0"], "`num_episodes=0` must be an integer, at least 1"),
    (["--resample-probability", "2"], "`resample_probability=2` is out of range"),
    (["--env", "eqrl/Pont"], "There is no environment `eqrl/Pont`"),
]


def test_an_error_is_one_line_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "x"
    for args, message in _WRONG:
        assert main([*_UNTUNED, *args, "--folder", str(folder)]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith("eqrl: ")
        assert message in lines[0]
        assert not folder.exists()


def test_an_unknown_hyperparameter_is_answered_with_those_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main([*_UNTUNED, "--prior", "x", "uniform", "0", "1"])
    error = capsys.readouterr().err
    for name in ("actor_lr", "critic_lr", "discount", "policy_noise"):
        assert name in error
    assert "policy_delay" not in error


def test_a_name_is_found_however_deep() -> None:
    agent = eqrl.Normalized(eqrl.diayn(eqrl.SAC(discount=0.25), 4, lr=0.125))
    where, _ = select_tuned(
        agent, [("discount", "uniform", 0.1, 0.2), ("reward.lr", "uniform", 0.1, 0.2)]
    )
    assert where(agent) == (0.25, 0.125)


def test_default_priors_are_those_of_the_agent_within_a_reward() -> None:
    command = parse("pbt rnd --agent ppo --lr 0.25 --intrinsic-lr 0.125".split())
    assert isinstance(command, Train) and isinstance(command.run.schedule, Population)
    agent = command.run.make_agent()
    pbt = command.run.schedule.make_pbt(agent, command.run.priors)
    assert [name for name, *_ in command.run.priors] == ["lr", "discount"]
    assert pbt.where(agent)[0] == 0.25
    where, _ = select_tuned(agent, [("reward.lr", "uniform", 0.1, 0.2)])
    assert where(agent) == (0.125,)


def test_interrupted_populations_leave_what_was_reached_and_go_on(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "20260101-120000")
    writing = importlib.import_module("eqrl._run.write")
    monkeypatch.setattr(writing, "write_picture", lambda *args, **options: None)
    # Nothing pays here, so that the best would always be the first.
    ranking = importlib.import_module("eqrl._cli.jobs")
    monkeypatch.setattr(ranking, "winner_of", lambda *args: 1)
    monkeypatch.setattr(
        PopulationProgressBar,
        "__call__",
        lambda *_: signal.raise_signal(signal.SIGINT),
    )
    # Its pictures, which take most of the time, are those of other tests.
    assert main(_PBT) == 130
    name = "runs/pbt-td3-eqrl-Point-20260101-120000"
    assert len(_rows(tmp_path / name)) == 3
    evaluation = json.loads((tmp_path / name / "evaluation.json").read_text())
    assert evaluation["step"] == 40
    assert evaluation["best"] == 1
    assert eqrl.load_run(name, seed=2)[1] is not None
    printed = capsys.readouterr()
    assert "best member, 1: " in printed.out
    assert f"folder: {name}" in printed.out
    assert "Every return was 0, so there was no reward to learn from" in printed.err
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(writing, "write_picture", lambda *args, **options: None)
    # While there is no evaluation of the members that are, no best one is known.
    finishing = importlib.import_module("eqrl._cli.training")
    with monkeypatch.context() as patch:
        patch.setattr(finishing, "write_evaluation", lambda *args, **options: None)
        assert main(["pbt", "--resume", name]) == 0
    assert not (tmp_path / name / "evaluation.json").exists()
    assert main(["pbt", "--resume", name]) == 0
    with monkeypatch.context() as patch:
        interrupt_in_piece(patch, 3)
        assert main([*_PBT, "--folder", "begun"]) == 130
    assert len(_rows(tmp_path / "begun")) == 0
    assert main(["pbt", "--resume", "begun"]) == 0
    for folder in (name, "begun"):
        for file in ("metrics.csv", "evaluation.json"):
            written = (tmp_path / folder / file).read_bytes()
            assert written == (trained / file).read_bytes()


def test_members_that_diverged_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = ["--actor-lr", "1e30", "--critic-lr", "1e30", "--num-generations", "1"]
    args = [*_PRIORS[:5], *rates, "--folder", str(tmp_path / "x")]
    assert main([*_UNTUNED, *args]) == 1
    assert "was nan or infinite, so training stopped" in capsys.readouterr().err
    assert (tmp_path / "x" / "family_tree.png").is_file()


def test_a_run_continues_on_fewer_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_config(tmp_path, _parsed(*_TINY, "--devices", "64").run)
    command: Any = parse(["pbt", "--resume", str(tmp_path)])
    # The size is 3.
    fewer = most_shares(3, jax.device_count())
    job: Any = make_job(command)
    assert job.mesh.size == fewer and command.run.schedule.devices == 64
    line = f"This run began on 64 devices; here it uses {fewer}\n"
    assert capsys.readouterr().out == line


def test_devices_are_a_mesh() -> None:
    job: Any = make_job(_parsed(*_TINY, "--devices", "1"))
    assert job.mesh is not None
    assert (job.mesh.size, job.mesh.axis_names) == (1, ("population",))
    job.check()
    command = parse(["train", "--seeds", "2", "--devices", "1"])
    assert isinstance(command, Train)
    of_seeds: Any = make_job(command)
    assert of_seeds.mesh == job.mesh
