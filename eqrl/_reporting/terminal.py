import math
import sys
import time
from typing import Any


class Display:
    """A progress bar on a terminal, and lines from time to time elsewhere."""

    def __init__(self, total: int, *, seconds_between_lines: float) -> None:
        """**Arguments:**

        - `total`: the amount of work.
        - `seconds_between_lines`: minimum time between two lines if the output is not a
            terminal.
        """
        self._total = total
        self._seconds_between_lines = seconds_between_lines
        self._first: tuple[int, int, float] | None = None
        self._last_line_time = -math.inf
        self._bar: Any = None
        self._task: Any = None

    def start(self) -> None:
        """Shows that JAX compiles."""
        # There is none where it was closed.
        if sys.stdout is not None and sys.stdout.isatty():
            self._bar = _make_bar()
            self._task = self._bar.add_task("compiling", total=None, status="")
            self._bar.start()
        else:
            print("compiling", flush=True)

    def stop(self) -> None:
        """Restores the terminal."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def show(self, text: str, *, done: int, steps: int, result: str | None) -> None:
        """Shows the progress so far.

        The rate of steps and the remaining time are measured since the first call,
        before which JAX compiles.

        **Arguments:**

        - `text`: the progress in words.
        - `done`: how much of the total is done.
        - `steps`: number of environment steps, of all environments together.
        - `result`: the result so far, if there is one.
        """
        now = time.monotonic()
        if self._first is None:
            self._first = (done, steps, now)
        first_done, first_steps, first_time = self._first
        parts, left = [text], None
        if done > first_done and now > first_time:
            rate = (steps - first_steps) / (now - first_time)
            parts.append(f"{rate:,.0f} steps/s")
            left = (self._total - done) * (now - first_time) / (done - first_done)
        if result is not None:
            parts.append(result)
        if left is not None:
            parts.append(f"{_clock(max(left, 0.0))} left")
        self._write("  ".join(parts), done, now)

    def _write(self, status: str, done: int, now: float) -> None:
        if self._bar is not None:
            self._bar.update(
                self._task,
                description="training",
                completed=done,
                total=self._total,
                status=status,
            )
        elif (
            now - self._last_line_time >= self._seconds_between_lines
            or done >= self._total
        ):
            self._last_line_time = now
            print(status, flush=True)


def _make_bar() -> Any:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        TextColumn("{task.fields[status]}"),
        console=Console(),
    )


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"
