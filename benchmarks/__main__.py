"""Measures speed in minutes: a table of rows with quartiles.

The rows are updates a second of every agent, steps a second with and without learning,
populations from 1 to 64, rows written to and batches drawn from the replay by its
capacity, the copying of members, and the time and memory of compiled programs. Each is
measured in turns with the same matmuls alone. `--peers` first measures other libraries
on the same work, each installed in its own environment.

`--check FILE` compares with the JSON of an earlier run, as ratios to the machine's
limit, and exits with 1 if a row is worse beyond the spread. Run it as `nox -s
benchmarks`; the JSON is `benchmarks.json`, or the file of `--output`.
"""

import argparse
from pathlib import Path

from .agent_rows import STEPS, UPDATES
from .command import add_arguments, chosen, measure_all
from .compile_rows import COMPILES
from .environments import ENVIRONMENTS
from .peer_environments import REQUIREMENTS
from .peers import peer_rows
from .population_rows import EXPLOITS, POPULATIONS
from .replay_rows import REPLAYS


# The rows that are measured by default.
STANDARD = UPDATES | STEPS | POPULATIONS | REPLAYS | EXPLOITS | COMPILES


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=list(REQUIREMENTS),
        help="measure these libraries too; without a name, all",
    )
    arguments = parser.parse_args()
    if arguments.output is None:
        # Do not overwrite the file of the comparison.
        names = [Path("benchmarks.json"), Path("benchmarks-new.json")]
        is_same = arguments.check and arguments.check.resolve() == names[0].resolve()
        arguments.output = names[bool(is_same)]
    peers = {} if arguments.peers is None else peer_rows(arguments.peers)
    # Peers come first, before JAX takes memory here.
    benchmarks = {**peers, **STANDARD, **ENVIRONMENTS}
    only = arguments.only or [*peers, *STANDARD]
    names = chosen(list(benchmarks), only)
    measure_all({name: benchmarks[name] for name in names}, arguments)


if __name__ == "__main__":
    main()
