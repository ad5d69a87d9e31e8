"""The time from a command to its first update, in separate processes.

`eqrl train` on Pendulum-v1, whose first row ends with the first update: with an empty
folder of compiled programs, as on a new machine, and again with the folder that the
first process left. Another process only imports JAX. Run it as `nox -s benchmarks --
first_update`.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from eqrl import Trainer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--command", default="train", help="with its options")
    arguments = parser.parse_args()

    kinds = ("import jax", "first time", "second time")
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    command = arguments.command.split()
    for _ in range(arguments.repeats):
        with tempfile.TemporaryDirectory() as folder:
            seconds["import jax"].append(_seconds_of_import())
            for kind in ("first time", "second time"):
                elapsed = _seconds_to_update(command, Path(folder), kind)
                seconds[kind].append(elapsed)
    imports = statistics.median(seconds["import jax"])
    print("| | seconds, median | least to most | beyond importing JAX |")
    print("|---|---|---|---|")
    for kind, values in seconds.items():
        middle = statistics.median(values)
        beyond = "" if kind == "import jax" else f"{middle - imports:.1f}"
        spread = f"{min(values):.1f} to {max(values):.1f}"
        print(f"| {kind} | {middle:.1f} | {spread} | {beyond} |")


def _seconds_of_import() -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import jax"], check=True)
    return time.perf_counter() - begin


def _seconds_to_update(command: Sequence[str], folder: Path, name: str) -> float:
    """The time until the row of the metrics with the first update is written."""
    steps = str(Trainer().warmup_steps + 1)
    run = folder / name
    own = ("XDG_CACHE_HOME", "JAX_COMPILATION_CACHE_DIR")
    environment = {k: v for k, v in os.environ.items() if k not in own}
    begin = time.perf_counter()
    with subprocess.Popen(
        [
            *(sys.executable, "-m", "eqrl", *command, "--folder", str(run)),
            *("--num-steps", steps, "--log-every", steps),
        ],
        env=environment | {"XDG_CACHE_HOME": str(folder / "cache")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while not _has_row(run / "metrics.csv"):
            if process.poll() is not None:
                raise RuntimeError(f"`eqrl {' '.join(command)}` wrote no metrics.")
            time.sleep(0.005)
        return time.perf_counter() - begin


def _has_row(metrics: Path) -> bool:
    try:
        return metrics.read_bytes().count(b"\n") > 1
    except OSError:
        return False


if __name__ == "__main__":
    main()
