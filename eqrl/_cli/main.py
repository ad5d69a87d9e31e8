import sys
import warnings
from collections.abc import Sequence

from .commands import Command, Evaluate, Pbt, Train, parse
from .evaluate import run_evaluate
from .pbt import run_pbt
from .render import run_render
from .train import run_train


def main(args: Sequence[str] | None = None) -> int:
    """The command line.

    **Arguments:**

    - `args`: what stands behind `eqrl`; `None` takes it from the command line.

    **Returns:**

    The exit code: 0, or 1 where training met `nan`, 2 where the arguments are wrong,
    130 after Ctrl-C.
    """
    # Brax says at every use that it is not being developed; nothing can be done here.
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
        return run_train(command)
    if isinstance(command, Pbt):
        return run_pbt(command)
    if isinstance(command, Evaluate):
        return run_evaluate(command)
    return run_render(command)
