import contextlib
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import filelock


# The package takes its version from here, and written files name it.
__version__ = "0.1.0"


def is_newer(version: object) -> bool:
    """Whether the version in a file is later than this library's."""
    return isinstance(version, str) and _numbers(version) > _numbers(__version__)


def _numbers(version: str) -> list[int]:
    """The numbers that a version begins with."""
    release = re.match(r"\d+(\.\d+)*", version)
    return [int(part) for part in release[0].split(".")] if release else []


PARTIAL = ".partial"
"""Suffix of a partly written file."""


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yields a temporary path, whose file replaces `path` if the block succeeds.

    Missing folders above `path` are created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}{PARTIAL}")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


Content = dict[str, Any]
Parsed = TypeVar("Parsed")

_DIGEST = "digest"

# The reason in a library's error may be a page long.
_MAX_REASON = 240


class _DamagedError(ValueError):
    """A file does not hold what was written."""


def sealed(content: Mapping[str, Any]) -> Content:
    """Adds the digest that lets `read_json` detect changes."""
    return {**content, _DIGEST: _digest(content)}


def read_json(path: Path, parse: Callable[[Content], Parsed], advice: str) -> Parsed:
    """Parses the object in a JSON file, without its digest.

    A file without a digest is read too, since an edited file has none. `parse` raises
    an error for names that it does not know.

    Raises a `ValueError` of one line, which names the file and ends in `advice`, if the
    file is missing or damaged, or if `parse` does not accept it.
    """
    # The handlers look up the version in it, even if the file could not be read.
    content: Content = {}
    try:
        content = _read_object(path)
        rest = {name: value for name, value in content.items() if name != _DIGEST}
        if _DIGEST in content and content[_DIGEST] != _digest(rest):
            raise _DamagedError(
                "it was changed since (its `digest` differs; if you did that, delete "
                "it)"
            )
        return parse(rest)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ValueError(f"`{path}` cannot be read: {reason}; {advice}.") from error
    # Errors that `parse` may raise for content of an unexpected form.
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
    """The message of an error, in one short line."""
    if isinstance(error, KeyError):
        return f"there is no {one_line(error)} in it"
    text = one_line(error)
    if isinstance(error, ValueError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def one_line(value: object) -> str:
    """The text of a value without line breaks, shortened if it is too long."""
    text = " ".join(str(value).split()).rstrip(".")
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}..."


def _read_object(path: Path) -> Content:
    try:
        content = json.loads(path.read_bytes().decode())
    except RecursionError:
        raise _DamagedError("it is nested too deeply") from None
    except UnicodeDecodeError as error:
        raise _DamagedError(f"it is not text in UTF-8 ({error})") from error
    except ValueError as error:
        raise _DamagedError(f"it is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise TypeError(f"it holds a {type(content).__name__}, not an object")
    return content


def _digest(content: Mapping[str, Any]) -> str:
    text = json.dumps(content, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


LOCK = ".lock"
"""Name of the file in a folder that is locked."""


@contextlib.contextmanager
def locked(folder: Path, *, again: bool = False) -> Iterator[None]:
    """Locks a folder while the block runs, at most for as long as the process lives.

    Raises a `ValueError` of one line if another process holds the lock. The file stays,
    since another process may be about to lock it.

    - `again`: whether the thread may lock it once more within the block, in this way.
    """
    lock = filelock.FileLock(folder / LOCK, is_singleton=again)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise ValueError(
            f"`{folder}` is being written by another process; give another folder, or "
            "wait for it to end."
        ) from None
    try:
        yield
    finally:
        lock.release()
