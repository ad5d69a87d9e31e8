"""Checkpoints of a training under way, from which it resumes after it was killed."""

import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .._population import PopulationSolution
from .._pytree.fields import check_integer
from .._storage.checkpoint import Directory, begin_save, checkpoint_manager
from .._storage.quiet import quiet_event_loops
from .._training.mesh import mesh_of_processes, on_any_process
from .._training.solution import AnySolution
from .._types.custom_types import PyTree
from .solutions import content_of, continues, step_of


class Interval:
    """When it is time for the next checkpoint: by steps, or by the clock."""

    def __init__(
        self, *, every_steps: int | None, every_seconds: float | int = 60.0
    ) -> None:
        if every_steps is not None:
            check_integer("every_steps", every_steps, least=1)
        if not every_seconds >= 0:
            raise ValueError(f"`every_seconds={every_seconds}` must be at least 0.")
        self._every_steps = every_steps
        self._every_seconds = every_seconds
        self.begin_at(0)

    def begin_at(self, step: int) -> None:
        """Counts from a step, at which there is a checkpoint."""
        self._step, self._seconds = step, time.monotonic()

    def is_over(self, step: int) -> bool:
        """Whether it is time."""
        if self._every_steps is None:
            return time.monotonic() - self._seconds >= self._every_seconds
        return step - self._step >= self._every_steps


class Checkpoints:
    """Saves what training resumes from, again and again, while it goes on.

    ```python
    with eqrl.Checkpoints("checkpoints") as checkpoints:
        eqrl.train(agent, env, trainer, ..., checkpoint=checkpoints)
    # In another process, after this one was killed:
    solution = eqrl.load_solution("checkpoints", agent, env, trainer)
    eqrl.train(agent, env, trainer, ..., initial=solution)
    ```

    It is the `checkpoint` of `train` and `train_seeds`, and the `callback` of
    `train_population`. What it saves is what `eqrl.save_solution` does; it is written
    in the background, from a copy. A checkpoint that cannot be written does not end the
    training. One of a training other than that in the directory is a `ValueError`, at
    its first row: nothing that was saved is lost, and nothing goes unsaved.
    """

    def __init__(
        self,
        directory: Directory,
        *,
        every_steps: int | None = None,
        every_seconds: float | int = 60.0,
        max_to_keep: int = 2,
        on_error: Callable[[Exception], None] | None = None,
    ) -> None:
        """Begins with what is in the directory.

        **Arguments:**

        - `directory`: created if it does not exist; of one training only, which may
            have resumed from the latest step in it. What a killed process left
            unfinished in it is removed.
        - `every_steps`: environment steps, of each seed or member, from one checkpoint
            to the next, rounded up to rows or generations; `None` goes by the time.
        - `every_seconds`: seconds from one checkpoint to the next, if `every_steps` is
            `None`.
        - `max_to_keep`: the newest so many are kept, at least 1.
        - `on_error`: called with what kept the first checkpoint from being written that
            was not; by default it is a warning.
        """
        check_integer("max_to_keep", max_to_keep, least=1)
        self._interval = Interval(every_steps=every_steps, every_seconds=every_seconds)
        self._on_error = on_error or _warn
        self._manager = checkpoint_manager(directory, max_to_keep=max_to_keep)
        self._quiet = ExitStack()
        self._directory = directory
        # The step of the checkpoint, or call, after which the next one comes.
        self._latest: int | None = self._manager.latest_step()
        self._is_own = False
        self._interval.begin_at(self._latest or 0)
        self._has_failed = False

    def __call__(self, step: int, solution: AnySolution | PopulationSolution) -> None:
        """Saves a solution if it is time to."""
        # Of a population it is the generation.
        del step
        number = step_of(solution)
        self._check_order(solution, number)
        # The clocks of several processes differ, and all of them have to save.
        mesh = mesh_of_processes(solution)
        if not on_any_process(self._interval.is_over(number), mesh):
            return
        self._interval.begin_at(number)
        try:
            begin_save(self._manager, number, _copied(content_of(solution)))
        except Exception as error:
            self._report(error)

    def save(self, solution: AnySolution | PopulationSolution) -> None:
        """Saves a solution, waits until it is written, and raises what prevents that.

        Nothing is written if it is there already.
        """
        number = step_of(solution)
        self._check_order(solution, number)
        try:
            self._manager.wait_until_finished()
        except Exception as error:
            self._report(error)
        self._manager.reload()
        if number not in self._manager.all_steps():
            begin_save(self._manager, number, content_of(solution))
            self._manager.wait_until_finished()

    def __enter__(self) -> "Checkpoints":
        self._quiet.enter_context(quiet_event_loops())
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        del kind, error, traceback
        with self._quiet:
            try:
                self._manager.close()
            except Exception as error:
                self._report(error)

    def _check_order(
        self, solution: AnySolution | PopulationSolution, number: int
    ) -> None:
        """Raises a `ValueError` unless a solution is of the training in the folder."""
        latest = self._latest
        if latest is not None:
            if number >= latest and not self._is_own:
                self._is_own = continues(solution, self._directory, latest)
            if number < latest or not self._is_own:
                raise ValueError(
                    f"`{self._directory}` holds step {latest} of another training than "
                    f"this one, which is at step {number}: each needs a folder of its "
                    "own. To resume the earlier one, pass what `eqrl.load_solution` "
                    "gives as `initial`; to resume an older step, delete later ones."
                )
        self._latest, self._is_own = number, True

    def _report(self, error: Exception) -> None:
        if not self._has_failed:
            self._has_failed = True
            self._on_error(error)


def _warn(error: Exception) -> None:
    warnings.warn(
        f"A checkpoint could not be written, and training goes on: {error}",
        stacklevel=2,
    )


def _copied(tree: PyTree) -> PyTree:
    """A copy on the host, since training goes on in the memory of what it is given."""

    def copy(leaf: Any) -> Any:
        if not isinstance(leaf, jax.Array):
            return leaf.copy() if isinstance(leaf, np.ndarray) else leaf
        if not leaf.is_fully_addressable:
            return jnp.copy(leaf)
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jr.wrap_key_data(jnp.copy(jr.key_data(leaf)), impl=jr.key_impl(leaf))
        return np.array(leaf)

    return jax.tree.map(copy, tree)
