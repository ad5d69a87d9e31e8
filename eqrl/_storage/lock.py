"""A lock on a folder, so that one process at a time writes it."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO


LOCK = ".lock"
"""Name of the file in a folder that is locked."""

Owner = dict[str, str | int | None]
"""Process, host and the time at which the process began."""


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder, and unlocks it at the end, also after an error.

    The lock of a process that is gone is taken over. Raises a `ValueError` of one line
    if another process holds it.
    """
    path = folder / LOCK
    own = _owner()
    _take(path, own)
    try:
        yield
    finally:
        _release(path, own)


def _take(path: Path, own: Owner) -> None:
    while True:
        try:
            descriptor = _open(path)
        except FileNotFoundError:
            if not path.parent.is_dir():
                raise
            # Its owner released it since.
            continue
        with os.fdopen(descriptor, "r+") as file, _alone(file):
            if os.fstat(descriptor).st_nlink == 0:
                continue
            owner = _read(file)
            if owner is not None and _is_alive(owner):
                raise ValueError(
                    f"`{path.parent}` is being written by process "
                    f"{owner.get('process')} on {owner.get('host')}; give another "
                    "folder, or wait for it to end. If there is no such process, "
                    f"delete `{path}`."
                )
            _write(file, own)
            return


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)
    except FileExistsError:
        return os.open(path, os.O_RDWR)


def _release(path: Path, own: Owner) -> None:
    try:
        file = open(path, "r+")
    except OSError:
        # Somebody deleted it, or the file system is gone.
        return
    with file, _alone(file):
        if _read(file) == own:
            path.unlink(missing_ok=True)


@contextlib.contextmanager
def _alone(file: TextIO) -> Iterator[None]:
    """Waits until no other process has the open file, until it is closed."""
    # Some systems know no such locks, and some file systems.
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)
    yield


def _read(file: TextIO) -> Owner | None:
    """Who holds the lock; `None` if that was never written."""
    file.seek(0)
    text = file.read()
    try:
        owner = json.loads(text) if text else None
    except ValueError:
        owner = {}
    return owner


def _write(file: TextIO, owner: Owner) -> None:
    file.seek(0)
    file.truncate()
    file.write(json.dumps(owner) + "\n")
    file.flush()


def _owner() -> Owner:
    process = os.getpid()
    return {
        "process": process,
        "host": socket.gethostname(),
        "began": _time_of_beginning(process),
    }


def _is_alive(owner: Owner) -> bool:
    """Whether a process is there still; of another host that is not known."""
    process = owner.get("process")
    if owner.get("host") != socket.gethostname() or not isinstance(process, int):
        return True
    if os.name != "posix":
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # It belongs to somebody else.
    # A later process may have the number of one that is gone.
    return owner.get("began") == _time_of_beginning(process)


def _time_of_beginning(process: int) -> str | None:
    """When a process began, as Linux has it; `None` where that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # The name of the program, in parentheses, may hold anything.
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return f"{boot} {fields[19]}"
