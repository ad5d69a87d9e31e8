from collections.abc import Callable, Mapping

import numpy as np
from jaxtyping import Array

from .._pytree.fields import check_arity


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
        self, step: int, metrics: Mapping[str, np.ndarray | Array], state: object
    ) -> None:
        """Logs one row of metrics; `train` calls this."""
        del state
        numbers: dict[str, float] = {}
        for name, values in metrics.items():
            array = np.asarray(values)
            for index, value in np.ndenumerate(array):
                if np.isfinite(value):
                    numbers["/".join([name, *map(str, index)])] = float(value)
        self._log(numbers, step)
