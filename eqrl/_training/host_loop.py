"""Host loop of every training, which reports each row and stops on request."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from signal import SIGINT, Signals
from types import FrameType
from typing import Annotated, Any, NamedTuple, TypeVar

import jax
import numpy as np
from jax.sharding import Mesh

from .._pytree.fields import Takes
from ..envs._host import SimulatorError, SimulatorFailure
from .mesh import hand_over, on_any_process
from .rows import Row


Given = TypeVar("Given")

_TAKES = Takes(("step", "metrics", "solution"))

Callback = Annotated[Callable[[int, dict[str, Any], Given], object], _TAKES]
"""Called as `callback(step, metrics, solution)`."""

Callbacks = Annotated[Callback[Given] | Sequence[Callback[Given]], _TAKES]


class Reached(NamedTuple):
    """Progress of a training between two pieces.

    - `step`: environment steps so far, or updates.
    - `row`: the metrics since the row before; `None` between two rows, where nothing is
        reported and training may be interrupted.
    - `solution`: what the training would return.
    - `failed`: describes the value that was not finite, if that ends training, or the
        failure of a simulator.
    """

    step: int
    row: Row | None
    solution: Any
    failed: str | SimulatorFailure | None = None


def drive(
    rows: Iterator[Reached],
    *,
    callback: Callbacks[Any] | None,
    checkpoint: Callback[Any] | None = None,
    counted: str = "environment step",
    mesh: Mesh | None = None,
    given_mesh: Mesh | None = None,
) -> Any:
    """Runs a training row by row, and returns its last solution.

    **Arguments:**

    - `rows`: the training, as at least one item. Asking for the next one donates the
        arrays of the solution before.
    - `callback`: called after each row. Training ends if one returns true.
    - `checkpoint`: called after the callbacks.
    - `counted`: the unit of steps, for errors.
    - `mesh`: the devices, whose processes end together.
    - `given_mesh`: the devices that the user named; the solution stays on them.

    Raises a `NonFiniteError` if training has failed, a `SimulatorError` if a simulator
    has, and `TrainingInterrupted` after Ctrl-C, SIGTERM or SIGHUP.
    """
    report = bind_callbacks(callback)
    step, solution = 0, None
    with deferred_interrupt() as interrupted:
        try:
            for step, row, solution, failed in rows:
                if isinstance(failed, SimulatorFailure):
                    if isinstance(failed.error, KeyboardInterrupt):
                        reached = hand_over(solution, given_mesh)
                        raise TrainingInterrupted(reached, SIGINT) from failed.error
                    raise SimulatorError(failed) from failed.error
                if failed is not None:
                    reached = hand_over(solution, given_mesh)
                    raise NonFiniteError(step, reached, failed, counted=counted)
                stops = False
                if row is not None:
                    stops = report(step, row, solution)
                    if checkpoint is not None:
                        checkpoint(step, row, solution)
                if on_any_process(interrupted() is not None, mesh):
                    reached = hand_over(solution, given_mesh)
                    raise TrainingInterrupted(reached, interrupted() or SIGINT)
                if on_any_process(stops, mesh):
                    break
        except SimulatorError as error:
            # A callback or a rollout between rows may also raise it. Nothing has been
            # donated since the last item.
            if solution is None or error.solution is not None:
                raise
            reached = hand_over(solution, given_mesh)
            raise SimulatorError(error.failure, reached, step=step) from error.__cause__
        return hand_over(solution, given_mesh)


def bind_callbacks(callbacks: Callbacks[Any] | None) -> Callable[[int, Row, Any], bool]:
    """Combines callbacks into one function that returns whether any asked to stop."""
    if callbacks is None:
        callbacks = ()
    elif not isinstance(callbacks, Sequence):
        callbacks = (callbacks,)

    def report(step: int, row: Row, solution: Any) -> bool:
        # All are called, even if one asks to stop.
        answers = [callback(step, row, solution) for callback in callbacks]
        return any(map(asks_to_stop, answers))

    return report


def asks_to_stop(answer: object) -> bool:
    """Whether a callback returned true; other truthy values are ignored.

    An array of several truth values, such as one for each seed, raises a `ValueError`.
    """
    if not isinstance(answer, (bool, np.bool_, np.ndarray, jax.Array)):
        return False
    values = np.asarray(answer)
    if values.dtype != np.bool_:
        return False
    if values.shape != ():
        raise ValueError(
            f"A callback returned truth values of shape {values.shape}; return one, as "
            "by `.all()` or `.any()`, which ends training if it is true."
        )
    return bool(values)


class NonFiniteError(ValueError):
    """Raised when a value becomes `nan` or infinite during training.

    **Attributes:**

    - `step`: environment steps before the one that failed; for on-policy agents, the
        steps before its rollout; for seeds or members, the steps up to the end of the
        row or generation in which the last one failed; for `train_offline`, updates
        before the row that failed.
    - `solution`: the result up to that step, from which `train` can resume. If the
        agent diverged, its state is the one from the beginning of the row, and training
        can resume with a lower learning rate. Of seeds and members all have failed, so
        they can be evaluated but not resumed. For `train_offline`, this is an
        `OfflineSolution`.
    - `what`: the value, in words: the metric of the updates that diverged first, the
        agent's state or action, or an observation, a descriptor or a reward.
    """

    def __init__(
        self, step: int, solution: Any, what: str, *, counted: str = "environment step"
    ) -> None:
        super().__init__(
            f"At {counted} {step} {what} was nan or infinite. Training stopped "
            "before it; the `solution` of this error holds the result so far. If the "
            "environment caused it, bound its outputs; if the agent diverged, lower "
            "its learning rates or `reward_scale`."
        )
        self.step = step
        self.solution = solution
        self.what = what


class TrainingInterrupted(KeyboardInterrupt):
    """Raised when Ctrl-C, SIGTERM or SIGHUP stops training.

    **Attributes:**

    - `solution`: the result so far; from a `Solution`, `train` can resume.
    - `signal`: the signal that was received.
    """

    def __init__(self, solution: Any, signal: Signals = SIGINT) -> None:
        super().__init__(
            "Training was interrupted; the `solution` of this error holds the result "
            "so far."
        )
        self.solution = solution
        self.signal = signal


class Interrupt:
    """Whether a signal asked training to stop, and which one was the first."""

    def __init__(self) -> None:
        self.first: signal.Signals | None = None
        self.held = False
        self.insisted = False
        self.raises_at_once = False

    def __call__(self) -> signal.Signals | None:
        """The first signal; `None` before there is one."""
        return self.first

    def handle(self, number: int, frame: FrameType | None) -> None:
        """Records the first signal; raises `KeyboardInterrupt` at the second one.

        If `raises_at_once` is set, it raises at the first one.
        """
        del frame
        is_first = self.first is None
        self.first = self.first or signal.Signals(number)
        if self.held:
            self.insisted = not is_first
        elif self.raises_at_once or not is_first:
            raise KeyboardInterrupt(self.first)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Only records a second signal within the block, which writes results."""
        before, self.held = self.held, True
        try:
            yield
        finally:
            self.held = before


# The flag of the outermost `deferred_interrupt` block, if any.
_outer: Interrupt | None = None


@contextlib.contextmanager
def deferred_interrupt() -> Iterator[Interrupt]:
    """Turns Ctrl-C into a flag, to be read at points where stopping loses nothing.

    It does the same with SIGTERM and SIGHUP, which a scheduler or a closed terminal
    sends. A second signal raises `KeyboardInterrupt` immediately. The block has no
    effect outside the main thread, where no signal arrives, or on a signal that has
    another handler. Nested blocks share one flag.
    """
    global _outer
    if _outer is not None:
        yield _outer
        return
    interrupt = Interrupt()
    if threading.current_thread() is not threading.main_thread():
        yield interrupt
        return
    # Not all systems have all three.
    names = ("SIGINT", "SIGTERM", "SIGHUP")
    numbers = [getattr(signal, name) for name in names if hasattr(signal, name)]
    replaced = [
        number
        for number in numbers
        if signal.getsignal(number) in (signal.default_int_handler, signal.SIG_DFL)
    ]
    before = {number: signal.signal(number, interrupt.handle) for number in replaced}
    _outer = interrupt
    try:
        yield interrupt
    finally:
        _outer = None
        for number, handler in before.items():
            signal.signal(number, handler)
