import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Array

from .._pytree.fields import check_arity
from .._types.installed import check_installed


class Logger:
    """Logs each row of metrics elsewhere; a callback of `train` and of `train_seeds`.

    ```python
    run = wandb.init(project="pendulum")
    eqrl.train(..., callback=eqrl.Logger(run.log))
    ```

    MLflow's function is `mlflow.log_metrics`; for TensorBoard see `eqrl.TensorBoard`.
    """

    def __init__(self, log: Callable[[dict[str, float], int], object]) -> None:
        """**Arguments:**

        - `log`: called as `log(metrics, step)` after each row, with numbers by name.
            What was not measured in a row is left out. Of `train_seeds` there is a
            number for each seed, `episode_return/0` and so on.
        """
        check_arity("log", log, "metrics", "step")
        self._log = log

    def __call__(
        self, step: int, metrics: Mapping[str, np.ndarray | Array], solution: object
    ) -> None:
        """Logs one row of metrics; `train` calls this."""
        del solution
        numbers: dict[str, float] = {}
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
    """Writes metrics for TensorBoard; a callback of `train` and of `train_seeds`.

    ```python
    with eqrl.TensorBoard("runs/pendulum") as tensorboard:
        eqrl.train(..., callback=tensorboard)
    ```
    """

    def __init__(self, folder: str | os.PathLike[str], num_seeds: int = 1) -> None:
        """**Arguments:**

        - `folder`: where to write; each seed has a folder in it.
        - `num_seeds`: as given to `train_seeds`; 1 for `train`.
        """
        self._folders = [Path(folder) / f"seed_{seed}" for seed in range(num_seeds)]
        self._writers: list[Any] = []

    def __enter__(self) -> "TensorBoard":
        check_tensorboard("`TensorBoard`")
        from tensorboardX import SummaryWriter

        self._writers = [SummaryWriter(str(folder)) for folder in self._folders]
        return self

    def __exit__(self, *exception: object) -> None:
        del exception
        for writer in self._writers:
            writer.close()

    def __call__(
        self, step: int, metrics: Mapping[str, np.ndarray | Array], solution: object
    ) -> None:
        """Writes one row of metrics; `train` calls this."""
        del solution
        self.log(metrics, step)

    def log(self, metrics: Mapping[str, np.ndarray | Array | float], step: int) -> None:
        """Writes metrics, with one number for each seed."""
        if not self._writers:
            raise ValueError(
                "A `TensorBoard` writes between its beginning and its end: use it in "
                "`with eqrl.TensorBoard(folder) as tensorboard:`."
            )
        for name, values in metrics.items():
            numbers = np.asarray(values).reshape(-1)
            if len(numbers) != len(self._writers):
                raise ValueError(
                    f"`{name}` has {len(numbers)} values, but "
                    f"`num_seeds={len(self._writers)}`; give `TensorBoard` the number "
                    "of seeds."
                )
            # Not every row has a value, and TensorBoard would mark each gap.
            for writer, value in zip(self._writers, numbers, strict=True):
                if np.isfinite(value):
                    writer.add_scalar(name, float(value), step)
