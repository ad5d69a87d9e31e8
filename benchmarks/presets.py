"""Returns of every preset with all its seeds, by `eqrl train` itself.

The runs are folders in `--folder`; an interrupted run is resumed, and a finished one is
kept. One more seed is trained alone to see how long it takes. At the end it writes
`docs/results/presets.csv`, a line for each of the seeds, and prints the
`returns` and `minutes` of `eqrl/presets.py`. Presets of long trainings have the lines
of the runs of papers, by `nox -s papers`. Run it as `nox -s presets`, or `nox -s
presets -- --only td3` for some, whose lines replace those of before.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from eqrl._run.config import read_config
from eqrl.presets import PRESETS, Preset

from .papers.papers import load
from .papers.run import DATA, read_run
from .papers.training import Training
from .results_page import write_presets


TIMED_SEED = 100
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "presets.csv"
COLUMNS = (
    "agent",
    "env",
    "num_steps",
    "num_episodes",
    "minutes",
    "seed",
    "return",
    "error",
)


def check_settings(folder: Path, preset: Preset, *, seed: int, num_seeds: int) -> None:
    """Raises a `ValueError` unless a folder's run is one of a preset and its seeds.

    Options of the environment are not compared.
    """
    run = read_config(folder)
    made = (run.make_agent(), run.make_trainer(), run.settings.env)
    wanted = (preset.make_agent(), preset.make_trainer(), preset.env)
    lengths = (run.schedule.num_steps, run.schedule.count, run.settings.seed)
    same_lengths = lengths == (preset.num_steps, num_seeds, seed)
    if not (same_lengths and eqx.tree_equal(made, wanted)):
        raise ValueError(f"`{folder}` holds a run of other settings; delete it.")


def train(preset: Preset, folder: Path) -> None:
    """Trains a preset into a folder, or resumes its training.

    Raises a `ValueError` if the folder holds a run with other settings.
    """
    command = [sys.executable, "-m", "eqrl", "train"]
    if (folder / "config.json").exists():
        check_settings(folder, preset, seed=0, num_seeds=preset.num_seeds)
        if has_ended(folder):
            return
        command += ["--resume", str(folder)]
    else:
        command += [preset.agent, "--env", preset.env, "--seeds", str(preset.num_seeds)]
        command += ["--log-every", "10000", "--folder", str(folder)]
    subprocess.run(command, check=True)


def has_ended(folder: Path) -> bool:
    """Whether the run in a folder was trained to its end.

    One that was interrupted is evaluated, too.
    """
    evaluation = folder / "evaluation.json"
    if not evaluation.exists():
        return False
    num_steps = json.loads((folder / "config.json").read_text())["training"][
        "num_steps"
    ]
    return json.loads(evaluation.read_text())["step"] >= num_steps


def minutes_of(preset: Preset) -> float:
    """How long a training with one seed takes, with nothing compiled before."""
    environment = os.environ | {"JAX_ENABLE_COMPILATION_CACHE": "false"}
    command = [sys.executable, "-m", "eqrl", "train", preset.agent]
    command += ["--env", preset.env, "--seed", str(TIMED_SEED)]
    with tempfile.TemporaryDirectory() as folder:
        command += ["--folder", f"{folder}/run"]
        begin = time.perf_counter()
        subprocess.run(command, check=True, env=environment, capture_output=True)
        return (time.perf_counter() - begin) / 60


def lines_of(preset: Preset, folder: Path, minutes: float) -> list[dict[Any, Any]]:
    """A line for each seed of a finished run."""
    evaluation = json.loads((folder / "evaluation.json").read_text())
    returns = np.array(evaluation["returns"], float)
    errors = returns.std(axis=1, ddof=1) / np.sqrt(returns.shape[1])
    return [
        {
            "agent": preset.agent,
            "env": preset.env,
            "num_steps": evaluation["step"],
            "num_episodes": returns.shape[1],
            "minutes": f"{minutes:.2f}",
            "seed": seed,
            "return": f"{mean:.2f}",
            "error": f"{error:.2f}",
        }
        for seed, (mean, error) in enumerate(
            zip(returns.mean(axis=1), errors, strict=True)
        )
    ]


def lines_of_paper(preset: Preset) -> list[dict[Any, Any]]:
    """A line for each run of the paper that a preset is from."""
    assert preset.paper is not None
    name, contender = preset.paper
    (experiment,) = (x for x in load(name).experiments if x.env == preset.env)
    folder = DATA / name / preset.env.replace("/", "-")
    runs = [
        read_run(folder / f"{contender}-{seed}.csv") for seed in range(preset.num_seeds)
    ]
    minutes = np.mean([float(run.facts["processor minutes"]) for run in runs])
    training = experiment.contenders[contender]
    assert isinstance(training, Training)
    return [
        {
            "agent": preset.agent,
            "env": preset.env,
            "num_steps": int(run.columns["step"][-1]),
            "num_episodes": training.num_episodes,
            "minutes": f"{minutes:.2f}",
            "seed": seed,
            "return": f"{run.evaluations[-1]:.2f}",
        }
        for seed, run in enumerate(runs)
    ]


def main() -> None:
    """Runs unfinished trainings, then writes and prints the returns."""
    parser = argparse.ArgumentParser(prog="nox -s presets --")
    parser.add_argument("--folder", type=Path, default=Path("runs/presets"))
    parser.add_argument("--only", nargs="*", help="names of agents or environments")
    options = parser.parse_args()
    measured: list[dict[Any, Any]] = []
    for preset in PRESETS.values():
        if options.only is not None and not {preset.agent, preset.env} & {
            *options.only
        }:
            with RESULTS.open(newline="") as file:
                measured += [
                    line
                    for line in csv.DictReader(file)
                    if (line["agent"], line["env"]) == (preset.agent, preset.env)
                ]
            continue
        if preset.paper is not None:
            measured += lines_of_paper(preset)
            continue
        folder = options.folder / f"{preset.agent}-{preset.env.replace('/', '-')}"
        train(preset, folder)
        lines = lines_of(preset, folder, minutes_of(preset))
        returns = " ".join(f"{float(str(line['return'])):.1f}" for line in lines)
        minutes = lines[0]["minutes"]
        print(f"{preset.agent} on {preset.env}: {minutes} min, {returns}", flush=True)
        measured += lines
    with RESULTS.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(measured)
    write_presets()


if __name__ == "__main__":
    main()
