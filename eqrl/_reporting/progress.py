"""Callbacks that report training: progress bars, TensorBoard and other loggers."""

import math
import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from jaxtyping import Array, Float

from .._disk.library import Skills
from .._population.solution import PopulationSolution, are_mean_returns, scores_of
from .._pytree.fields import Range, check_arity, check_instance, check_integer
from .._training.replay import replay_size
from .._types.installed import check_installed
from .statistics import rounded


# Beartype, with which the tests check each function, refuses `typing.Self` there.
_Bar = TypeVar("_Bar", bound="AbstractProgressBar")


class AbstractProgressBar(ABC):
    """A progress bar on a terminal, and lines from time to time elsewhere."""

    _total: int
    """The amount of work."""
    _seconds_between_lines: float | int
    """Minimum time between two lines if the output is not a terminal."""

    _first: tuple[int, int, float] | None = None
    _last_line_time: float = -math.inf
    _bar: Any = None
    _task: int | None = None

    def __enter__(self: _Bar) -> _Bar:
        """Shows that JAX compiles."""
        # Python sets it to `None` where there is no standard output.
        if sys.stdout is not None and sys.stdout.isatty():
            # Most programs show no bar, and the import would delay each of them.
            from rich.console import Console
            from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn

            console = Console()
            self._bar = Progress(
                SpinnerColumn("line" if console.options.ascii_only else "dots"),
                TextColumn("{task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[status]}"),
                console=console,
            )
            self._task = self._bar.add_task("compiling", total=None, status="")
            self._bar.start()
        else:
            # Python buffers output to a file or a pipe unless it is flushed.
            print("compiling", flush=True)
        return self

    def __exit__(self, *exception: object) -> None:
        """Restores the terminal."""
        del exception
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    @abstractmethod
    def __call__(self, step: int, metrics: Any, solution: Any) -> None:
        """Shows one row of metrics, with `_show`."""

    def _show(self, text: str, *, done: int, steps: int, result: str | None) -> None:
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
        # Two rows may come within one tick of a coarse clock.
        if done > first_done and now > first_time:
            rate = (steps - first_steps) / (now - first_time)
            parts.append(f"{rate:,.0f} steps/s")
            left = (self._total - done) * (now - first_time) / (done - first_done)
        if result is not None:
            parts.append(result)
        if left is not None:
            # The last rollout may go beyond the total.
            minutes, seconds = divmod(math.ceil(max(left, 0.0)), 60)
            hours, minutes = divmod(minutes, 60)
            parts.append(f"{hours}:{minutes:02}:{seconds:02} left")
        status = "  ".join(parts)
        is_due = now - self._last_line_time >= self._seconds_between_lines
        if self._bar is not None:
            self._bar.update(
                self._task,
                description="training",
                completed=done,
                total=self._total,
                status=status,
            )
        # The last row is how the run ended, so it is never left out.
        elif is_due or done >= self._total:
            self._last_line_time = now
            print(status, flush=True)


class ProgressBar(AbstractProgressBar):
    """Progress bar of a training run; for all training functions.

    ```python
    with eqrl.ProgressBar(num_steps=20_000) as progress:
        eqrl.train(agent, env, trainer, num_steps=20_000, key=key, callback=progress)
    ```

    It shows that JAX compiles until the first row of metrics; then the steps, their
    rate (without compilation), the latest episodes' return (the mean over seeds), that
    of the latest evaluation, and the remaining time. For an agent with an intrinsic
    reward, it shows that reward, too, and leaves out the return as long as that is 0.
    If the standard output is not a terminal, it prints a line from time to time.
    """

    def __init__(
        self, num_steps: int, *, seconds_between_lines: float | int = 10.0
    ) -> None:
        """**Arguments:**

        - `num_steps`: the step at which training ends. If it resumes an earlier
            solution, add that solution's steps.
        - `seconds_between_lines`: minimum time between two lines if the output is not a
            terminal.
        """
        check_integer("num_steps", num_steps, least=0)
        Range(low=0).check("seconds_between_lines", seconds_between_lines)
        self._total = num_steps
        self._seconds_between_lines = seconds_between_lines
        self._return: str | None = None
        self._evaluated: str | None = None
        self._reward: str | None = None
        self._is_rewarded = False

    def __call__(
        self, step: int, metrics: Mapping[str, np.ndarray | Array], solution: object
    ) -> None:
        """Shows one row of metrics; `train` calls this."""
        del solution
        # Vector rewards have a return for each element, under separate names.
        returns = _known(metrics, "episode_return")
        if returns.size > 0:
            self._return = f"return {rounded(returns.mean())}"
        evaluated = _known(metrics, "evaluation_return")
        if evaluated.size > 0:
            self._evaluated = f"evaluation {rounded(evaluated.mean())}"
        rewards = _known(metrics, "intrinsic_reward")
        if rewards.size > 0:
            self._reward = f"intrinsic reward {rewards.mean():,.2f}"
        # Skills are often learned in an environment without a reward.
        self._is_rewarded |= "intrinsic_reward" not in metrics or bool(np.any(returns))
        returns_shown = [self._return, self._evaluated] if self._is_rewarded else []
        results = [*returns_shown, self._reward]
        self._show(
            f"{step:,}/{self._total:,} steps",
            done=step,
            steps=step,
            result="  ".join(filter(None, results)) or None,
        )


class PopulationProgressBar(AbstractProgressBar):
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
        seconds_between_lines: float | int = 10.0,
    ) -> None:
        """**Arguments:**

        - `num_generations`: after how many generations training ends. If it resumes an
            earlier solution, add that solution's generations.
        - `steps_per_generation`: as `train_population` gets it.
        - `seconds_between_lines`: minimum time between two lines if the output is not a
            terminal.
        """
        check_integer("num_generations", num_generations, least=0)
        check_integer("steps_per_generation", steps_per_generation, least=1)
        Range(low=0).check("seconds_between_lines", seconds_between_lines)
        self._total = num_generations
        self._seconds_between_lines = seconds_between_lines
        self._steps_per_generation = steps_per_generation

    def __call__(
        self, step: int, metrics: object, solution: PopulationSolution
    ) -> None:
        """Shows one generation; `train_population` calls this."""
        del step, metrics
        check_instance("solution", solution, PopulationSolution)
        scores = scores_of(solution, None)
        known = scores[-1][~np.isnan(scores[-1])]
        name = "return" if are_mean_returns(solution, scores) else "score"
        result = None
        # All members may have failed.
        if known.size > 0:
            mean, best = rounded(known.mean()), rounded(known.max())
            result = f"{name} {mean} mean, {best} best"
        done = len(scores)
        self._show(
            f"generation {done:,}/{self._total:,}",
            done=done,
            steps=done * self._steps_per_generation * solution.parents.shape[1],
            result=result,
        )


class SkillProgressBar(AbstractProgressBar):
    """Progress bar of skills learned one after another; a callback of `learn_skills`.

    It shows the skill, the steps, their rate, the latest intrinsic reward and the
    remaining time. Each skill ends with the steps to the end of an episode, which are
    not counted.
    """

    def __init__(self, num_skills: int, num_steps: int) -> None:
        self._total = num_skills * num_steps
        self._seconds_between_lines = 10.0
        self._num_skills = num_skills
        self._num_steps = num_steps
        self._result: str | None = None

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
        self._show(
            f"skill {skill + 1}/{self._num_skills}  {done:,}/{self._total:,} steps",
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


class Logger:
    """Logs each row of metrics elsewhere; for all training functions.

    ```python
    run = wandb.init(project="pendulum")
    eqrl.train(..., callback=eqrl.Logger(run.log))
    ```

    The first row also has `replay_transitions` and `replay_bytes`: how many transitions
    there is room for, over all seeds or members, and how much memory they take.

    A row of `train_population` is a generation. MLflow's function is
    `mlflow.log_metrics`; for TensorBoard see `eqrl.TensorBoard`.
    """

    def __init__(self, log: Callable[[dict[str, float], int], object]) -> None:
        """**Arguments:**

        - `log`: called as `log(metrics, step)` after each row, with numbers by name.
            Metrics that were not measured in a row are left out. For `train_seeds`
            there is a number for each seed, `episode_return/0` and so on, and for
            `train_population` one for each member.
        """
        check_arity("log", log, "metrics", "step")
        self._log = log
        self._is_first = True

    def __call__(
        self, step: int, metrics: Mapping[str, np.ndarray | Array], solution: object
    ) -> None:
        """Logs one row of metrics; `train` calls this."""
        numbers: dict[str, float] = {}
        transitions, num_bytes = replay_size(solution)
        if self._is_first and num_bytes > 0:
            numbers["replay_transitions"] = float(transitions)
            numbers["replay_bytes"] = float(num_bytes)
        self._is_first = False
        for name, values in metrics.items():
            array = np.asarray(values)
            for index, value in np.ndenumerate(array):
                if np.isfinite(value):
                    numbers["/".join([name, *map(str, index)])] = float(value)
        self._log(numbers, step)


def check_tensorboard(what: str) -> None:
    """Checks that the packages that write files for TensorBoard are installed."""
    check_installed("tensorboardX", what, extra="tensorboard")


class TensorBoard:
    """Writes metrics for TensorBoard; for all training functions.

    ```python
    with eqrl.TensorBoard("runs/pendulum") as tensorboard:
        eqrl.train(..., callback=tensorboard)
    ```
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """**Arguments:**

        - `folder`: where to write; each seed or member has a folder in it.
        """
        self._folder = Path(folder)
        self._writers: dict[str, Any] | None = None

    def __enter__(self) -> "TensorBoard":
        check_tensorboard("`TensorBoard`")
        self._writers = {}
        return self

    def __exit__(self, *exception: object) -> None:
        del exception
        for writer in (self._writers or {}).values():
            writer.close()
        self._writers = None

    def __call__(
        self, step: int, metrics: Mapping[str, np.ndarray | Array], solution: object
    ) -> None:
        """Writes one row of metrics; `train` calls this."""
        owner = "member" if isinstance(solution, PopulationSolution) else "seed"
        self.log(metrics, step, owner=owner)

    def log(
        self,
        metrics: Mapping[str, np.ndarray | Array | float | int],
        step: int,
        *,
        owner: str = "seed",
    ) -> None:
        """Writes metrics, with one number for each seed.

        **Arguments:**

        - `metrics`: numbers by name, or arrays with one number for each seed. A single
            number, such as an average that `Evaluations(log=)` passes, is written to
            the folder of the first.
        - `step`: environment steps so far.
        - `owner`: `"seed"` or `"member"`; the folders are named `seed_0` and so on.
        """
        if self._writers is None:
            raise ValueError(
                "A `TensorBoard` writes between its beginning and its end: use it in "
                "`with eqrl.TensorBoard(folder) as tensorboard:`."
            )
        # Most programs write nothing, and the import would delay each of them.
        from tensorboardX import SummaryWriter

        for name, values in metrics.items():
            for index, value in enumerate(np.asarray(values).reshape(-1)):
                folder = f"{owner}_{index}"
                if folder not in self._writers:
                    self._writers[folder] = SummaryWriter(str(self._folder / folder))
                # Not every row has a value, and TensorBoard would mark each gap.
                if np.isfinite(value):
                    self._writers[folder].add_scalar(name, float(value), step)
