"""JSON files that notice when they were damaged."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from .version import __version__, is_newer


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
