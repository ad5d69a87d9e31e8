import logging
import os
import sys
import warnings
from collections.abc import Sequence

from .._types.installed import NotInstalledError
from .commands import Disk, Evaluate, Export, Pbt, Plot, Train, parse
from .devices import keep_compilations, make_devices_for
from .finished import run_evaluate, run_export, run_plot, run_render
from .jobs import make_job
from .training import one_line, run_training, say


def main(args: Sequence[str] | None = None) -> int:
    """The command line, `eqrl`.

    **Arguments:**

    - `args`: the words after `eqrl`; `None` takes them from the command line.

    **Returns:**

    The exit code: 0, 1 if training met `nan`, 2 if the arguments are wrong or need a
    package that is not installed, 130 after Ctrl-C, 143 after SIGTERM, or 129 after
    SIGHUP.
    """
    # Orbax logs errors of its threads with tracebacks; `say` prints them in one line.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    # JAX compiles again if its cache cannot be read or written, as on a full disk.
    warnings.filterwarnings("ignore", "Error .* persistent compilation", UserWarning)
    keep_compilations()
    try:
        command = parse(sys.argv[1:] if args is None else args)
        if isinstance(command, (Train, Pbt, Disk)):
            # JAX fixes the number of devices when it makes the first array.
            make_devices_for(command.run.schedule)
            return run_training(make_job(command), command.place)
        if isinstance(command, Evaluate):
            return run_evaluate(command)
        if isinstance(command, Export):
            return run_export(command)
        if isinstance(command, Plot):
            return run_plot(command)
        return run_render(command)
    except KeyboardInterrupt:
        say("Interrupted.")
        return 130
    except (ValueError, OSError, NotInstalledError) as error:
        say(one_line(error))
        return 2
    finally:
        # At exit Python would complain about a closed output pipe.
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:
            sys.stdout = open(os.devnull, "w")
