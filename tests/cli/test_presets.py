"""Presets can be made, and are the defaults of the command line."""

import csv
from typing import Any

import equinox as eqx
import jax.random as jr
import numpy as np
import pytest

from benchmarks.presets import RESULTS
from eqrl import presets
from eqrl._cli.commands import Train, parse
from eqrl._training.trainer import check_sizes


PRESETS = [
    pytest.param(preset, marks=pytest.mark.long) if "brax" in preset.env else preset
    for preset in presets.PRESETS.values()
]


@pytest.mark.parametrize("preset", PRESETS, ids=lambda x: f"{x.agent} on {x.env}")
def test_agent_environment_and_trainer_fit_each_other(preset: presets.Preset) -> None:
    trainer = preset.make_trainer()
    trainer.check_num_steps(preset.num_steps)
    agent, env = preset.make_agent(), preset.make_env()
    check_sizes(trainer, sequence_length=agent.sequence_length)
    eqx.filter_eval_shape(agent.init, env.spec, key=jr.key(0))
    # What is annealed ends with the training.
    options = dict(preset.options)
    assert options.get("anneal_steps", preset.num_steps) == preset.num_steps


def test_returns_are_those_measured_with_twenty_seeds() -> None:
    with RESULTS.open(newline="") as file:
        lines = list(csv.DictReader(file))
    for preset in presets.PRESETS.values():
        of_preset = [
            line
            for line in lines
            if (line["agent"], line["env"]) == (preset.agent, preset.env)
        ]
        assert [int(line["num_steps"]) for line in of_preset] == 20 * [preset.num_steps]
        measured = [float(line["return"]) for line in of_preset]
        np.testing.assert_allclose(preset.returns, measured, atol=0.051)
        mean, deviation = np.mean(preset.returns), np.std(preset.returns, ddof=1)
        begin = f"{mean:.1f} over 20 seeds, standard deviation {deviation:.1f}, after"
        assert preset.reached == f"{begin} {preset.num_steps} steps"
        assert str(preset).endswith(f"it reached a mean return of {preset.reached}")


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
    # Whatever is given counts.
    run = _parsed_run("ppo", "--env=gymnax/CartPole-v1", "--lr", "0.5")
    assert run.agent_options["lr"] == 0.5
    assert run.make_trainer() == preset.make_trainer()


def test_what_has_no_preset_has_the_usual_defaults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert presets.find("ppo", "eqrl/Point") is None
    assert presets.find("taac", "gymnax/Pendulum-v1") is None
    assert presets.find("sac", "brax/inverted_pendulum") is not None
    spring = ("--env", "brax/inverted_pendulum", "--backend", "spring")
    assert _parsed_run("sac", *spring).settings.hidden_sizes == (64, 64)
    assert _parsed_run("ppo", "--env", "gymnax/CartPole-v1", "--max_steps", "9")
    run = _parsed_run("sac", "--env", "eqrl/Point")
    assert run.settings.hidden_sizes == (64, 64)
    assert "preset" not in capsys.readouterr().out
