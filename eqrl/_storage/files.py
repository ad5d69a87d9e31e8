import contextlib
import hashlib
import json
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, TypeVar


# That of the installed package is taken from here, and files that are written name it.
__version__ = "0.1.0"


def is_newer(version: object) -> bool:
    """Whether a version that stands in a file is later than this library's."""
    return isinstance(version, str) and _numbers(version) > _numbers(__version__)


def _numbers(version: str) -> list[int]:
    """The numbers that a version begins with."""
    release = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in release[0].split(".")] if release else []


PARTIAL = ".partial"
"""Stands behind the name of a file that is not whole yet."""


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary path, whose file replaces `path` if the block succeeds."""
    partial = path.with_name(f"{path.name}{PARTIAL}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


Content = dict[str, Any]
Parsed = TypeVar("Parsed")

_DIGEST = "digest"

# A reason that a library gives may be a page long.
_MAX_REASON = 240


class _DamagedError(ValueError):
    """A file does not hold what was written."""


def sealed(content: Mapping[str, Any]) -> Content:
    """The content with the digest by which `read_json` notices a change of it."""
    return {**content, _DIGEST: _digest(content)}


def read_json(path: Path, parse: Callable[[Content], Parsed], advice: str) -> Parsed:
    """What `parse` makes of the object in a JSON file, its digest left out.

    A file without a digest is read too: earlier versions wrote none, and who edits a
    file by hand takes it out. `parse` raises an error for names that it does not know.

    Raises a `ValueError` of one line, which names the file and ends in `advice`, unless
    the file is there, is as it was written, and `parse` takes it.
    """
    content: Content = {}
    try:
        content = _read_object(path)
        return parse(_unsealed(content))
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(f"`{path}` cannot be read: {reason}; {advice}.") from error
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        version = content.get("eqrl")
        if is_newer(version):
            raise ValueError(
                f"`{path}` was saved by eqrl {one_line(version)}, newer than this one "
                f"({__version__}), which cannot read it ({reason_of(error)}). "
                "Update eqrl to load it."
            ) from error
        what = (
            "is damaged"
            if isinstance(error, _DamagedError)
            else "is not as this version of eqrl writes it"
        )
        raise ValueError(f"`{path}` {what}: {reason_of(error)}; {advice}.") from error


def reason_of(error: BaseException) -> str:
    """What an error says, in one line that is not too long."""
    if isinstance(error, KeyError):
        return f"there is no {one_line(error)} in it"
    text = one_line(error)
    if isinstance(error, ValueError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def one_line(value: object) -> str:
    """The text of a value without line breaks, cut where it is too long."""
    text = " ".join(str(value).split()).rstrip(".")
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}..."


def _read_object(path: Path) -> Content:
    try:
        content = json.loads(path.read_bytes().decode())
    except RecursionError:
        raise _DamagedError("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise _DamagedError(f"it is no text in UTF-8 ({error})") from error
    except ValueError as error:
        raise _DamagedError(f"it is no JSON ({error})") from error
    if not isinstance(content, dict):
        raise TypeError(f"it holds a {type(content).__name__}, not an object")
    return content


def _unsealed(content: Content) -> Content:
    rest = {name: value for name, value in content.items() if name != _DIGEST}
    if _DIGEST in content and content[_DIGEST] != _digest(rest):
        raise _DamagedError(
            "it was changed since (its `digest` differs; if you did that, delete it)"
        )
    return rest


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


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
