"""Agents on the command line that are not the library's own."""

import sys
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest

import eqrl
from docs.examples.redq import REDQ
from eqrl import nn
from eqrl._cli import main
from eqrl._cli.commands import parse
from eqrl._run.agents import option_of
from eqrl._run.config import read_config, write_config

from ..toy import Clock


_REDQ = "docs.examples.redq:REDQ"
_HERE = "tests.cli.test_cli_own_agent"


class Networks(eqrl.AbstractMarkovAgent[None]):
    """An agent, as far as it is made, whose networks are factories."""

    make_critic: Any
    make_actor: Any
    make_other: Any = nn.Deterministic(activation=jax.nn.tanh)
    make_optimizer: Any = None
    rate: eqrl.FloatLike = eqrl.hyperparameter(0.5)

    def __init__(
        self,
        size: int,
        *,
        make_critic: Any,
        make_actor: Any = nn.Deterministic(),
        make_other: Any = nn.Gaussian(),
        rate: eqrl.FloatLike = 0.25,
    ) -> None:
        self.make_critic = make_critic
        self.make_actor = make_actor
        self.make_other = make_other
        self.rate = rate * size

    def init(self, spec: eqrl.EnvSpec, *, key: Any) -> None:
        del spec, key

    def policy(self, state: None) -> Any:
        raise NotImplementedError

    def update(self, state: None, batch: Any, *, step: Any, key: Any) -> Any:
        raise NotImplementedError


class Rated(Networks):
    """An agent with an option that `POINT_OPTIONS` names."""

    def __init__(self, critic_lr: eqrl.FloatLike = 0.25) -> None:
        self.make_critic = self.make_actor = None
        self.rate = critic_lr


class Abstract(eqrl.AbstractMarkovAgent[None]):
    """An agent that does not say how it learns."""

    def init(self, spec: eqrl.EnvSpec, *, key: Any) -> None:
        del spec, key

    def policy(self, state: None) -> Any:
        raise NotImplementedError


class Seeded(REDQ):
    """An agent with options that the command line has itself."""

    seed: int = eqx.field(default=0, static=True)
    num_envs: int = eqx.field(default=1, static=True)


def _run(*args: str) -> Any:
    command: Any = parse(args)
    return command.run


def test_defaults_that_an_own_agent_does_not_take_are_not_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = _run("train", "diayn", "--agent", f"{_HERE}:Rated")
    assert run.agent_options["critic_lr"] == 0.25
    printed = capsys.readouterr().out
    assert "critic_lr" not in printed and "discriminator_lr=0.001" in printed


def test_the_fields_of_an_own_agent_are_options() -> None:
    run = _run(
        *("train", "--agent", _REDQ, "--num-critics", "3", "--hidden-sizes", "7"),
        *("--discount", "0.5", "--num-envs", "2"),
    )
    assert (run.agent, run.agent_type) == (_REDQ, REDQ)
    assert run.name == "REDQ-gymnax-Pendulum-v1"
    assert run.title == "REDQ on gymnax/Pendulum-v1"
    agent = run.make_agent()
    assert type(agent) is REDQ
    assert (agent.num_critics, agent.hidden_sizes) == (3, (7,))
    # Its own defaults stay.
    np.testing.assert_allclose(agent.discount, 0.5)
    np.testing.assert_allclose(agent.learning_rate, 3e-4)
    assert run.make_trainer().num_envs == 2


def test_factories_of_an_own_agent_get_the_hidden_sizes() -> None:
    args = ("--agent", f"{_HERE}:Networks", "--hidden-sizes", "7", "9", "--size", "2")
    agent = _run("train", *args).make_agent()
    assert agent.make_critic == nn.Critic((7, 9))
    assert agent.make_actor == nn.Deterministic((7, 9))
    assert agent.make_other == nn.Gaussian((7, 9))
    assert agent.rate == 0.5
    # What would change nothing is not recorded as if it did.
    with pytest.raises(ValueError, match="`precision` changes nothing in `docs"):
        _run("train", "--agent", _REDQ, "--precision", "bfloat16").make_agent()
    with pytest.raises(ValueError, match="`precision` changes nothing in `docs"):
        words = ("metra", "--agent", _REDQ, "--precision", "bfloat16")
        _run("train", *words).make_agent()
    rated = ("train", "--agent", f"{_HERE}:Rated")
    with pytest.raises(ValueError, match="`hidden_sizes` changes nothing in `tests"):
        _run(*rated, "--hidden-sizes", "7").make_agent()
    _run(*rated).make_agent()


def test_an_own_agent_may_be_within_another_or_in_a_population() -> None:
    own = ("--agent", _REDQ, "--env", "eqrl.envs:Point")
    run = _run("train", "diayn", *own, "--num-critics", "3")
    assert (run.agent, run.learner.agent) == ("diayn", _REDQ)
    inner = run.make_agent().agent.agent
    assert (type(inner), inner.num_critics) == (REDQ, 3)
    words = " --env eqrl.envs._point:Point"
    assert run.resuming(Path("x")) == f"eqrl train --resume x --agent {_REDQ}{words}"
    run = _run("pbt", "--agent", _REDQ)
    assert (type(run.make_agent()), run.name[:8]) == (REDQ, "pbt-REDQ")
    # Of what varies by default, it has no other.
    assert [name for name, *_ in run.priors] == ["discount"]


def test_what_a_file_names_is_imported_only_if_a_person_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command: Any = parse(["train", "diayn", "--agent", _REDQ])
    write_config(tmp_path, command.run)
    for again in ("rerun", "evaluate", "render"):
        assert main([again, str(tmp_path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"eqrl: The agent of this run is `{_REDQ}`, and code")
        assert line.endswith(f"`--agent {_REDQ}`, or in Python `agent_type=REDQ`.")
        assert main([again, str(tmp_path), "--agent", f"{_HERE}:Networks"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"`{_HERE}:Networks` was given; give `--agent {_REDQ}`" in line
    assert parse(["rerun", str(tmp_path), "--agent", _REDQ]) == command
    with pytest.raises(ValueError, match=r"in Python `agent_type=REDQ`"):
        eqrl.load_run(tmp_path)
    with pytest.raises(ValueError, match=f"`{_REDQ}`, but `{_HERE}:Networks` was"):
        eqrl.load_run(tmp_path, agent_type=Networks)
    # With the right one, only the policy is missing.
    with pytest.raises(ValueError, match="policy"):
        eqrl.load_run(tmp_path, agent_type=REDQ)


def test_an_agent_of_eqrl_is_not_replaced(tmp_path: Path) -> None:
    write_config(tmp_path, _run("train", "td3"))
    with pytest.raises(ValueError, match=f"`td3`, but `{_REDQ}` was given; give none"):
        eqrl.load_run(tmp_path, agent_type=REDQ)


def test_reading_a_folder_imports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "trap_of_a_file.py").write_text("raise SystemExit('imported')\n")
    run = _run("train", "--agent", _REDQ)
    write_config(tmp_path, run)
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace(_REDQ, "trap_of_a_file:Agent"))
    assert main(["rerun", str(tmp_path)]) == 2
    assert "trap_of_a_file" not in sys.modules


def test_the_current_directory_is_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "from docs.examples.redq import REDQ\n\n\nclass Mine(REDQ):\n    pass\n"
    (tmp_path / "agents_of_mine.py").write_text(text)
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.chdir(tmp_path)
    assert _run("train", "--agent", "agents_of_mine:Mine").agent.endswith(":Mine")


def make_point(step_size: float = 0.1, max_steps: int = 9) -> Any:
    """An environment of one's own."""
    return eqrl.envs.Point(step_size=step_size, max_steps=max_steps, goal=(1.0, 0.0))


_POINT = f"{_HERE}:make_point"


def make_vector() -> Clock:
    """One with two rewards."""
    return Clock(reward_size=2)


def test_a_vector_of_rewards_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("--folder", str(tmp_path / "x"))
    for command in ("train", "pbt"):
        words = (command, "taac", "--env", f"{_HERE}:make_vector", *folder)
        assert main([*words]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert "make_vector` is a vector, of `spec.reward_size=2`, and" in line
        assert not (tmp_path / "x").exists()


def test_an_environment_without_a_time_limit_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = ("--env", "tests.toy:Clock", "--env-option", "has_limit=False")
    assert main(["train", "td3", *clock, "--folder", str(tmp_path / "x")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "no time limit" in line and "give `--max-steps`" in line
    assert not (tmp_path / "x").exists()


def test_an_own_environment_is_made_with_its_options_and_only_if_it_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--env", _POINT, "--env-option", "step_size=0.5", "--max-steps", "4"]
    command: Any = parse(["train", *words])
    point = eqrl.envs.Point(step_size=0.5, max_steps=4, goal=(1.0, 0.0))
    assert command.run.make_env() == point
    twice: Any = parse(["train", *words, "--env-option", "step_size=1"])
    with pytest.raises(ValueError, match="is given twice"):
        twice.run.make_env()
    assert command.run.name == "sac-tests.cli.test_cli_own_agent-make_point"
    write_config(tmp_path, command.run)
    for again in ("rerun", "evaluate", "render"):
        assert main([again, str(tmp_path)]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"If you trust it, give it again: `--env {_POINT}`" in line
        assert main([again, str(tmp_path), "--env", f"{_HERE}:Networks"]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"`{_HERE}:Networks` was given; give `--env {_POINT}`" in line
    assert parse(["rerun", str(tmp_path), "--env", _POINT]) == command
    with pytest.raises(ValueError, match="in Python `make_env=make_point`"):
        eqrl.load_run(tmp_path)
    # With the right one, only the policy is missing.
    with pytest.raises(ValueError, match="policy"):
        eqrl.load_run(tmp_path, make_env=make_point)


def test_options_of_an_environment_are_its_parameters(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    chain = ("--env", "gymnax/MemoryChain-bsuite", "--env-option", "memory_length=30")
    run = _run("train", "dqn", *chain)
    assert run.make_env().params.memory_length == 30
    write_config(tmp_path, run)
    assert read_config(tmp_path) == run
    (nested,) = _run("train", "--env-option", "reward.scale=2").env_options
    assert option_of(nested) == ("reward.scale", 2)
    assert option_of("is_slippery=false") == ("is_slippery", False)
    assert option_of("mode='none'") == ("mode", "none")
    options = ("--env-option", "goal=(1,2)", "--env-option", "step_size=0.5")
    env = _run("train", "--env", "eqrl/Point", "--max-steps", "3", *options).make_env()
    assert env == eqrl.envs.Point(goal=(1, 2), step_size=0.5, max_steps=3)
    for env, option, message in (
        (
            "eqrl/Point",
            "gaol=1",
            "`eqrl/Point` has no parameter `gaol`; it has step_si",
        ),
        ("eqrl/Point", "goal", "`env_option='goal'` must be written as `name=value`"),
        ("gymnax/Pendulum-v1", "g=abc", "`env_option=g=abc` must be a number"),
        ("gymnax/Pendulum-v1", "g=None", "`env_option=g=None` must be a number"),
        (_POINT, "gaol=1", "does not take the options ['gaol']: got an"),
        ("nowhere:make", "x=1", "`env='nowhere:make'`: there is no module `nowhere`"),
        ("gymnasium/a:B-v0", "x=1", "B-v0'` imports a package; name a function"),
        (
            "gymnasium/FrozenLake-v1",
            "options={}",
            "an unexpected keyword argument 'options'",
        ),
        (f"{_HERE}:_POINT", "x=1", "makes no environment"),
        ("collections:Counter", "x=1", "is of type Counter; it must be an instance of"),
    ):
        assert main(["train", "--env", env, "--env-option", option]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert message in line
    for env, name in (
        ("eqrl/Point", "max_steps"),
        ("gymnax/Pendulum-v1", "max_steps_in_episode"),
        ("jumanji/Snake-v1", "time_limit"),
    ):
        option = ("--env-option", f"{name}=50")
        assert main(["train", "--env", env, "--max-steps", "20", *option]) == 2
        message = f"`max_steps=20` and `env_option` ['{name}'] are both"
        assert message in capsys.readouterr().err


_WRONG = [
    ("redq", "`agent='redq'` must be written as `package.module:Class`"),
    ("docs.examples:", "must be written as `package.module:Class`"),
    ("docs..redq:REDQ", "must be written as `package.module:Class`"),
    ("docs.nowhere:REDQ", "there is no module `docs.nowhere`, neither installed nor"),
    ("nowhere.at.all:REDQ", "there is no module `nowhere`"),
    ("docs.examples.redq:PPO", "there is no `PPO` in `docs.examples.redq`"),
    ("docs.examples.redq:REDQState", "is not an agent; it must be a class"),
    ("docs.examples.redq:losses", "is not an agent; it must be a class"),
    (f"{_HERE}:Abstract", "is abstract: it lacks update"),
    (f"{_HERE}:Seeded", "`Seeded` has the arguments ['num_envs', 'seed'], which are"),
]


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    for path, message in _WRONG:
        assert main(["train", "--agent", path]) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("eqrl: ")
        assert message in line


def test_a_module_that_lacks_another_says_so_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_an_agent.py").write_text("import nowhere_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="nowhere_at_all"):
        main(["train", "--agent", "half_an_agent:Agent"])


def test_a_population_without_the_usual_hyperparameters_needs_priors(
    capsys: pytest.CaptureFixture[str],
) -> None:
    args = ["pbt", "--agent", "tests.disk.heading:Heading"]
    assert main(args) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "none of `lr`, `actor_lr`, `critic_lr`, `discount` to vary" in line
