"""Returns of every preset with twenty seeds, by `eqrl train` itself.

The runs are folders in `--folder`; an interrupted run is resumed, and a finished one is
kept. At the end it writes `docs/results/presets.csv`, a line for each seed, and prints
the `returns` of `eqrl/presets.py`. Run it as `nox -s presets`, or `nox -s
presets -- --only td3` for some.
"""

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from eqrl.presets import PRESETS, Preset


NUM_SEEDS = 20
RESULTS = Path(__file__).parents[1] / "docs" / "results" / "presets.csv"
COLUMNS = ("agent", "env", "num_steps", "num_episodes", "seed", "return", "error")


def train(preset: Preset, folder: Path) -> None:
    """Trains a preset into a folder, or resumes its training."""
    if (folder / "evaluation.json").exists():
        return
    command = [sys.executable, "-m", "eqrl", "train"]
    if (folder / "config.json").exists():
        command += ["--resume", str(folder)]
    else:
        command += [preset.agent, "--env", preset.env, "--seeds", str(NUM_SEEDS)]
        command += ["--log-every", "10000", "--folder", str(folder)]
    subprocess.run(command, check=True)


def lines_of(preset: Preset, folder: Path) -> list[dict[str, object]]:
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
            "seed": seed,
            "return": f"{mean:.2f}",
            "error": f"{error:.2f}",
        }
        for seed, (mean, error) in enumerate(
            zip(returns.mean(axis=1), errors, strict=True)
        )
    ]


def main() -> None:
    """Runs unfinished trainings, then writes and prints the returns."""
    parser = argparse.ArgumentParser(prog="nox -s presets --")
    parser.add_argument("--folder", type=Path, default=Path("runs/presets"))
    parser.add_argument("--only", nargs="*", help="names of agents")
    options = parser.parse_args()
    measured = []
    for preset in PRESETS.values():
        if options.only is not None and preset.agent not in options.only:
            continue
        folder = options.folder / f"{preset.agent}-{preset.env.replace('/', '-')}"
        train(preset, folder)
        lines = lines_of(preset, folder)
        returns = ", ".join(f"{float(str(line['return'])):.1f}" for line in lines)
        print(f"{preset.agent} on {preset.env}: ({returns})", flush=True)
        measured += lines
    if options.only is None:
        with RESULTS.open("w", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            writer.writeheader()
            writer.writerows(measured)


if __name__ == "__main__":
    main()
