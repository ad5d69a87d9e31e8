"""Presets can be made, and are the defaults of the command line."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
import pytest

import eqrl
from benchmarks import results_page
from benchmarks.papers import papers
from benchmarks.papers.training import Training
from benchmarks.presets import RESULTS, check_settings, lines_of_paper, train
from eqrl import presets
from eqrl._cli import main
from eqrl._cli.commands import Train, parse
from eqrl._cli.jobs import nearest_preset
from eqrl._reporting.statistics import rounded
from eqrl._run.agents import AGENTS
from eqrl._run.config import write_config
from eqrl._training.trainer import check_sizes
from eqrl.spaces import Discrete


_MARKS = {"brax": pytest.mark.long, "envpool": pytest.mark.worlds}
PRESETS = [
    pytest.param(preset, marks=_MARKS.get(preset.env.split("/")[0], ()))
    for preset in presets.PRESETS.values()
]


@pytest.mark.parametrize("preset", PRESETS, ids=lambda x: f"{x.agent} on {x.env}")
def test_agent_environment_and_trainer_fit_each_other(preset: presets.Preset) -> None:
    trainer = preset.make_trainer()
    trainer.check_num_steps(preset.num_steps)
    agent, env = preset.make_agent(), preset.make_env()
    check_sizes(trainer, sequence_length=agent.sequence_length)
    eqx.filter_eval_shape(agent.init, env.spec, key=jr.key(0))
    assert preset.has_discrete_actions == isinstance(env.spec.action, Discrete)
    # What is annealed ends with the training.
    options = dict(preset.options)
    assert options.get("anneal_steps", preset.num_steps) == preset.num_steps


def test_returns_are_those_measured() -> None:
    with RESULTS.open(newline="") as file:
        lines = list(csv.DictReader(file))
    for preset in presets.PRESETS.values():
        of_preset = [
            line
            for line in lines
            if (line["agent"], line["env"]) == (preset.agent, preset.env)
        ]
        assert preset.num_seeds in (3, 5, 20)
        assert [int(x["seed"]) for x in of_preset] == list(range(preset.num_seeds))
        assert {int(line["num_steps"]) for line in of_preset} == {preset.num_steps}
        measured = [float(line["return"]) for line in of_preset]
        assert {float(line["minutes"]) for line in of_preset} == {preset.minutes}
        np.testing.assert_allclose(preset.returns, measured, atol=0.051)
        mean = sum(preset.returns) / preset.num_seeds
        deviation = np.std(preset.returns, ddof=1)
        begin = f"{rounded(mean)} over {preset.num_seeds} seeds, standard deviation "
        end = f"{rounded(deviation)}, after {preset.num_steps} steps"
        assert preset.reached == begin + end
        assert str(preset).endswith(f"it reached a mean return of {preset.reached}")
    reached = presets.PRESETS["dqn", "gymnax/DeepSea-bsuite"].reached
    assert reached.startswith("0.99 over 20 seeds, standard deviation 0.0, after")


def _parsed_run(*args: str) -> Any:
    command = parse(["train", *args])
    assert isinstance(command, Train)
    return command.run


def test_the_command_line_begins_with_the_preset_and_says_so(
    capsys: pytest.CaptureFixture[str],
) -> None:
    preset = presets.find("ppo", "gymnax/CartPole-v1")
    assert preset is not None
    run = _parsed_run("ppo", "--env", "gymnax/CartPole-v1")
    assert eqx.tree_equal(run.make_agent(), preset.make_agent())
    assert run.make_trainer() == preset.make_trainer()
    assert run.schedule.num_steps == preset.num_steps
    printed = capsys.readouterr().out
    assert "preset of ppo on gymnax/CartPole-v1" in printed
    assert f"lr={preset.options['lr']}" in printed
    # Its own number of steps is what it has without being given.
    same = _parsed_run("ppo", "--env", preset.env, "--num-steps", str(preset.num_steps))
    assert same == run
    # What goes down over the whole training goes down over the steps that are given.
    for option in (("--num-steps", "499712"), ("--num_steps=499_712",)):
        longer = _parsed_run("ppo", "--env", preset.env, *option)
        num_steps = longer.schedule.num_steps
        assert longer.agent_options["anneal_steps"] == num_steps == 499_712
    # All that it may hold reaches the agent, and is named.
    other = dataclasses.replace(preset, precision="bfloat16", normalize_reward=True)
    assert "precision=bfloat16, normalize_reward=True; it reached" in str(other)
    agent: Any = other.make_agent()
    assert type(agent) is eqrl.NormalizedReward
    make_critic: Any = eqrl.unwrap(agent, eqrl.PPO).make_critic
    assert make_critic.precision == "bfloat16"
    # Whatever is given counts.
    run = _parsed_run("ppo", "--env=gymnax/CartPole-v1", "--lr", "0.5")
    assert run.agent_options["lr"] == 0.5
    assert run.make_trainer() == preset.make_trainer()


def test_without_an_agent_the_fastest_that_reaches_the_published_return_is_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Means of 498, 499 and 200; the intervals of the first two reach 499.
    returns = {"pqn": (496.0, 500.0), "ppo": (498.0, 500.0), "dqn": (100.0, 300.0)}
    minutes = {"pqn": 2.0, "ppo": 1.0, "dqn": 0.5}
    env = "gymnax/CartPole-v1"
    preset = presets.PRESETS["ppo", env]
    made = tuple(
        dataclasses.replace(preset, agent=x, returns=returns[x], minutes=minutes[x])
        for x in returns
    )
    monkeypatch.setattr(presets, "_ALL", made)
    monkeypatch.setattr(presets, "PUBLISHED", {env: 499.0})
    assert presets.best(env) == made[1]
    assert presets.best("gymnax/Acrobot-v1") is None
    # None is published, or none is reached.
    for published in ({}, {env: 501.0}):
        monkeypatch.setattr(presets, "PUBLISHED", published)
        assert presets.best(env) == made[1]
    quick = dataclasses.replace(made[0], minutes=0.9)
    monkeypatch.setattr(presets, "_ALL", (quick, *made[1:]))
    assert presets.best(env) == quick
    monkeypatch.setattr(presets, "PUBLISHED", {env: 250.0})
    assert presets.best(env) == made[2]
    monkeypatch.undo()
    assert all(presets.best(env) is not None for _, env in presets.PRESETS)
    best = presets.best(env)
    assert best is not None
    run = _parsed_run("--env", env)
    assert run.agent == best.agent
    assert run.make_trainer() == best.make_trainer()
    assert f"the preset of {best.agent} on {env}" in capsys.readouterr().out


def test_what_has_no_preset_has_the_usual_defaults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert presets.find("ppo", "eqrl/Point") is None
    assert presets.find("taac", "gymnax/Pendulum-v1") is None
    assert presets.find("sac", "brax/inverted_pendulum") is not None
    spring = ("--env", "brax/inverted_pendulum", "--backend", "spring")
    assert _parsed_run("sac", *spring).settings.hidden_sizes == (256, 256)
    assert _parsed_run("ppo", "--env", "gymnax/CartPole-v1", "--max_steps", "9")
    run = _parsed_run("sac", "--env", "eqrl/Point")
    assert run.settings.hidden_sizes == (256, 256)
    assert "preset" not in capsys.readouterr().out


@pytest.mark.parametrize("name", AGENTS)
@pytest.mark.parametrize("command", ["train", "pbt", "train diayn", "disk"])
def test_without_a_preset_all_defaults_are_those_of_the_library(
    command: str, name: str
) -> None:
    named = AGENTS[name]
    if command == "disk" and named.is_on_policy:
        return
    is_discrete = "CartPole" in named.env
    env = "gymnax/FrozenLake-misc" if is_discrete else "gymnax/Reacher-misc"
    inner = ["--agent", name] if " " in command or command == "disk" else [name]
    parsed: Any = parse([*command.split(), *inner, "--env", env])
    run = parsed.run
    make: Any = named.agent_type
    agent: Any = make(**named.fixed)
    if name == "ppo" and run.settings.hidden_sizes is not None:
        # In the library, `None` stands for one that fits the actions.
        agent = eqrl.PPO(make_actor=eqrl.nn.Normal())
    if name == "csf":
        agent = eqrl.SkillConditioned(agent, eqrl.SphereSkills(2))
    if command == "train diayn":
        agent = eqrl.diayn(agent, make_network=eqrl.nn.CategoricalDiscriminator())
    if command == "disk":
        agent = eqrl.Intrinsic(agent, eqrl.Incremental())
        assert run.schedule.num_collected_episodes == 100
    assert eqx.tree_equal(run.make_agent(), agent)
    trainer = eqrl.Trainer()
    if named.is_on_policy:
        trainer = eqrl.Trainer.on_policy(num_envs=8, num_steps=128)
    assert run.make_trainer() == trainer


@pytest.mark.parametrize("name", AGENTS)
def test_the_default_environment_fits_the_agent(name: str) -> None:
    run = _parsed_run(name)
    spec = run.make_env().spec
    eqx.filter_eval_shape(run.make_agent().init, spec, key=jr.key(0))


def test_a_run_without_a_preset_ends_as_in_python_and_says_what_it_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "x"
    # Some updates after the random steps.
    words = ["--env", "eqrl/Point", "--max-steps", "5", "--num-steps", "1010"]
    assert main(["train", "sac", *words, "--folder", str(folder)]) == 0
    solution = eqrl.train(
        eqrl.SAC(),
        eqrl.envs.Point(max_steps=5),
        eqrl.Trainer(),
        num_steps=1_010,
        key=jr.split(jr.key(0))[0],
    )
    assert int(solution.counts.updates) > 0
    _, state, _ = eqrl.load_run(folder)
    assert eqx.tree_equal(state, solution.state)
    printed = capsys.readouterr()
    near, settings, replay, *_ = printed.out.splitlines()
    stored = sum(x.nbytes for x in jax.tree.leaves(solution.trainer_state.replay))
    assert replay == f"replay: 100,000 transitions, {stored / 1e6:.1f} MB"
    # There is none without a goal.
    assert "Every return was 0, so there was no reward to learn from" in printed.err
    assert near.startswith("No preset fits; these are the library's defaults; ")
    assert "the nearest is that of sac on gymnax/Pendulum-v1: actor_lr=0.001" in near
    assert settings.startswith("settings of SAC on eqrl/Point: env=eqrl/Point, ")
    assert "hidden_sizes=(256, 256)" in settings and "actor_lr=0.0003" in settings


def test_the_nearest_preset_is_of_the_same_task_or_of_the_same_actions() -> None:
    def nearest(*words: str) -> Any:
        run = _parsed_run(*words)
        found = nearest_preset(run, run.make_env())
        return None if found is None else found.env

    assert nearest("ppo", "--env", "gymnax/Catch-bsuite", "--max-steps", "9") == (
        "gymnax/Catch-bsuite"
    )
    assert nearest("ppo", "--env", "gymnax/Reacher-misc") == "gymnax/Pendulum-v1"
    assert nearest("ppo", "--env", "gymnax/SimpleBandit-bsuite") == "gymnax/CartPole-v1"
    assert nearest("taac-q", "--env", "gymnax/Reacher-misc") is None
    run = _parsed_run("sac", "--env", "gymnasium/HalfCheetah-v5")
    found = nearest_preset(run, eqrl.envs.Point())
    assert found is not None and found.env == "envpool/HalfCheetah-v4"


def test_presets_of_papers_have_the_settings_and_the_returns_of_their_runs() -> None:
    found = [preset for preset in presets.PRESETS.values() if preset.paper is not None]
    assert len(found) == 5
    for preset in found:
        assert preset.paper is not None
        name, contender = preset.paper
        (task,) = (x for x in papers.load(name).experiments if x.env == preset.env)
        training = task.contenders[contender]
        assert isinstance(training, Training) and not task.options
        assert eqx.tree_equal(preset.make_agent(), training.make_agent())
        assert eqx.tree_equal(preset.make_trainer(), training.make_trainer())
        assert preset.num_steps == training.num_steps
        returns = [float(line["return"]) for line in lines_of_paper(preset)]
        np.testing.assert_allclose(preset.returns, returns, atol=0.051)


def test_a_population_has_the_preset_without_what_goes_down(
    capsys: pytest.CaptureFixture[str],
) -> None:
    command: Any = parse(["pbt", "ppo", "--env", "gymnax/CartPole-v1"])
    assert "by default the preset of ppo" in capsys.readouterr().out
    options = command.run.agent_options
    assert (options["value_clip"], options["anneal_steps"]) == (0.2, None)
    assert command.run.trainer_options == {"num_envs": 4, "steps_per_iteration": 128}


def test_a_training_that_was_interrupted_is_resumed_and_one_that_ended_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr("subprocess.run", lambda x, **_: commands.append(x))
    preset = presets.PRESETS["sac", "gymnax/Pendulum-v1"]
    run = preset._run()
    schedule = dataclasses.replace(run.schedule, seeds=preset.num_seeds)
    write_config(tmp_path, dataclasses.replace(run, schedule=schedule))
    for step in (preset.num_steps - 1, preset.num_steps):
        (tmp_path / "evaluation.json").write_text(json.dumps({"step": step}))
        train(preset, tmp_path)
    [command] = commands
    assert command[-2:] == ["--resume", str(tmp_path)]
    fewer = preset.returns[1:]
    options = {"actor_lr": 1.0}
    refused = pytest.raises(ValueError, match="holds a run of other settings")
    for change in ({"num_steps": 10_000}, {"options": options}, {"returns": fewer}):
        with refused:
            train(dataclasses.replace(preset, **change), tmp_path)
    with refused:
        check_settings(tmp_path, preset, seed=1, num_seeds=preset.num_seeds)


def test_the_page_of_presets_is_that_of_the_presets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = results_page.FOLDER / "presets.md"
    monkeypatch.setattr(results_page, "FOLDER", tmp_path)
    results_page.write_presets()
    assert (tmp_path / "presets.md").read_text() == written.read_text()
