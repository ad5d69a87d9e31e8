"""What training calls after each row of its metrics."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import jax
import numpy as np

from .._pytree.fields import can_take, check_callable, shown
from .rows import Row
from .solution import AnySolution, OfflineSolution
from .trainer import AnyTrainerState


RowCallback = Callable[[int, dict[str, Any], AnyTrainerState], object]
"""Called as `callback(step, metrics, trainer_state)`."""

SolutionCallback = Callable[[int, dict[str, Any], AnyTrainerState, Any], object]
"""Called as `callback(step, metrics, trainer_state, solution)`."""

Callback = RowCallback | SolutionCallback
Callbacks = Callback | Sequence[Callback]

Reached = AnySolution | OfflineSolution[Any]
Report = Callable[[int, Row, Reached], bool]
"""Calls all callbacks; whether one of them asked to stop."""


def bind_callbacks(callbacks: Callbacks | None) -> Report:
    """Makes one function of all callbacks.

    Where there is no state of a trainer, they are given that of the agent. Raises a
    `ValueError` unless each is called in one of the two ways.
    """
    if callbacks is None:
        callbacks = ()
    elif not isinstance(callbacks, Sequence):
        callbacks = (callbacks,)
    calls = [_bind(each) for each in callbacks]

    def report(step: int, row: Row, solution: Reached) -> bool:
        # All are called, whatever the first says.
        answers = [call(step, row, solution) for call in calls]
        return any(map(asks_to_stop, answers))

    return report


def asks_to_stop(answer: object) -> bool:
    """Whether a callback returned true; numbers and other values say nothing."""
    if not isinstance(answer, (bool, np.bool_, np.ndarray, jax.Array)):
        return False
    values = np.asarray(answer)
    return values.dtype == np.bool_ and values.shape == () and bool(values)


def _state(solution: Reached) -> Any:
    if isinstance(solution, OfflineSolution):
        return solution.state
    return solution.trainer_state


def _bind(callback: object) -> Callable[[int, Row, Reached], object]:
    check_callable("callback", callback)
    if can_take(callback, 3):
        with_row = cast(RowCallback, callback)
        return lambda step, row, solution: with_row(step, row, _state(solution))
    if can_take(callback, 4):
        with_solution = cast(SolutionCallback, callback)
        return lambda step, row, solution: with_solution(
            step, row, _state(solution), solution
        )
    raise ValueError(
        f"`callback={shown(callback)}` cannot be called as `callback(step, metrics, "
        "trainer_state)`, nor as `callback(step, metrics, trainer_state, solution)`; "
        "it must take these."
    )
