"""The command line of benchmarks that give rows: a table, a file, and a comparison."""

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import eqrl

from .measure import Effort, machine
from .report import TITLE, Row, compare, line, read, write


MakeRows = Callable[[Effort], list[Row]]


def chosen(names: Sequence[str], only: Sequence[str]) -> list[str]:
    """The given names and the names below them, as in `updates` and `updates/SAC`."""
    if not only:
        return list(names)
    unknown = [
        given for given in only if not any(_is_below(name, given) for name in names)
    ]
    if unknown:
        raise SystemExit(f"No rows are called {unknown}; there are {', '.join(names)}.")
    return [name for name in names if any(_is_below(name, given) for given in only)]


def _is_below(name: str, given: str) -> bool:
    return name == given or name.startswith(given.rstrip("/") + "/")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", default=[], help="rows, or groups of them")
    parser.add_argument("--output", type=Path, help="where to write the JSON")
    parser.add_argument("--check", type=Path, help="JSON of an earlier run")
    parser.add_argument(
        "--tolerance",
        type=float,
        default=0.05,
        help="by how much, beside the spread, a row may be worse in a check",
    )
    parser.add_argument("--seconds", type=float, default=0.3, help="of a turn")
    parser.add_argument("--repeats", type=int, default=7, help="turns of each row")


def run_command(
    benchmarks: Mapping[str, MakeRows], *, description: str | None = None
) -> None:
    """Measures the rows of the command line's options."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_arguments(parser)
    arguments = parser.parse_args()
    names = chosen(list(benchmarks), arguments.only)
    measure_all({name: benchmarks[name] for name in names}, arguments)


def measure_all(
    benchmarks: Mapping[str, MakeRows], arguments: argparse.Namespace
) -> None:
    """Prints and writes all rows; exits with 1 if one is slower than before."""
    # Read first, so that a missing file is an error before minutes of measuring.
    before = read(arguments.check) if arguments.check else None
    effort = Effort(seconds=arguments.seconds, repeats=arguments.repeats)
    begin = time.perf_counter()
    rows: list[Row] = []
    # The processes of peers also need memory of a GPU.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    eqrl.use_all_cores()
    print(TITLE, flush=True)
    for make_rows in benchmarks.values():
        for row in make_rows(effort):
            rows.append(row)
            print(line(row), flush=True)
        if arguments.output:
            # After each row, so that earlier rows are kept if a later one fails.
            write(arguments.output, rows, machine())
    minutes = (time.perf_counter() - begin) / 60
    where = f", written to {arguments.output}" if arguments.output else ""
    print(f"\n{len(rows)} rows in {minutes:.1f} minutes{where}.", flush=True)
    if before is not None and not _is_as_fast(rows, *before, arguments):
        sys.exit(1)


def _is_as_fast(
    rows: Sequence[Row],
    before: Sequence[Row],
    machine_before: Mapping[str, str],
    arguments: argparse.Namespace,
) -> bool:
    """Prints each row beside the earlier one."""
    comparisons = compare(rows, before, tolerance=arguments.tolerance)
    print("\nAs ratios to the machine's limit, each in its own run:\n")
    print("| what | times as good as before | |\n|---|---|---|")
    for comparison in comparisons:
        verdict = "worse, beyond the spread" if comparison.slower else ""
        print(f"| {comparison.name} | {comparison.ratio:.3f} | {verdict} |")
    differing = {
        name: (value, machine().get(name))
        for name, value in machine_before.items()
        if machine().get(name) != value
    }
    if differing:
        print(f"\nThe machines differ (before, now): {differing}.")
    compared = {comparison.name for comparison in comparisons}
    new = [row.name for row in rows if row.is_checked and row.name not in compared]
    if new:
        print(f"\nNot in {arguments.check}: {', '.join(new)}.")
    gone = [row.name for row in before if row.is_checked and row.name not in compared]
    if gone and not arguments.only:
        print(f"\nOnly in {arguments.check}: {', '.join(gone)}.")
    slower = [comparison.name for comparison in comparisons if comparison.slower]
    print(
        f"\n{len(slower)} of {len(comparisons)} rows are worse than in "
        f"{arguments.check}, beyond the spread: {', '.join(slower) or 'none'}."
    )
    return not slower
