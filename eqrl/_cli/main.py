import contextlib
import gc
import hashlib
import io
import logging
import os
import platform
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path

import jax
import platformdirs

from .._types.installed import NotInstalledError
from ..envs._host import SimulatorError
from .commands import (
    Envs,
    Evaluate,
    Export,
    Plot,
    Train,
    make_devices_for,
    parse,
)
from .finished import chosen_policy, run_evaluate, run_export, run_plot, run_render
from .jobs import make_job
from .listing import run_envs
from .sweep import evaluate_sweep, is_sweep, plot_sweep, policy_of_sweep, run_sweep
from .training import message_of, run_training, say


def main(args: Sequence[str] | None = None) -> int:
    """The command line, `eqrl`.

    **Arguments:**

    - `args`: the words after `eqrl`; `None` takes them from the command line.

    **Returns:**

    The exit code: 0, 1 if training met `nan` or a simulator failed, 2 if the arguments
    are wrong or need a package that is not installed, 130 after Ctrl-C, 143 after
    SIGTERM, or 129 after SIGHUP.
    """
    # Orbax logs errors of its threads with tracebacks; `say` prints them in one line.
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    # JAX compiles again if its cache cannot be read or written, as on a full disk.
    warnings.filterwarnings("ignore", "Error .* persistent compilation", UserWarning)
    keep_compilations()
    # Not every terminal can show a `±` or the name of a folder.
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")
    thresholds = gc.get_threshold()
    # Collections while JAX traces find hardly any garbage among a million objects.
    gc.set_threshold(_OBJECTS_UNTIL_COLLECTION)
    try:
        args = sys.argv[1:] if args is None else args
        if list(args[:1]) == ["sweep"]:
            return run_sweep(args[1:])
        command = parse(args)
        if isinstance(command, Train):
            # JAX fixes the number of devices when it makes the first array.
            make_devices_for(command.run.schedule)
            return run_training(make_job(command), command.place)
        if isinstance(command, Evaluate) and is_sweep(command.folder):
            return evaluate_sweep(command)
        if isinstance(command, Plot) and any(map(is_sweep, command.folders)):
            return plot_sweep(command)
        if isinstance(command, Evaluate):
            return run_evaluate(command)
        if isinstance(command, Envs):
            return run_envs(command)
        if isinstance(command, Plot):
            return run_plot(command)
        choose = policy_of_sweep if is_sweep(command.folder) else chosen_policy
        if isinstance(command, Export):
            return run_export(command, choose(command))
        return run_render(command, choose(command))
    except KeyboardInterrupt as interruption:
        say("Interrupted.")
        # Shells report a process killed by a signal as 128 plus its number.
        given = next(iter(interruption.args), signal.SIGINT)
        return 128 + getattr(interruption, "signal", given)
    except (ValueError, OSError, NotInstalledError) as error:
        say(message_of(error))
        return 2
    except SimulatorError as error:
        say(message_of(error))
        return 1
    finally:
        gc.set_threshold(*thresholds)
        # At exit Python would complain about a closed output pipe.
        try:
            if sys.stdout is not None:
                sys.stdout.flush()
        except OSError:
            sys.stdout = open(os.devnull, "w")


_OBJECTS_UNTIL_COLLECTION = 100_000
_MOST_BYTES = 1_000_000_000

# JAX caches only programs that take a second to compile. Many smaller ones add up.
_SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


def keep_compilations() -> None:
    """Makes JAX keep compiled programs in the user's cache folder.

    JAX settings of the user take precedence: another folder, or no cache, as with
    `JAX_ENABLE_COMPILATION_CACHE=0`. Without a writable folder nothing is kept.
    """
    values = jax.config.values
    is_set = values["jax_compilation_cache_dir"] is not None
    if is_set or not values["jax_enable_compilation_cache"]:
        return
    try:
        root = platformdirs.user_cache_path("eqrl", appauthor=False) / "compiled"
        # Several machines may share a home, and a program compiled on one may contain
        # instructions that another lacks.
        described = [platform.machine(), platform.processor()]
        with contextlib.suppress(OSError):
            lines = Path("/proc/cpuinfo").read_text().splitlines()
            names = ("model name", "flags", "Features")
            described += sorted({line for line in lines if line.startswith(names)})
        folder = root / hashlib.sha256("\n".join(described).encode()).hexdigest()[:12]
        folder.mkdir(parents=True, exist_ok=True)
        forget_oldest(root, _MOST_BYTES)
    # `Path.home` raises a `RuntimeError` if there is no home.
    except (OSError, RuntimeError):
        return
    if not os.access(folder, os.W_OK):
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    for name, value in _SETTINGS.items():
        if name.upper() not in os.environ:
            jax.config.update(name, value)


def forget_oldest(root: Path, most_bytes: int) -> None:
    """Evicts the least recently used files beyond `most_bytes`.

    JAX can do this too, but it locks the folder for every program, and a process killed
    while holding the lock disables the cache.
    """
    entries: list[tuple[float, int, Path]] = []
    for path in root.glob("*/*"):
        with contextlib.suppress(OSError):  # Another command may delete it first.
            status = path.stat()
            used = max(status.st_atime, status.st_mtime)
            entries.append((used, status.st_size, path))
    too_much = sum(size for _, size, _ in entries) - most_bytes
    for _, size, path in sorted(entries):
        if too_much <= 0:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        too_much -= size
