"""Steps per second of PPO beside PureJaxRL's, rejax's and brax's.

On CartPole-v1, 4 environments by 128 steps, and Breakout-MinAtar, 64 by 128, both with
hidden layers of 64 and 64 and 4 epochs, and on brax's `fast` with the sizes of brax's
own test. Each library is in a process of its own. Processes take turns, one training
each, and several sets of them are started, because one program is faster or slower from
process to process. Run it as `nox -s benchmarks -- ppo_speed`.

Without more only brax is measured beside ours. PureJaxRL is no package, and rejax needs
an older gymnax: `--peers PYTHON` is a Python with rejax, flax, distrax and `gymnax<1`,
and `--purejaxrl PATH` the folder `purejaxrl` of a clone of
github.com/luchris429/purejaxrl. There are stand-ins for brax and navix, which
PureJaxRL imports for environments that are not used here.
"""

import argparse
import dataclasses
import os
import pathlib
import statistics
import subprocess
import sys

from .measure import median_ratio
from .ppo_workers import GYMNAX_NAMES, SETTINGS, steps_of


WORKERS = pathlib.Path(__file__).with_name("ppo_workers.py")
OURS = ("alone", "train")


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of processor time and of wall time."""

    cpu: float
    wall: float


class Worker:
    """A process that has compiled one training and repeats it on demand."""

    def __init__(self, command: list[str]) -> None:
        # Safe paths: the folder of the workers must not hide packages.
        root = str(WORKERS.parent.parent)
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": root, "PYTHONSAFEPATH": "1"},
        )
        self.first = self._answer()

    def measure(self) -> Times:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write("go\n")
        stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> Times:
        stdout = self._process.stdout
        assert stdout is not None
        for line in stdout:
            try:
                cpu, wall = map(float, line.split())
            except ValueError:
                continue  # What a library prints.
            return Times(cpu, wall)
        raise RuntimeError(f"{self._process.args} ended")


def commands(setting: str, arguments: argparse.Namespace) -> dict[str, list[str]]:
    """How to start each library's process."""
    workers = str(WORKERS)
    started = {name: [sys.executable, workers, name, setting] for name in OURS}
    if setting not in GYMNAX_NAMES:
        return started | {"brax": [sys.executable, workers, "brax", setting]}
    if arguments.peers:
        started["rejax"] = [arguments.peers, workers, "rejax", setting]
        if arguments.purejaxrl:
            path = arguments.purejaxrl
            started["purejaxrl"] = [
                arguments.peers,
                workers,
                "purejaxrl",
                setting,
                path,
            ]
    return started


def compare(
    started: dict[str, list[str]], *, processes: int, repeats: int
) -> tuple[dict[str, list[Times]], dict[str, list[Times]]]:
    """Times of compiling and the first run, and of the others, in turns."""
    first: dict[str, list[Times]] = {name: [] for name in started}
    times: dict[str, list[Times]] = {name: [] for name in started}
    for index in range(processes):
        names = list(started) if index % 2 == 0 else list(reversed(started))
        workers = {name: Worker(started[name]) for name in names}
        for name in names:
            first[name].append(workers[name].first)
        for turn in range(repeats):
            for name in names if turn % 2 == 0 else reversed(names):
                times[name].append(workers[name].measure())
        for worker in workers.values():
            worker.close()
    return first, times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", nargs="+", default=list(SETTINGS))
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", help="a Python with rejax, flax and distrax")
    parser.add_argument("--purejaxrl", help="the folder `purejaxrl` of a clone")
    arguments = parser.parse_args()
    print(
        "| setting | library | CPU microseconds a step | wall | its CPU time / "
        "`alone` | / `train` | CPU seconds to compile |"
    )
    print("|---|---|---|---|---|---|---|")
    for setting in arguments.settings:
        first, times = compare(
            commands(setting, arguments),
            processes=arguments.processes,
            repeats=arguments.repeats,
        )
        million = 1e6 / steps_of(setting)
        cpu = {name: [x.cpu for x in all_of] for name, all_of in times.items()}
        for name, all_of in times.items():
            middle = statistics.median(cpu[name])
            wall = statistics.median(x.wall for x in all_of)
            ratios = [f"{median_ratio(cpu[name], cpu[ours]):.3f}" for ours in OURS]
            compiling = statistics.median(x.cpu for x in first[name]) - middle
            print(
                f"| {setting} | {name} | {middle * million:.2f} | {wall * million:.2f} "
                f"| {' | '.join(ratios)} | {compiling:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
