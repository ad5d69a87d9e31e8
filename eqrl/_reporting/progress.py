import math
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np
from jaxtyping import Array, Float

from .._disk.library import Skills
from .._population.solution import PopulationSolution, are_mean_returns, scores_of
from .._pytree.fields import check_integer, check_range


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


class ProgressBar:
    """Progress bar of a training run; a callback of `train` and of `train_seeds`.

    ```python
    with eqrl.ProgressBar(num_steps=20_000) as progress:
        eqrl.train(agent, env, trainer, num_steps=20_000, key=key, callback=progress)
    ```

    It shows that JAX compiles until the first row of metrics; then the steps, their
    rate (without compilation), the latest episodes' return (the mean over seeds) and
    the remaining time. Of an agent with an intrinsic reward it shows that reward, too,
    and no return as long as that is 0. If the standard output is not a terminal, it
    prints a line from time to time.
    """

    def __init__(
        self,
        num_steps: int,
        *,
        seconds_between_lines: float = 10.0,
    ) -> None:
        """**Arguments:**

        - `num_steps`: the step at which training ends. If it resumes an earlier
            solution, add that solution's steps.
        - `seconds_between_lines`: minimum time between two lines if the output is not a
            terminal.
        """
        check_integer("num_steps", num_steps, least=0)
        check_range("seconds_between_lines", seconds_between_lines, low=0)
        self._num_steps = num_steps
        self._display = Display(num_steps, seconds_between_lines=seconds_between_lines)
        self._return: str | None = None
        self._reward: str | None = None
        self._is_rewarded = False

    def __enter__(self) -> "ProgressBar":
        self._display.start()
        return self

    def __exit__(self, *exception: object) -> None:
        del exception
        self._display.stop()

    def __call__(
        self, step: int, metrics: Mapping[str, np.ndarray | Array], solution: object
    ) -> None:
        """Shows one row of metrics; `train` calls this."""
        del solution
        # With vector rewards there is one for each element, and no single number.
        returns = _known(metrics, "episode_return")
        if returns.size > 0:
            self._return = f"return {returns.mean():,.1f}"
        rewards = _known(metrics, "intrinsic_reward")
        if rewards.size > 0:
            self._reward = f"intrinsic reward {rewards.mean():,.2f}"
        # Skills are often learned where the environment gives nothing.
        self._is_rewarded |= "intrinsic_reward" not in metrics or bool(np.any(returns))
        results = [self._return if self._is_rewarded else None, self._reward]
        self._display.show(
            f"{step:,}/{self._num_steps:,} steps",
            done=step,
            steps=step,
            result="  ".join(filter(None, results)) or None,
        )


class PopulationProgressBar:
    """Progress bar of a population; a callback of `train_population`.

    ```python
    with eqrl.PopulationProgressBar(10, steps_per_generation=2_000) as progress:
        eqrl.train_population(
            ...,
            num_generations=10,
            steps_per_generation=2_000,
            callback=progress,
        )
    ```

    It shows that JAX compiles until the first generation; then the generations, the
    rate of steps of all members together, the mean and the best member's return (the
    score, if members are ranked by something else), and the remaining time. Rate and
    time are measured since the first generation. If the standard output is not a
    terminal, it prints a line from time to time.
    """

    def __init__(
        self,
        num_generations: int,
        steps_per_generation: int,
        *,
        seconds_between_lines: float = 10.0,
    ) -> None:
        """**Arguments:**

        - `num_generations`, `steps_per_generation`: as `train_population` gets them.
        - `seconds_between_lines`: minimum time between two lines if the output is not a
            terminal.
        """
        check_integer("num_generations", num_generations, least=0)
        check_integer("steps_per_generation", steps_per_generation, least=1)
        check_range("seconds_between_lines", seconds_between_lines, low=0)
        self._num_generations = num_generations
        self._steps_per_generation = steps_per_generation
        self._display = Display(
            num_generations, seconds_between_lines=seconds_between_lines
        )

    def __enter__(self) -> "PopulationProgressBar":
        self._display.start()
        return self

    def __exit__(self, *exception: object) -> None:
        del exception
        self._display.stop()

    def __call__(
        self, step: int, metrics: object, solution: PopulationSolution
    ) -> None:
        """Shows one generation; `train_population` calls this."""
        del metrics
        done = step // self._steps_per_generation
        self._display.show(
            f"generation {done:,}/{self._num_generations:,}",
            done=done,
            steps=done * self._steps_per_generation * solution.parents.shape[1],
            result=_mean_and_best(solution),
        )


class SkillProgressBar:
    """Progress bar of skills learned one after another; a callback of `learn_skills`.

    It shows the skill, the steps, their rate, the latest intrinsic reward and the
    remaining time. The steps to the end of an episode, with which each skill ends, are
    not counted.
    """

    def __init__(self, num_skills: int, num_steps: int) -> None:
        self._num_skills = num_skills
        self._num_steps = num_steps
        self._display = Display(num_skills * num_steps, seconds_between_lines=10.0)
        self._result: str | None = None

    def __enter__(self) -> "SkillProgressBar":
        self._display.start()
        return self

    def __exit__(self, *exception: object) -> None:
        del exception
        self._display.stop()

    def __call__(
        self, step: int, metrics: Mapping[str, np.ndarray | Array], skills: Skills[Any]
    ) -> None:
        """Shows one row of metrics; `learn_skills` calls this."""
        assert skills.training is not None
        skill = int(skills.training.skill)
        taken = min(step - int(skills.training.earlier_steps), self._num_steps)
        done = skill * self._num_steps + taken
        reward = float(metrics.get("intrinsic_reward", math.nan))
        if math.isfinite(reward):
            self._result = f"reward {reward:.2f}"
        self._display.show(
            f"skill {skill + 1}/{self._num_skills}  "
            f"{done:,}/{self._num_skills * self._num_steps:,} steps",
            done=done,
            steps=done,
            result=self._result,
        )


def _known(
    metrics: Mapping[str, np.ndarray | Array], name: str
) -> Float[np.ndarray, " known"]:
    """The finite values of a metric; empty if the metric is missing."""
    values = np.asarray(metrics.get(name, math.nan), float)
    return values[np.isfinite(values)]


def _mean_and_best(solution: PopulationSolution) -> str | None:
    """Scores of the latest generation, without the members that failed."""
    scores = scores_of(solution, None)
    known = scores[-1][~np.isnan(scores[-1])]
    if known.size == 0:
        return None
    name = "return" if are_mean_returns(solution, scores) else "score"
    return f"{name} {known.mean():,.1f} mean, {known.max():,.1f} best"
