"""Mutation testing: applies one fault at a time and runs the tests that should fail.

    python -m tests.mutants [--only NAME ...] [--jobs 2] [--output results.json]

Exits with 1 if some fault goes unseen.
"""

import argparse
import json
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue

from .fault import Fault, problem_of
from .faults import FAULTS
from .run import Outcome, copy_tree, passes, preload, try_fault


ROOT = Path(__file__).parents[2]


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.mutants", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument("--only", nargs="+", default=[], help="faults, or beginnings")
    parser.add_argument("--jobs", type=int, default=1, help="copies to work in")
    parser.add_argument("--timeout", type=float, default=600, help="seconds, each run")
    parser.add_argument("--output", type=Path, help="where to write what was found")
    parser.add_argument("--list", action="store_true", help="print the faults")
    parser.add_argument("--check", action="store_true", help="look at snippets only")
    parser.add_argument(
        "--sound", action="store_true", help="run all of the tests without a fault"
    )
    arguments = parser.parse_args()

    faults = _selected(arguments.only)
    if arguments.list:
        for fault in faults:
            print(f"{fault.name:<56} {fault.file}")
        return 0
    problems = {fault.name: problem_of(fault, ROOT) for fault in faults}
    wrong = {name: problem for name, problem in problems.items() if problem}
    for name, problem in wrong.items():
        print(f"{name}: {problem}", file=sys.stderr)
    if wrong or arguments.check:
        print(f"{len(faults) - len(wrong)} of {len(faults)} faults can be applied.")
        return 1 if wrong else 0
    preload()
    if arguments.sound:
        return _check_sound(faults, timeout=10 * arguments.timeout)
    outcomes = _try_all(
        faults,
        num_jobs=arguments.jobs,
        timeout=arguments.timeout,
        output=arguments.output,
    )
    _print_table(outcomes)
    return 0 if all(outcome.seen for outcome in outcomes.values()) else 1


def _selected(only: list[str]) -> list[Fault]:
    names = [fault.name for fault in FAULTS]
    unknown = [each for each in only if not any(n.startswith(each) for n in names)]
    if unknown:
        sys.exit(f"There are no faults {unknown}; `--list` prints those there are.")
    return [
        fault
        for fault in FAULTS
        if not only or any(fault.name.startswith(each) for each in only)
    ]


def _check_sound(faults: list[Fault], *, timeout: float) -> int:
    selections = list(dict.fromkeys(fault.tests[0] for fault in faults))
    failing = []
    with tempfile.TemporaryDirectory() as folder:
        copy_tree(ROOT, Path(folder))
        for index, selection in enumerate(selections):
            passed = passes(selection, Path(folder), timeout=timeout)
            print(
                f"{index + 1:>3}/{len(selections)} "
                f"{'passes' if passed else 'FAILS'}: {selection}",
                flush=True,
            )
            if not passed:
                failing.append(selection)
    return 1 if failing else 0


def _try_all(
    faults: list[Fault], *, num_jobs: int, timeout: float, output: Path | None
) -> dict[str, Outcome]:
    outcomes: dict[str, Outcome] = {}
    lock = threading.Lock()
    with tempfile.TemporaryDirectory() as folder:
        trees: SimpleQueue[Path] = SimpleQueue()
        for job in range(num_jobs):
            tree = Path(folder) / str(job)
            copy_tree(ROOT, tree)
            trees.put(tree)

        def attempt(fault: Fault) -> None:
            tree = trees.get()
            outcome = try_fault(fault, tree, timeout=timeout)
            trees.put(tree)
            with lock:
                outcomes[fault.name] = outcome
                print(
                    f"{len(outcomes):>3}/{len(faults)} {_line(fault.name, outcome)}",
                    flush=True,
                )
                if output is not None:
                    _write(output, outcomes)

        with ThreadPoolExecutor(num_jobs) as pool:
            list(pool.map(attempt, faults))
    return {fault.name: outcomes[fault.name] for fault in faults}


def _write(path: Path, outcomes: dict[str, Outcome]) -> None:
    # What was found of other faults stays.
    known = json.loads(path.read_text()) if path.is_file() else {}
    known |= {name: outcome.as_json() for name, outcome in outcomes.items()}
    path.write_text(json.dumps(known, indent=2) + "\n")


def _line(name: str, outcome: Outcome) -> str:
    seen = "seen" if outcome.seen else "UNSEEN"
    return f"{seen:<7}{outcome.cpu_seconds:>6.1f} s  {name:<40} {outcome.by}"


def _print_table(outcomes: dict[str, Outcome]) -> None:
    unseen = [name for name, outcome in outcomes.items() if not outcome.seen]
    seconds = sum(outcome.cpu_seconds for outcome in outcomes.values())
    rooms: dict[str, list[bool]] = {}
    for name, outcome in outcomes.items():
        rooms.setdefault(name.partition(":")[0], []).append(outcome.seen)
    print(f"\n{'room':<16}{'faults':>8}{'seen':>8}")
    for room, seen in rooms.items():
        print(f"{room:<16}{len(seen):>8}{sum(seen):>8}")
    print(f"{'all':<16}{len(outcomes):>8}{len(outcomes) - len(unseen):>8}")
    print(f"{seconds:.0f} seconds of processor time")
    for name in unseen:
        print(f"UNSEEN: {name}: {outcomes[name].by}")


if __name__ == "__main__":
    sys.exit(main())
