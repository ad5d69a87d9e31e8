"""Steps per second of PPO beside PureJaxRL's, rejax's and brax's.

On CartPole-v1, 4 environments by 128 steps, and Breakout-MinAtar, 64 by 128, both with
hidden layers of 64 and 64 and 4 epochs, and on brax's `fast` with the sizes of brax's
own test. Each library is in its own process. Processes take turns, one training each,
and several sets of them are started, because one program is faster or slower from
process to process. Run it as `nox -s benchmarks -- ppo_speed`.

By default only brax is measured beside ours. PureJaxRL is not a package, and rejax
needs an older gymnax: `--peers PYTHON` is a Python with rejax, flax, distrax and
`gymnax<1`, and `--purejaxrl PATH` the folder `purejaxrl` of a clone of
github.com/luchris429/purejaxrl. Stubs replace brax and navix, which PureJaxRL imports
for environments that are not used here.
"""

import argparse
import statistics
import sys

from .measure import median_ratio
from .ppo_workers import GYMNAX_NAMES, SETTINGS, steps_of
from .workers import compare


WORKERS = "benchmarks.ppo_workers"
OURS = ("alone", "train")


def commands(setting: str, arguments: argparse.Namespace) -> dict[str, list[str]]:
    """The command that starts each library's process."""

    def command(python: str, library: str, *rest: str) -> list[str]:
        return [python, "-m", WORKERS, library, setting, *rest]

    started = {name: command(sys.executable, name) for name in OURS}
    if setting not in GYMNAX_NAMES:
        return started | {"brax": command(sys.executable, "brax")}
    if arguments.peers:
        started["rejax"] = command(arguments.peers, "rejax")
        if arguments.purejaxrl:
            path = arguments.purejaxrl
            started["purejaxrl"] = command(arguments.peers, "purejaxrl", path)
    return started


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
