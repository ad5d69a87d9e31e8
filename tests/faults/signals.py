"""Stops trainings of the command line in all ways but SIGKILL, and resumes them.

Run as `python -m tests.faults.signals`. A training of SAC runs once undisturbed. Then
it is stopped by SIGTERM, by SIGHUP and by two Ctrl-C at several distances, loses its
standard output, and may write small files only. After each it is resumed, and must
end as the undisturbed one, bit for bit. Prints what became of each; exits with 1 if
one was not as it should be.
"""

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from .kills import KINDS, environment, is_same


_SAC = KINDS["sac"].split()
_DISTANCES = (0.0, 0.05, 0.2, 0.5, 0.8, 1.2, 2.0, 4.0)


def main() -> int:
    # What a shell ignores in the background, the trainings would ignore too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        whole = folder / "whole"
        if _end(_start(whole))[0] != 0:
            raise RuntimeError("it does not train")
        # Again, with all compiled.
        began = time.monotonic()
        _end(_start(folder / "timed"))
        half_time = (time.monotonic() - began) / 2
        failures = 0
        for title, stop in _attacks(half_time):
            victim = folder / "victim"
            code, line = stop(victim)
            resumed, _ = _end(_start(victim, resume=True))
            same = resumed == 0 and is_same(whole, victim)
            failures += not same
            print(f"{title:32} exit {code:4}  same {same}  {line}", flush=True)
            shutil.rmtree(victim, ignore_errors=True)
    return 1 if failures else 0


_Attack = Callable[[Path], tuple[int, str]]


def _attacks(delay: float) -> list[tuple[str, _Attack]]:
    attacks: list[tuple[str, _Attack]] = [
        ("SIGTERM", lambda folder: _signalled(folder, delay, [signal.SIGTERM])),
        ("SIGHUP", lambda folder: _signalled(folder, delay, [signal.SIGHUP])),
    ]
    for distance in _DISTANCES:
        attacks.append(
            (
                f"two Ctrl-C, {distance} s apart",
                lambda folder, distance=distance: _signalled(
                    folder, delay, [signal.SIGINT] * 2, distance
                ),
            )
        )
    attacks += [
        (
            "standard output closed",
            lambda folder: _end(_start(folder, shell="exec 1>&-")),
        ),
        ("standard output broken", _broken),
        ("files of 16 KiB at most", _small),
    ]
    return attacks


def _start(
    folder: Path,
    *,
    resume: bool = False,
    output: int = subprocess.DEVNULL,
    shell: str = "",
) -> "subprocess.Popen[str]":
    """Begins the training, or goes on with it, after some words for the shell."""
    arguments = [*_SAC, "--folder", str(folder)]
    if resume and (folder / "config.json").exists():
        arguments = ["train", "--resume", str(folder)]
    command = [sys.executable, "-m", "eqrl", *arguments]
    return subprocess.Popen(
        ["bash", "-c", f'{shell}; exec "$@"' if shell else 'exec "$@"', "-", *command],
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )


def _end(process: "subprocess.Popen[str]") -> tuple[int, str]:
    """The exit code, and the first line of what was said."""
    _, said = process.communicate()
    return process.returncode, said.partition("\n")[0][:100]


def _signalled(
    folder: Path, delay: float, signals: list[signal.Signals], distance: float = 0.0
) -> tuple[int, str]:
    process = _start(folder)
    time.sleep(delay)
    for number in signals:
        process.send_signal(number)
        time.sleep(distance)
    return _end(process)


def _broken(folder: Path) -> tuple[int, str]:
    process = _start(folder, output=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    process.stdout = None
    return _end(process)


def _closed(folder: Path) -> tuple[int, str]:
    return _end(_start(folder, shell="exec 1>&-"))


def _small(folder: Path) -> tuple[int, str]:
    return _end(_start(folder, shell="ulimit -f 16"))


if __name__ == "__main__":
    sys.exit(main())
