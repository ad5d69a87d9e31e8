import contextlib
import dataclasses
import importlib
import inspect
import io
import json
import re
import runpy
import shutil
import signal
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import PRNGKeyArray

import eqrl
from eqrl._cli import finished, jobs as _jobs, main, training as _training
from eqrl._cli.arguments import argument_texts, options_of
from eqrl._cli.commands import Evaluate, Place, Render, Train, parse
from eqrl._pytree.fields import check_fields, hyperparameter
from eqrl._reporting.progress import ProgressBar
from eqrl._reporting.statistics import rounded
from eqrl._run.agents import AGENTS
from eqrl._run.config import write_config
from eqrl._run.files import claim_folder
from eqrl._run.write import GrowingMetrics, read_metrics
from eqrl._types.custom_types import FloatLike
from tests.toy import closed_output


# Few steps of an environment that compiles fast; every run here is of these sizes and
# of two seeds, so that it is compiled once.
_TINY = [
    *("--env", "eqrl/Point", "--max-steps", "5", "--hidden-sizes", "8"),
    *("--num-steps", "60", "--log-every", "20"),
    *("--warmup-steps", "20", "--batch-size", "4", "--capacity", "64"),
]
_SINGLE = ["train", "td3", *_TINY]
# The rows end at 20, 40 and 60.
_EVALUATED = ["--evaluate-every", "40", "--evaluation-episodes", "3"]
_TRAIN = [*_SINGLE, "--seeds", "2", *_EVALUATED]
_FILES = {
    ".lock",
    "checkpoints",
    "config.json",
    "evaluation.json",
    "learning_curve.png",
    "metrics.csv",
    "policy",
}


@pytest.fixture(scope="module", autouse=True)
def random_returns() -> Iterator[None]:
    """Adds to each return what depends on the key alone: the reward here is 0."""

    def evaluate(*args: Any, key: PRNGKeyArray, **options: Any) -> eqrl.Evaluation:
        evaluation = eqrl.evaluate(*args, key=key, **options)
        noise = 100.0 * jr.normal(key, evaluation.returns.shape)
        return eqx.tree_at(lambda x: x.returns, evaluation, evaluation.returns + noise)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("eqrl._cli.finished.evaluate", evaluate)
        yield


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with two seeds; what it printed is beside it."""
    folder = tmp_path_factory.mktemp("runs") / "x"
    options = ["--tensorboard", "--folder", str(folder)]
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        assert main([*_TRAIN, *options]) == 0
    folder.with_name("printed").write_text(printed.getvalue())
    return folder


def _parsed_run(*args: str) -> Any:
    command = parse(["train", *args])
    assert isinstance(command, Train)
    return command.run


def test_every_agent_that_is_public_has_a_name() -> None:
    public = {
        each
        for each in vars(eqrl).values()
        if isinstance(each, type)
        and issubclass(each, eqrl.AbstractAgent)
        and not issubclass(each, eqrl.AbstractWrapper)
        and not inspect.isabstract(each)
    }
    assert {named.agent_type for named in AGENTS.values()} == public
    assert AGENTS["discrete-sac"].agent_type is eqrl.DiscreteSAC


def test_steps_are_rounded_up_to_whole_iterations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = _parsed_run("td3", "--env", "eqrl/Point", "--num-steps", "60")
    assert run.schedule.num_steps == 60
    assert capsys.readouterr().out == ""
    rollout = ("--num-envs", "4", "--steps-per-iteration", "128")
    cartpole = ("ppo", "--env", "gymnax/CartPole-v1", *rollout)
    run = _parsed_run(*cartpole, "--num-steps", "60000")
    assert run.schedule.num_steps == run.agent_options["anneal_steps"] == 60_416
    printed = capsys.readouterr().out
    assert "`num_steps=60000` is rounded up to 60416" in printed
    assert "by default the preset of ppo" in printed and "anneal_steps" not in printed
    command: Any = parse(["pbt", *cartpole, "--steps-per-generation", "513"])
    assert command.run.schedule.steps_per_generation == 1_024


def test_nothing_or_a_leading_option_means_sac_and_a_name_the_agent() -> None:
    run = _parsed_run()
    assert (run.agent, run.settings.env) == ("sac", "gymnax/Pendulum-v1")
    assert _parsed_run("--env", "eqrl/Point").agent == "sac"
    assert _parsed_run("td3", "--env", "eqrl/Point").agent == "td3"


def test_options_reach_agent_trainer_and_settings() -> None:
    run = _parsed_run(
        *("sac", "--actor-lr", "0.5", "--no-learn-temperature", "--num-envs", "3"),
        *("--hidden-sizes", "7", "9", "--normalize", "--target-entropy", "-2.5"),
        *("--normalize-clip", "5", "--normalize-reward", "--precision", "bfloat16"),
    )
    assert run.agent_options["actor_lr"] == 0.5
    assert run.agent_options["learn_temperature"] is False
    assert run.agent_options["target_entropy"] == -2.5
    assert run.trainer_options["num_envs"] == 3
    assert run.settings.hidden_sizes == (7, 9)
    assert run.settings.normalize and run.settings.normalize_clip == 5
    agent = run.make_agent()
    assert isinstance(agent, eqrl.Normalized) and agent.clip == 5
    assert isinstance(agent.agent, eqrl.NormalizedReward)
    inner = eqrl.unwrap(agent, eqrl.SAC)
    assert inner.make_actor == eqrl.nn.Gaussian((7, 9), precision="bfloat16")
    assert inner.make_critic == eqrl.nn.Critic((7, 9), precision="bfloat16")


def test_rewards_are_normalized_only_where_they_are_learned_from() -> None:
    for words in (["train", "apt"], ["train", "csf"], ["disk"]):
        with pytest.raises(ValueError, match="`normalize_reward`"):
            parse([*words, "--normalize-reward"])
    assert _parsed_run("smerl", "--normalize-reward").settings.normalize_reward


def test_a_convolution_reads_the_image_of_an_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    breakout = ("ppo", "--env", "gymnax/Breakout-MinAtar", "--convolution")
    agent: Any = _parsed_run(*breakout, "minatar").make_agent()
    encoder = eqrl.nn.Convolution((10, 10, 4))
    assert agent.make_actor == eqrl.nn.Choice(encoder=encoder)
    assert agent.make_critic == eqrl.nn.Value(encoder=encoder)
    # The filters of Atari's are larger than these images.
    with pytest.raises(ValueError, match="not smaller"):
        _parsed_run(*breakout, "atari").make_agent()
    run = _parsed_run("dqn", "--env", "gymnax/CartPole-v1", "--convolution", "minatar")
    with pytest.raises(ValueError, match="CartPole-v1` has none; leave it out"):
        run.make_agent()
    spec = eqrl.EnvSpec(
        84 * 84 * 4, action=eqrl.spaces.Discrete(2), observation_shape=(84, 84, 4)
    )
    monkeypatch.setattr(type(run), "make_env", lambda self: SimpleNamespace(spec=spec))
    sizes = ((32, 64, 64), (8, 4, 3), (4, 2, 1))
    atari: Any = _parsed_run(*breakout, "atari").make_agent()
    assert atari.make_critic.encoder == eqrl.nn.Convolution((84, 84, 4), *sizes)


def test_a_rollout_decides_the_trainer_of_an_agent_that_learns_on_policy() -> None:
    sizes = ("--num-envs", "3", "--steps-per-iteration", "16", "--hidden-sizes", "8")
    run = _parsed_run("ppo", "--env", "eqrl/Point", "--lr", "0.5", *sizes)
    assert run.make_trainer() == eqrl.Trainer.on_policy(num_envs=3, num_steps=16)
    agent = run.make_agent()
    # Of actor and critic, whichever kind of actions there are.
    assert agent.make_actor == eqrl.nn.Normal((8,))
    assert agent.make_critic == eqrl.nn.Value((8,))
    assert float(agent.lr) == 0.5
    run = _parsed_run("ppo", "--env", "gymnax/Catch-bsuite", *sizes)
    assert run.make_agent().make_actor == eqrl.nn.Choice((8,))
    own = ("--agent", "docs.examples.a2c:A2C", "--env", "gymnax/Catch-bsuite")
    trainer = eqrl.Trainer.on_policy(num_envs=3, num_steps=16)
    assert _parsed_run(*own, *sizes).make_trainer() == trainer


@pytest.mark.parametrize("agent", ["ppo", "pqn"])
@pytest.mark.parametrize("command", ["train", "train diayn", "pbt", "pbt diayn"])
def test_defaults_of_rollouts_fit_each_other(command: str, agent: str) -> None:
    named = [agent] if "diayn" not in command else ["--agent", agent]
    run: Any = parse([*command.split(), *named, "--env", "eqrl/Point"])
    run = run.run
    trainer = run.make_trainer()
    steps = getattr(run.schedule, "steps_per_generation", None)
    trainer.check_num_steps(run.schedule.num_steps if steps is None else steps)
    assert trainer.capacity % run.agent_options["num_minibatches"] == 0


def test_what_a_rollout_does_not_have_is_no_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        parse(["train", "ppo", "--warmup-steps", "100"])
    assert "--warmup-steps" in capsys.readouterr().err


def test_evaluate_and_render_take_a_folder_and_options() -> None:
    command = parse(["evaluate", "x", "--num-episodes", "3", "--mode", "sample"])
    assert command == Evaluate(Path("x"), num_episodes=3, mode="sample", seed=0)
    command = parse(["render", "x", "--seed", "2", "--output", "y.gif"])
    assert command == Render(Path("x"), seed=2, output=Path("y.gif"))


@pytest.mark.parametrize("agent", [eqrl.SAC, eqrl.TD3, eqrl.TAAC])
def test_all_but_functions_and_tuples_of_an_agent_is_an_option(agent: type) -> None:
    names = {field.name for field in dataclasses.fields(options_of(agent))}
    others = {"make_actor", "make_critic", "make_optimizer", "td_loss"}
    others |= {"trajectory", "reward_weights", "advantage_clip"}
    assert names == {field.name for field in dataclasses.fields(agent)} - others


@pytest.mark.parametrize("module", [eqrl.SAC, eqrl.TD3, eqrl.TAAC, eqrl.Trainer])
def test_options_have_a_help_text_and_the_defaults_of_the_module(
    module: type[eqx.Module],
) -> None:
    options = dataclasses.asdict(options_of(module)())
    made = module()
    for name, value in options.items():
        given = getattr(made, name)
        is_number = isinstance(value, (int, float))
        assert np.isclose(value, given) if is_number else value == given, name
    assert options.keys() <= argument_texts(module).keys()


def test_defaults_of_options_can_be_replaced() -> None:
    assert options_of(eqrl.SAC, discount=0.5)().discount == 0.5


def test_a_help_text_goes_on_over_lines_and_loses_its_backticks() -> None:
    assert argument_texts(eqrl.SAC)["target_entropy"] == (
        "In nats, summed over the dimensions of the action, at most log 2 for each "
        "unless the temperature is fixed; None is minus the number of dimensions, as "
        "in the paper."
    )
    # A constructor that is written out is indented.
    assert argument_texts(eqrl.Incremental)["beta"] == "Weight of diversity."


class _Ranged(eqx.Module):
    """Hyperparameters with ranges."""

    any: FloatLike = hyperparameter(0.0)
    rate: FloatLike = hyperparameter(0.1, low=0, low_open=True)
    share: FloatLike = hyperparameter(0.5, low=0, high=1)

    def __check_init__(self) -> None:
        check_fields(self)


_Ranged.__init__.__doc__ = """**Arguments:**

- `any`: of any size.
- `rate`: of learning.
- `share`: in [0, 1], inclusive.
"""


def test_a_help_text_shows_the_range_unless_it_says_it_itself() -> None:
    texts = {}
    for field in dataclasses.fields(options_of(_Ranged)):
        annotation: Any = field.type
        texts[field.name] = annotation.__metadata__[0].help
    assert texts == {
        "any": "Of any size.",
        "rate": "Of learning. In (0, inf).",
        "share": "In [0, 1], inclusive.",
    }


def test_help_shows_the_texts(capsys: pytest.CaptureFixture[str]) -> None:
    own = "docs.examples.redq:REDQ"
    begin = " ".join((eqrl.diayn.__doc__ or "").split()[:3])
    for args, text in (
        (["train", "td3", "--help"], "actions are in [-1, 1]"),
        (["train", "--help"], begin),
        (["train", "--help"], "`eqrl train --resume FOLDER` resumes"),
        (["train", "--help"], "(default: sac)"),
        (["train", "ppo", "--help"], "--resume"),
        (["pbt", "--help"], "`eqrl pbt --resume FOLDER` resumes"),
        (["pbt", "diayn", "--help"], "--resume"),
        (["disk", "--help"], "`eqrl disk --resume FOLDER` resumes"),
        (["disk", "--help"], "--resume {None}|PATH"),
        (["pbt", "--agent", own, "--help"], f"(default: {own})"),
        (["plot", "--help"], "or that of a sweep. (required)"),
        (["--help"], "sweep Train many settings"),
    ):
        with pytest.raises(SystemExit) as stop:
            main(args)
        assert stop.value.code == 0
        assert text in " ".join(capsys.readouterr().out.split())


def test_an_unknown_option_is_compared_with_those_of_this_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for args, near in ((["train", "td3"], ["--log-every"]), (["evaluate", "x"], [])):
        with pytest.raises(SystemExit) as stop:
            main([*args, "--log-evry", "3"])
        assert stop.value.code == 2
        said = capsys.readouterr().err
        assert f"eqrl {args[0]}" in said
        assert re.findall(r"--log-every\b", said) == near


def test_the_version_is_printed_and_is_that_of_the_package(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["--version"])
    assert stop.value.code == 0
    assert capsys.readouterr().out == f"eqrl {eqrl.__version__}\n"
    root = Path(__file__).parents[2]
    settings = tomllib.loads((root / "pyproject.toml").read_text())
    assert settings["project"]["dynamic"] == ["version"]
    file = root / settings["tool"]["hatch"]["version"]["path"]
    assert f'__version__ = "{eqrl.__version__}"' in file.read_text().splitlines()


def test_a_run_writes_all_its_files_and_evaluates_1024_episodes_of_each_seed(
    trained: Path,
) -> None:
    assert {path.name for path in trained.iterdir()} == {*_FILES, "tensorboard"}
    evaluation = json.loads((trained / "evaluation.json").read_text())
    assert np.shape(evaluation["returns"]) == (2, 1024)
    metrics = read_metrics(trained)
    np.testing.assert_array_equal(
        metrics["evaluation_length"], [[np.nan] * 2, [5.0] * 2, [np.nan] * 2]
    )
    assert np.all(metrics["evaluation_return"][1] == 0)


def test_a_seed_decides_a_run_and_without_a_folder_it_is_in_runs(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_that_the_seed_decides(_TRAIN, trained, tmp_path, monkeypatch)


@pytest.mark.long
def test_a_seed_decides_a_run_of_one_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "x"
    assert main([*_SINGLE, "--folder", str(folder)]) == 0
    _check_that_the_seed_decides(_SINGLE, folder, tmp_path, monkeypatch)


@pytest.mark.parametrize(
    "args",
    [
        ["train", "td3", "--actor-lr", "0.01", "--hidden-sizes", "7", "9"],
        ["train", "diayn", "--skills", "sphere", "--num-skills", "2"],
        ["pbt", "sac", "--prior", "actor_lr", "uniform", "0.001", "0.1", "--normalize"],
    ],
)
def test_a_run_is_repeated_from_its_config(args: list[str], tmp_path: Path) -> None:
    command: Any = parse(args)
    write_config(tmp_path, command.run)
    folder = tmp_path / "again"
    words = ["rerun", str(tmp_path), "--folder", str(folder)]
    again = parse(words)
    assert again == dataclasses.replace(command, place=Place(folder))
    if args[0] == "pbt":
        with pytest.raises(ValueError, match="`--tensorboard` is for runs of seeds"):
            parse([*words, "--tensorboard"])


def _check_that_the_seed_decides(
    args: list[str], trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of runs of seed 0, as that in the folder `trained` is, and 4."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("time.strftime", lambda form: "20260101-120000")
    monkeypatch.setattr("eqrl._run.write.draw_learning_curve", _draw_nothing)
    folder = Path("runs/td3-eqrl-Point-20260101-120000")
    taken = folder.with_name(f"{folder.name}-2")
    (taken / "something").mkdir(parents=True)
    assert main(["rerun", str(trained)]) == 0
    assert main([*args, "--seed", "4"]) == 0
    folders = [folder, folder.with_name(f"{folder.name}-3")]
    assert sorted(Path("runs").iterdir()) == sorted([*folders, taken])
    texts = [(path / "metrics.csv").read_text() for path in (trained, *folders)]
    assert texts[0] == texts[1] != texts[2]
    # Whatever the seed, the episodes at the end are the same.
    evaluations = [
        json.loads((path / "evaluation.json").read_text())["returns"]
        for path in (trained, *folders)
    ]
    assert evaluations[0] == evaluations[1] == evaluations[2]


def _draw_nothing(path: Path, *args: object, **options: object) -> None:
    path.touch()


def test_what_each_seed_reached_is_printed_with_its_standard_error(
    trained: Path,
) -> None:
    returns = np.array(json.loads((trained / "evaluation.json").read_text())["returns"])
    means = returns.mean(axis=1)
    errors = np.sqrt(np.sum((returns - means[:, None]) ** 2, axis=1) / 1023 / 1024)
    one, other = (
        f"{rounded(mean)} ± {rounded(error)}"
        for mean, error in zip(means, errors, strict=True)
    )
    printed = trained.with_name("printed").read_text()
    begin = "mean return of 1024 greedy episodes, ± its standard error over their"
    assert f"{begin} starting states: {one}, {other}\n" in printed
    spread = abs(means[1] - means[0]) / np.sqrt(2)
    over = f"over 2 seeds: {rounded(means.mean())}, standard deviation "
    assert f"{over}{rounded(spread)}\n" in printed


def test_evaluate_prints_a_line_for_each_seed(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["evaluate", str(trained)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "returns of 1024 episodes, greedy:"
    assert [line.split()[0] for line in lines[1:4]] == ["seed", "0", "1"]
    # By default these are the episodes with which training ended.
    returns = np.array(json.loads((trained / "evaluation.json").read_text())["returns"])
    for line, of_seed in zip(lines[2:4], returns, strict=True):
        numbers = (of_seed.mean(), of_seed.std(), of_seed.min(), of_seed.max())
        assert line.split()[1:] == [f"{number:.2f}" for number in numbers]
    # Their key is not that of the training, the first of the two.
    _, key = jr.split(jr.key(0))
    for seed, of_seed in enumerate(returns):
        noise = 100.0 * jr.normal(jr.fold_in(key, seed), (1024,))
        np.testing.assert_allclose(of_seed, noise, rtol=1e-5)
    # Others have another number or seed.
    given = ("--num-episodes", "64", "--seed", "1")
    assert main(["evaluate", str(trained), *given]) == 0
    others = capsys.readouterr().out.splitlines()
    assert others[0] == "returns of 64 episodes, greedy:"
    assert all(x != y for x, y in zip(lines[2:], others[2:], strict=True))
    # Of two seeds the interval goes from one to the other.
    low, high = np.sort(returns.mean(axis=1))
    over = f"over 2 seeds: {returns.mean():.2f}, 95 % bootstrap interval {low:.2f} to "
    assert lines[4:] == [f"{over}{high:.2f}"]


def test_a_seed_without_a_finite_return_is_left_out_and_said(
    trained: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    returns = iter([[np.nan, 1.0], [1.0, 3.0], [4.0, 4.0]])
    ones = jnp.ones(2, int)
    made = lambda *_, **__: eqrl.Evaluation(jnp.array(next(returns)), ones, None)
    monkeypatch.setattr(finished, "evaluate", made)
    monkeypatch.setattr(finished, "count_policies", lambda *_: 3)
    load = lambda folder, _, **__: eqrl.load_run(folder)
    monkeypatch.setattr(finished, "load_run", load)
    assert main(["evaluate", str(trained)]) == 0
    over = "over 2 of 3 seeds: 3.00, 95 % bootstrap interval 2.00 to 4.00"
    assert capsys.readouterr().out.splitlines()[-1] == over


def test_policies_that_are_older_than_the_checkpoints_are_named(trained: Path) -> None:
    later = trained / "checkpoints" / "99999"
    (later / "x").mkdir(parents=True)
    message = r"those of step 60, .* reach step 99999; `eqrl train --resume"
    try:
        with pytest.warns(UserWarning, match=message):
            eqrl.load_run(trained)
    finally:
        shutil.rmtree(later)
    eqrl.load_run(trained)


def test_an_output_that_is_not_unicode_ends_no_command(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(printed, "ascii"))
    assert main(["plot", str(trained), "--output", str(tmp_path / "é.png")]) == 0
    sys.stdout.flush()
    assert printed.getvalue().endswith(b"?.png\n")


def test_evaluate_plays_in_the_mode_asked_for(
    trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes: list[str] = []

    def evaluate(*args: Any, mode: str, **options: Any) -> eqrl.Evaluation:
        modes.append(mode)
        return eqrl.Evaluation(jnp.zeros(2), jnp.ones(2, int), None)

    monkeypatch.setattr(finished, "evaluate", evaluate)
    assert main(["evaluate", str(trained), "--mode", "sample"]) == 0
    assert modes == ["sample"] * 2


def test_options_reach_the_training_and_its_evaluations(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}

    def stop(*args: object, **options: Any) -> None:
        given.update(options)
        raise KeyboardInterrupt

    monkeypatch.setattr(_jobs, "train_seeds", stop)
    words = ["--members", "together", "--folder", str(tmp_path / "x")]
    assert main([*_TRAIN, *words]) == 130
    assert (given["members"], given["log_every"]) == ("together", 20)
    evaluations = given["evaluations"]
    assert (evaluations._every, evaluations._num_episodes) == (40, 3)
    words = ["--checkpoint-every", "20", "--tensorboard"]
    command: Any = parse(["train", "--resume", str(trained), *words])
    assert command.place.checkpoint_every == 20 and command.tensorboard


def test_evaluate_writes_all_returns(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    returns = json.loads((trained / "evaluation.json").read_text())["returns"]
    path = tmp_path / "new" / "returns.json"
    capsys.readouterr()
    assert main(["evaluate", str(trained), "--json", "--output", str(path)]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary == json.loads(path.read_text())
    assert summary["returns"] == returns
    means = np.mean(returns, axis=1)
    np.testing.assert_allclose(summary["mean_returns"], means, rtol=1e-4)
    np.testing.assert_allclose(summary["interval"], np.sort(means), rtol=1e-4)
    path = path.with_suffix(".csv")
    assert main(["evaluate", str(trained), "--output", str(path)]) == 0
    header, *rows = path.read_text().splitlines()
    assert (header, rows[1024]) == ("seed,episode,return", f"1,0,{returns[1][0]}")
    assert len(rows) == 2 * 1024
    assert main(["evaluate", str(trained), "--output", "x.txt"]) == 2
    assert "must end in `.json` or `.csv`" in capsys.readouterr().err


def test_render_writes_into_the_folder(trained: Path) -> None:
    assert main(["render", str(trained), "--seed", "1"]) == 0
    path = trained / "episode_of_seed_1.png"
    assert path.is_file()
    path.unlink()


def test_export_writes_one_policy_of_a_run(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # How a policy is written is tested where it is.
    written: list[Any] = []
    monkeypatch.setattr(finished, "export_policy", lambda *args: written.append(args))
    path = tmp_path / "x.policy"
    assert main(["export", str(trained), "--seed", "1", "--output", str(path)]) == 0
    agent, state, env = eqrl.load_run(trained, 1)
    ((given, *rest),) = written
    assert given == path
    assert eqx.tree_equal(tuple(rest), (agent, state, env))


_CARTPOLE = ("--env", "gymnax/CartPole-v1", "--num-envs", "3")
_CARTPOLE += ("--steps-per-iteration", "3", "--num-steps", "900")

_WRONG = [
    (["train", "--env", "eqrl/Pont"], "There is no environment `eqrl/Pont`"),
    ([*_TRAIN, "--discount", "2"], "`discount=2` is out of range"),
    (["train", "sack"], "There is no agent `sack`; did you mean `sac`?"),
    (["train", "diayn", "--agent", "a2c"], "`agent='a2c'` must be one of 'csf', 'd"),
    (["train", "diayn", "--num-skills", "1"], "`num_skills=1` must be"),
    (["pbt", "csf"], "`csf` learns skills without a reward, so that"),
    (["train", "metra", "--agent", "csf"], "`csf` learns from no reward but its own"),
    (["train", "diayn", "--skills", "even"], "`num_envs=1` leaves some of 8 skills"),
    (
        ["train", "rnd", "--batch-size", "9", "--reward-minibatches", "2"],
        "`reward_minibatches=2` must divide the 9 transitions",
    ),
    (["train", "apt", "--batch-size", "9"], "`k=12` needs at least 13 rows"),
    (["sweep", "csf", "--grid", "x", "1"], "`csf` learns skills without a reward, so"),
    (["sweep", "diayn", "--grid", "lr", "1", "2"], "`eqrl sweep` compares returns"),
    ([*_TRAIN, "--log-every", "0"], "`log_every=0` must be an integer, at least 1"),
    ([*_TRAIN, "--evaluate-every", "0"], "`evaluate_every=0` must be an integer"),
    ([*_TRAIN, "--warmup-steps", "99"], "`warmup_steps=99` is more than"),
    (
        ["train", "ppo", *_CARTPOLE, "--num-minibatches", "4"],
        "`num_minibatches=4` must divide the 9 transitions",
    ),
    (["evaluate", "/nowhere"], "`/nowhere` is not the folder of a run"),
    (["evaluate", "/no\nwhere"], "`/no where` is not the folder of a run"),
    (["export", "/nowhere", "--output", "x"], "`/nowhere` is not the folder of a run"),
    (["render", "/nowhere"], "`/nowhere` is not the folder of a run"),
]


def test_an_error_is_one_line_and_writes_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for args, message in _WRONG:
        assert main(args) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert lines[0].startswith(f"eqrl: {message}")
        assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("args", [["train", "td3"], ["pbt", "td3"], ["train", "diayn"]])
def test_overwrite_reaches_the_training(
    args: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def record(job: object, place: Place) -> int:
        asked.append(place.overwrite)
        return 0

    monkeypatch.setattr(
        importlib.import_module(main.__module__), "run_training", record
    )
    for more in ([], ["--overwrite"]):
        assert main([*args, "--env", "eqrl/Point", *more]) == 0
    assert asked == [False, True]


def test_overwriting_clears_all_that_a_run_writes(
    trained: Path, tmp_path: Path
) -> None:
    copied = shutil.copytree(trained, tmp_path / "copied")
    (copied / "episode_of_seed_0.gif").touch()
    with claim_folder(copied, overwrite=True):
        assert [item.name for item in copied.iterdir()] == [".lock"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_run_that_was_stopped_goes_on_as_if_it_had_not_been(
    number: signal.Signals,
    trained: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    folder = tmp_path / "x"
    # Whatever started the tests may ignore it.
    before = signal.signal(number, signal.SIG_DFL)
    with monkeypatch.context() as patch:
        patch.setattr("eqrl._run.write.draw_learning_curve", _draw_nothing)
        patch.setattr(
            ProgressBar,
            "__call__",
            lambda self, step, metrics, state: signal.raise_signal(number),
        )
        assert main([*_TRAIN, "--folder", str(folder)]) == 128 + number
    signal.signal(number, before)
    assert {path.name for path in folder.iterdir()} == _FILES
    assert json.loads((folder / "evaluation.json").read_text())["step"] == 20
    if number == signal.SIGHUP:
        # What was killed before its first checkpoint begins again.
        shutil.rmtree(folder / "checkpoints")
    loaded: list[Any] = []
    load = _jobs.load_solution
    with monkeypatch.context() as patch:
        patch.setattr(
            _jobs, "load_solution", lambda *x: loaded.append(load(*x)) or loaded[0]
        )
        assert main(["train", "--resume", str(folder)]) == 0
    # The replay that was read is the one that trains, not a copy of it.
    for each in loaded:
        assert each.trainer_state.replay.data.reward.is_deleted()
    assert len(loaded) == (number == signal.SIGTERM)
    for name in ("metrics.csv", "evaluation.json", "config.json"):
        assert (folder / name).read_bytes() == (trained / name).read_bytes()
    for seed in range(2):
        (_, ended, _), (_, whole, _) = (
            eqrl.load_run(each, seed) for each in (folder, trained)
        )
        assert eqx.tree_equal(ended, whole)
    assert [item.name for item in (folder / "policy" / "seed_0").iterdir()] == ["60"]


def test_a_run_that_is_complete_stays_what_it_is(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(trained, tmp_path / "x y")
    # Policies are written at the end.
    shutil.rmtree(folder / "policy")
    assert main(["evaluate", str(folder)]) == 2
    assert f"eqrl train --resume '{folder}'" in capsys.readouterr().err
    (folder / "evaluation.json").unlink()
    with closed_output():
        assert main(["train", "--resume", str(folder)]) == 0
    for name in ("metrics.csv", "evaluation.json"):
        assert (folder / name).read_bytes() == (trained / name).read_bytes()


@pytest.mark.parametrize("name", ["write_evaluation", "without_ending"])
def test_a_first_signal_after_training_ends_the_command(
    name: str, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(trained, tmp_path / "x")
    (folder / "evaluation.json").unlink()
    function = getattr(_training, name)

    def interrupt(*args: Any, **options: Any) -> Any:
        signal.raise_signal(signal.SIGTERM)
        return function(*args, **options)

    # During the evaluation, and while the policies are written before it.
    monkeypatch.setattr(_training, name, interrupt)
    assert main(["train", "--resume", str(folder)]) == 143
    assert not (folder / "evaluation.json").exists()
    assert eqrl.load_run(folder, 1)[1] is not None


def test_a_run_that_is_resumed_for_longer_is_as_if_it_had_been_so_long(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    longer, whole, again = tmp_path / "longer", tmp_path / "whole", tmp_path / "again"
    shutil.copytree(trained, longer)
    assert main([*_TRAIN, "--num-steps", "100", "--folder", str(whole)]) == 0
    assert main(["train", "--resume", str(longer), "--num-steps", "100"]) == 0
    assert main(["rerun", str(longer), "--folder", str(again)]) == 0
    for name in ("metrics.csv", "evaluation.json"):
        texts = [(each / name).read_bytes() for each in (longer, whole, again)]
        assert texts[0] == texts[1] == texts[2]
    for seed in range(2):
        states = [eqrl.load_run(each, seed)[1] for each in (longer, whole, again)]
        assert eqx.tree_equal(*states)
    config = json.loads((longer / "config.json").read_text())
    assert config["training"]["num_steps"] == 100
    assert config["earlier_lengths"] == [60]
    assert (again / "config.json").read_bytes() == (longer / "config.json").read_bytes()
    capsys.readouterr()
    for words, message in (
        (["--num-steps", "80"], "`num_steps=80` is less than the 100 of this run"),
        (["--num-skills", "3"], "for `{}` give `--num-steps`"),
    ):
        assert main(["train", "--resume", str(longer), *words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message.format(longer) in line


def test_what_has_been_annealed_is_not_trained_longer(tmp_path: Path) -> None:
    cartpole = ["train", "ppo", "--env", "gymnax/CartPole-v1"]
    for args, length, name, num_steps in (
        (cartpole, 199_681, "num_steps", 199_681),
        (["pbt", "ppo", "--anneal-steps", "20480"], 11, "num_generations", 22_528),
    ):
        command: Any = parse(args)
        run = command.run
        assert run.lengthened(length - 1, has_ended=False).earlier_lengths == ()
        words = rf"`{name}={length}` is more .* {length} --anneal-steps {num_steps}`;"
        with pytest.raises(ValueError, match=words):
            run.lengthened(length, has_ended=True)


def test_without_matplotlib_all_but_the_pictures_is_written_and_that_is_said(
    trained: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = shutil.copytree(trained, tmp_path / "x")
    for name in ("learning_curve.png", "evaluation.json"):
        (folder / name).unlink()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["train", "--resume", str(folder)]) == 0
    assert not (folder / "learning_curve.png").exists()
    assert (folder / "evaluation.json").exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "eqrl: There are no pictures: drawing needs matplotlib, which is not "
        'installed: `pip install "eqrl[plots]"`.'
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["pbt", "--resume", "{}"], "is a run of `eqrl train`; resume it by"),
        (["train", "--resume", "{}", "--actor-lr", "1"], "leave out `--actor-lr 1`"),
        (["train", "sac", "--resume", "{}"], "is a run of `td3`, not of `sac`; resume"),
        (["train", "--resume", "{}/no"], "is not the folder of a run"),
        (
            ["train", "--resume", "{}", "--checkpoint-every", "0"],
            "must be an integer, at least 1",
        ),
    ],
)
def test_what_cannot_be_resumed_is_said_in_one_line(
    args: list[str], message: str, trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([word.format(trained) for word in args]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def test_what_fails_in_a_report_is_said_once_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(ProgressBar, "__call__", fail)
    monkeypatch.setattr("eqrl._run.write.draw_learning_curve", fail)
    monkeypatch.setattr(GrowingMetrics, "__call__", fail)
    monkeypatch.setattr("eqrl._run.solutions.begin_save", fail)
    folder = tmp_path / "x"
    assert main([*_TRAIN, "--checkpoint-every", "20", "--folder", str(folder)]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" failed")[0] for line in lines] == [
        "eqrl: The progress",
        "eqrl: metrics.csv",
        "eqrl: A checkpoint could not be written, and training continues: "
        "[Errno 32] Broken pipe",
        "eqrl: The last checkpoint",
        "eqrl: A picture",
    ]
    with open(folder / "metrics.csv") as file:
        assert len(file.readlines()) == 7
    assert eqrl.load_run(folder, 1)[1] is not None


@pytest.mark.parametrize(
    ("given", "code"), [((), 130), ((signal.SIGINT,), 130), ((signal.SIGTERM,), 143)]
)
def test_a_signal_while_nothing_is_reached_exits_with_its_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, given: tuple[Any, ...], code: int
) -> None:
    def interrupt(*args: object, **options: object) -> None:
        raise KeyboardInterrupt(*given)

    monkeypatch.setattr(_jobs, "train", interrupt)
    assert main([*_SINGLE, "--folder", str(tmp_path / "x")]) == code


def test_nan_exits_with_1_and_leaves_a_complete_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "x"
    rates = ["--actor-lr", "1e30", "--critic-lr", "1e30"]
    assert main([*_TRAIN, *rates, "--folder", str(folder)]) == 1
    assert {path.name for path in folder.iterdir()} == _FILES
    (line,) = capsys.readouterr().err.splitlines()
    assert "was nan or infinite, so training stopped" in line


def test_nan_in_some_seeds_and_no_update_are_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    solve = _jobs.train_seeds

    def lose_seed_1(*args: Any, **options: Any) -> Any:
        solution = solve(*args, **options)
        failed = solution.trainer_state.failed.at[1].set(True)
        where = lambda solution: solution.trainer_state.failed
        return eqx.tree_at(where, solution, failed)

    monkeypatch.setattr(_jobs, "train_seeds", lose_seed_1)
    args = ["--num-steps", "20", "--folder", str(tmp_path / "x")]
    assert main([*_TRAIN, *args]) == 0
    failed, untrained = capsys.readouterr().err.splitlines()
    assert "nan or infinite in the seeds 1;" in failed
    assert untrained.startswith("eqrl: No update was made: the first 20 steps")


def test_python_m_eqrl_is_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["eqrl", "evaluate", "/nowhere"])
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("eqrl", run_name="__main__")
    assert stop.value.code == 2
    assert capsys.readouterr().err.startswith("eqrl: `/nowhere` is not")
