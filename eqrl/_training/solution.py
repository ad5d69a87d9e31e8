from signal import SIGINT, Signals
from typing import Any, Generic

import equinox as eqx
import numpy as np
from jaxtyping import Shaped

from .._types.custom_types import EnvState, Extras, Memory, State
from .counts import Counts
from .trainer import TrainerState


History = dict[str, Shaped[np.ndarray, "_ ..."]]
"""By name, with a leading axis `logs` that grows as training goes on."""


class Solution(eqx.Module, Generic[State, EnvState, Memory, Extras]):
    """The result of training, and all that is needed to resume it."""

    trainer_state: TrainerState[State, EnvState, Memory, Extras]
    counts: Counts
    metrics: History

    @property
    def state(self) -> State:
        """The agent's state."""
        return self.trainer_state.agent


Solution.__init__.__doc__ = """**Arguments:**

- `trainer_state`: agent, environments and replay.
- `counts`: the progress counters.
- `metrics`: of the whole training, earlier calls included, a row every `log_every`
    steps. `step` is the number of environment steps at the row's end; the others are
    averages over the row, `nan` if there was nothing to average. `episode_return` and
    `episode_length` are of the episodes that ended in the row, averaged first over
    those that ended at the same step.
"""

AnySolution = Solution[Any, Any, Any, Any]


class OfflineSolution(eqx.Module, Generic[State]):
    """The result of training from a data set."""

    state: State
    metrics: History


OfflineSolution.__init__.__doc__ = """**Arguments:**

- `state`: the agent's state.
- `metrics`: a row every `log_every` updates. `step` is the number of updates at the
    row's end; the others are averages over the row, `nan` if there was nothing to
    average.
"""


class NonFiniteError(ValueError):
    """Something became `nan` or infinite in training.

    **Attributes:**

    - `step`: environment steps before that at which it happened; of `train_offline`,
        updates before those of the row in which it did.
    - `solution`: the result up to that step, from which `train` can resume. If it is
        the agent that was not finite, its state is that of the beginning of the row:
        with a lower learning rate it can go on. Of `train_offline` it is an
        `OfflineSolution`.
    - `what`: what it was, in words: the metric of the updates that turned first, the
        agent's state or action, or an observation or a reward.
    """

    def __init__(
        self, step: int, solution: Any, what: str, *, counted: str = "environment step"
    ) -> None:
        super().__init__(
            f"At {counted} {step} {what} was nan or infinite. Training stopped "
            "before it; what was reached is the `solution` of this error. If it is the "
            "environment's doing, bound what it gives; if the agent diverged, lower "
            "its learning rates or `reward_scale`."
        )
        self.step = step
        self.solution = solution
        self.what = what


class TrainingInterrupted(KeyboardInterrupt):
    """Ctrl-C was pressed while training, or SIGTERM or SIGHUP asked to stop.

    **Attributes:**

    - `solution`: the result so far; from a `Solution`, `train` can resume.
    - `signal`: which of the signals it was.
    """

    def __init__(self, solution: Any, signal: Signals = SIGINT) -> None:
        super().__init__(
            "Training was interrupted; the `solution` of this error is what it reached."
        )
        self.solution = solution
        self.signal = signal
