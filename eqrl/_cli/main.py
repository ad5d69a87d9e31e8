import sys
import warnings
from collections.abc import Sequence

from .commands import Command, Disk, Evaluate, Pbt, Train, parse
from .disk import library_job
from .evaluate import run_evaluate
from .pbt import population_job
from .render import run_render
from .train import seeds_job
from .training import run_training


def main(args: Sequence[str] | None = None) -> int:
    """The command line, `eqrl`.

    **Arguments:**

    - `args`: the words after `eqrl`; `None` takes them from the command line.

    **Returns:**

    The exit code: 0, 1 if training met `nan`, 2 if the arguments are wrong, or 130
    after Ctrl-C.
    """
    # Brax warns at every use that it is unmaintained, about which nothing can be done.
    warnings.filterwarnings("ignore", "Brax System", UserWarning)
    try:
        return _run(parse(sys.argv[1:] if args is None else args))
    except KeyboardInterrupt:
        print("eqrl: Interrupted.", file=sys.stderr)
        return 130
    except (ValueError, OSError) as error:
        print(f"eqrl: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


def _run(command: Command) -> int:
    if isinstance(command, Train):
        job = seeds_job(command)
        return run_training(job, command.folder, overwrite=command.overwrite)
    if isinstance(command, Pbt):
        job = population_job(command)
        return run_training(job, command.folder, overwrite=command.overwrite)
    if isinstance(command, Disk):
        job = library_job(command)
        return run_training(job, command.folder, overwrite=command.overwrite)
    if isinstance(command, Evaluate):
        return run_evaluate(command)
    return run_render(command)
