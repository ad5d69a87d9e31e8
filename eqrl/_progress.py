import math
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Array


class ProgressBar:
    """Shows how far a training is; a callback of `train` and of `train_seeds`.

    ```python
    with eqrl.ProgressBar(num_steps=20_000) as progress:
        eqrl.train(agent, env, trainer, num_steps=20_000, key=key, callback=progress)
    ```

    It says that JAX compiles until the first row of metrics is there; then the steps,
    their rate without the time of compiling, the latest episodes' return, as a mean
    over seeds, and the time left. Where the standard output is no terminal, it prints a
    line now and then.
    """

    def __init__(
        self,
        num_steps: int,
        *,
        seconds_between_lines: float = 10.0,
    ) -> None:
        """**Arguments:**

        - `num_steps`: the step at which training ends. Where it goes on from an earlier
            solution, add the steps of that one.
        - `seconds_between_lines`: at least this long between two lines where the output
            is no terminal.
        """
        self._num_steps = num_steps
        self._seconds_between_lines = seconds_between_lines
        self._first: tuple[int, float] | None = None
        self._last_return = math.nan
        self._last_line_time = -math.inf
        self._bar: Any = None
        self._task: Any = None

    def __enter__(self) -> "ProgressBar":
        if sys.stdout.isatty():
            self._bar = _make_bar()
            self._task = self._bar.add_task("compiling", total=None, status="")
            self._bar.start()
        else:
            print("compiling", flush=True)
        return self

    def __exit__(self, *exception: object) -> None:
        del exception
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __call__(
        self, step: int, metrics: Mapping[str, np.ndarray | Array], state: object
    ) -> None:
        """Takes note of one row of metrics; `train` calls this."""
        del state
        now = time.monotonic()
        if self._first is None:
            self._first = (step, now)
        self._take_return(metrics)
        status = self._status(step, now)
        if self._bar is not None:
            self._bar.update(
                self._task,
                description="training",
                completed=step,
                total=self._num_steps,
                status=status,
            )
        elif (
            now - self._last_line_time >= self._seconds_between_lines
            or step >= self._num_steps
        ):
            self._last_line_time = now
            print(status, flush=True)

    def _take_return(self, metrics: Mapping[str, np.ndarray | Array]) -> None:
        # With vector rewards there is one for each element, and no single number.
        returns = np.asarray(metrics.get("episode_return", math.nan))
        known = returns[np.isfinite(returns)]
        if known.size > 0:
            self._last_return = float(known.mean())

    def _status(self, step: int, now: float) -> str:
        assert self._first is not None
        first_step, first_time = self._first
        parts = [f"{step:,}/{self._num_steps:,} steps"]
        left = None
        if step > first_step and now > first_time:
            rate = (step - first_step) / (now - first_time)
            parts.append(f"{rate:,.0f} steps/s")
            left = max(self._num_steps - step, 0) / rate
        if not math.isnan(self._last_return):
            parts.append(f"return {self._last_return:,.1f}")
        if left is not None:
            parts.append(f"{_clock(left)} left")
        return "  ".join(parts)


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
