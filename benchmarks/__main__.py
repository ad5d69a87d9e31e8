"""How fast this is: a table of rows, each with its quartiles, in minutes.

Updates a second of every agent, steps a second with and without learning, populations
from 1 to 64, rows written to and batches drawn from the replay by its capacity, the
copying of members, and the time and memory of compiled programs. Beside them stand the
same matmuls alone, measured in turns with them.

`--check FILE` compares with the JSON of an earlier run, as ratios to the machine's
limit, and exits with 1 if a row is worse beyond the spread. Run it as
`nox -s benchmarks`; the JSON is `benchmarks.json`, or what `--output` says.
"""

import argparse
from pathlib import Path

from .agent_rows import STEPS, UPDATES
from .command import add_arguments, chosen, measure_all
from .compile_rows import COMPILES
from .population_rows import EXPLOITS, POPULATIONS
from .replay_rows import REPLAYS


STANDARD = UPDATES | STEPS | POPULATIONS | REPLAYS | EXPLOITS | COMPILES


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    arguments = parser.parse_args()
    if arguments.output is None:
        # Never over the file that it is compared with.
        names = [Path("benchmarks.json"), Path("benchmarks-new.json")]
        arguments.output = names[arguments.check == names[0]]
    names = chosen(list(STANDARD), arguments.only)
    measure_all({name: STANDARD[name] for name in names}, arguments)


if __name__ == "__main__":
    main()
