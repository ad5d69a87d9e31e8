"""Kills one of two processes that train a population together, and resumes both.

Run as `python -m tests.faults.processes --number 10`. The population trains once
undisturbed. Then one process or the other is killed by SIGKILL at random moments; the
one that is left must end within a minute, and say why. Both are started again and
resume, until they come to their end, where each must have the same history and winner,
to the last bit. Exits with 1 otherwise.
"""

import argparse
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from .kills import environment


_SECONDS = 60
# In which a process that is left alone must have come to its end.
_WHOLE_SECONDS = 600
# What is said by the library, and by JAX where it ends a process itself.
_REASONS = ("most likely since another one has ended", "another task died")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=10, help="kills in all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        whole, killed = Path(name, "whole"), Path(name, "killed")
        began = time.monotonic()
        _train(whole, None, 0)
        duration = time.monotonic() - began
        kills = told = ends = same = 0
        longest = 0.0
        while kills < options.number or killed.exists():
            limit = chance.uniform(0, duration) if kills < options.number else None
            seconds = _train(killed, limit, kills % 2)
            if seconds is None:
                ends += 1
                same += _is_same(whole, killed)
                shutil.rmtree(killed)
                continue
            # Before both have begun, the other waits for the killed one.
            log = (killed / f"{1 - kills % 2}.log").read_text()
            told += any(reason in log for reason in _REASONS)
            print(f"killed after {limit:.0f} s, the other ended after {seconds:.1f} s")
            longest = max(longest, seconds)
            kills += 1
    print(
        f"{kills} kills, of which the other process told {told}, after {longest:.0f} s "
        f"at most; {ends} ends, {same} the same"
    )
    return 0 if longest <= _SECONDS and told == kills and same == ends else 1


def _train(folder: Path, limit: float | None, victim: int) -> float | None:
    """Trains on two processes, of which the victim is killed after `limit` seconds.

    Returns for how long the other went on; `None` if both came to their end.
    """
    folder.mkdir(exist_ok=True)
    children = _start(folder)
    killed_at = None
    try:
        children[victim].wait(limit)
    except subprocess.TimeoutExpired:
        children[victim].kill()
        killed_at = time.monotonic()
    codes = [_wait(child) for child in children]
    if killed_at is not None:
        return time.monotonic() - killed_at
    if codes != [0, 0]:
        logs = [(folder / f"{index}.log").read_text() for index in range(2)]
        raise RuntimeError("\n".join([f"ended with {codes}", *logs]))
    return None


def _wait(child: "subprocess.Popen[bytes]") -> int:
    """The exit code of a process, which is killed if it hangs."""
    try:
        return child.wait(_WHOLE_SECONDS)
    except subprocess.TimeoutExpired:
        child.kill()
        return child.wait()


def _start(folder: Path) -> list[subprocess.Popen[bytes]]:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    children = []
    for index in range(2):
        arguments = map(str, (index, 2, port, folder))
        with (folder / f"{index}.log").open("wb") as log:
            children.append(
                subprocess.Popen(
                    [sys.executable, "-m", f"{__package__}.process", *arguments],
                    env=environment() | {"JAX_PLATFORMS": "cpu"},
                    stdout=log,
                    stderr=log,
                )
            )
    return children


def _is_same(whole: Path, killed: Path) -> bool:
    return all(
        (whole / name).read_bytes() == (killed / name).read_bytes()
        for name in ("found_0.npz", "found_1.npz")
    )


if __name__ == "__main__":
    sys.exit(main())
