"""Rows of other libraries beside this one, on the same work.

Each library is in its own process, with its own Python. Processes take turns, and
several sets of them are started, because one program is faster or slower from process
to process. `peer_workers.py` and `ppo_workers.py` define the work. PureJaxRL is not a
package: `ppo_speed.py` explains how to measure it by hand.
"""

import functools
import sys
from collections.abc import Callable, Mapping, Sequence

from . import peer_environments, peer_workers, ppo_workers
from .command import MakeRows
from .measure import Effort
from .report import Row
from .workers import compare


PROCESSES = 2

# Each work with the libraries that do it; the first one is this library.
WORKS = {
    "sac": ("eqrl", "bfloat16", "qdax", "brax", "sbx", "sbx-64", "rejax"),
    "td3": ("eqrl", "bfloat16", "qdax", "sbx", "sbx-64", "rejax"),
    "diayn": ("eqrl", "bfloat16", "qdax"),
    "sac-8": ("eqrl", "train_seeds", "qdax"),
    "td3-8": ("eqrl", "qdax"),
    "ppo-fast": ("alone", "train", "brax"),
    "ppo-cartpole": ("alone", "train", "rejax"),
}
OURS = ("eqrl", "bfloat16", "train_seeds", "alone", "train")


def _package_of(library: str) -> str:
    return library.partition("-")[0]


@functools.cache
def _python(library: str) -> str | None:
    """The Python for a library; `None` if it cannot be installed."""
    if library in OURS:
        return sys.executable
    try:
        return peer_environments.python_of(_package_of(library))
    except peer_environments.NotInstalled as error:
        print(f"{library} is left out: {error}", file=sys.stderr, flush=True)
        return None


def _commands(work: str, libraries: Sequence[str]) -> dict[str, list[str]]:
    """The command that starts each process; `bfloat16` is this library's option."""
    module, setting = "peer_workers", work
    if work.startswith("ppo-"):
        module, setting = "ppo_workers", work.removeprefix("ppo-")
    return {
        library: [python, "-m", f"benchmarks.{module}", library, setting]
        for library in libraries
        if (python := _python(library)) is not None
    }


def _amount(work: str) -> tuple[int, str]:
    """The amount of work of one measurement, and its unit."""
    if work.startswith("ppo-"):
        return ppo_workers.steps_of(work.removeprefix("ppo-")), "steps/s"
    return peer_workers.updates_of(work), "updates/s"


def _rows_of(work: str, libraries: Sequence[str]) -> MakeRows:
    def make(effort: Effort) -> list[Row]:
        commands = _commands(work, libraries)
        if set(commands) <= set(OURS):
            return []
        try:
            _, times = compare(commands, processes=PROCESSES, repeats=effort.repeats)
        except RuntimeError as error:
            # The output of the process is above; the other rows are still useful.
            print(f"peers/{work} is left out: {error}", file=sys.stderr, flush=True)
            return []
        amount, unit = _amount(work)
        ours = [measured.wall for measured in times[libraries[0]]]
        rows: list[Row] = []
        for library, measured in times.items():
            walls = [each.wall for each in measured]
            cores = sum(each.cpu for each in measured) / sum(walls)
            note = f"cores in use: {cores:.2f}"
            name = f"peers/{work}/{library}"
            rates = tuple(amount / wall for wall in walls)
            # Without a limit of the machine; the ratios below are what is checked.
            rows.append(Row(name, unit, rates, note=note, is_checked=False))
            if library != libraries[0]:
                ratios = tuple(x / y for x, y in zip(walls, ours, strict=True))
                beside = f"peers/{work}/{libraries[0]} beside {library}"
                # A greater ratio of two of our own programs is not better.
                is_checked = library not in OURS
                rows.append(Row(beside, "times", ratios, is_checked=is_checked))
        return rows

    return make


def peer_rows(packages: Sequence[str]) -> Mapping[str, MakeRows]:
    """Rows of all work that one of the packages does; by default, of all packages."""
    rows: dict[str, Callable[[Effort], list[Row]]] = {}
    for work, libraries in WORKS.items():
        wanted = [
            library
            for library in libraries
            if library in OURS or not packages or _package_of(library) in packages
        ]
        if not set(wanted) <= set(OURS):
            rows[f"peers/{work}"] = _rows_of(work, wanted)
    return rows
