"""What a command says while it works, and reports that must not end it."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from .._run import Checkpoints, checkpoints_folder


def say(message: str) -> None:
    """Writes one line to the standard error, if there is still one."""
    with contextlib.suppress(OSError, ValueError):
        print(f"eqrl: {message}", file=sys.stderr, flush=True)


class Reporter:
    """A callback of training whose errors are said once and do not end it.

    What is reported may be a context manager, which this enters and leaves.
    """

    def __init__(self, name: str, report: Any) -> None:
        """**Arguments:**

        - `name`: in words, for the message.
        - `report`: the callback.
        """
        self._name = name
        self._report = report
        self._has_failed = False

    def __enter__(self) -> "Reporter":
        if hasattr(self._report, "__enter__"):
            self._try(self._report.__enter__)
        return self

    def __exit__(self, *exception: object) -> None:
        del exception
        if hasattr(self._report, "__exit__"):
            self._try(self._report.__exit__, None, None, None)

    def __call__(self, *arguments: Any) -> None:
        if not self._has_failed:
            self._try(self._report, *arguments)

    def _try(self, function: Callable[..., Any], *arguments: Any) -> None:
        try:
            function(*arguments)
        except Exception as error:
            if not self._has_failed:
                say(f"{self._name} failed, and training goes on: {one_line(error)}")
            self._has_failed = True


@contextlib.contextmanager
def without_ending(name: str) -> Iterator[None]:
    """Says what goes wrong in a report, and goes on behind it."""
    try:
        yield
    except Exception as error:
        say(f"{name} failed: {one_line(error)}")


def one_line(error: BaseException) -> str:
    """The message of an error, or its name if it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def open_checkpoints(folder: Path, *, every_steps: int | None = None) -> Checkpoints:
    """The checkpoints of a run, of which only the first failure is said."""
    return Checkpoints(
        checkpoints_folder(folder),
        every_steps=every_steps,
        on_error=lambda error: say(
            "A checkpoint could not be written, and training goes on: "
            + one_line(error)
        ),
    )
