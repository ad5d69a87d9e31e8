import csv
from pathlib import Path

import numpy as np
from jaxtyping import Float

from .._storage.checkpoint import Directory
from .._training.solution import History


# Columns that say whose row it is, where several train side by side.
_OWNERS = ("seed", "member")

# Columns that count and measure nothing.
_COUNTERS = {*_OWNERS, "skill", "generation", "parent"}


def read_metrics(folder: Directory) -> History:
    """Reads `metrics.csv` of a run, which may still be in training.

    **Returns:**

    As the metrics of a solution: by name, of shape (logs,) or, of several seeds or the
    members of a population, (logs, seeds). A row that is not there to its end is left
    out.

    Raises a `ValueError` that names the file unless it is a table of metrics.
    """
    path = Path(folder) / "metrics.csv"
    try:
        text = path.read_text()
        # A line that is being written has no end yet.
        header, *lines = csv.reader(text[: text.rfind("\n") + 1].splitlines())
        table = np.array([[float(cell) for cell in line] for line in lines])
        columns = table.reshape(-1, len(header)).T
        return _by_owner(dict(zip(header, columns, strict=True)))
    except OSError as error:
        raise ValueError(
            f"`{path}` cannot be read: {error.strerror}. A run writes it when it has "
            "reached the first row of its metrics."
        ) from error
    except (ArithmeticError, KeyError, ValueError, csv.Error) as error:
        raise ValueError(
            f"`{path}` is damaged: it is not the table of metrics that a run writes. "
            "Take it from a copy of the run."
        ) from error


def _by_owner(columns: dict[str, Float[np.ndarray, " rows"]]) -> History:
    """The metrics, in which those who train side by side have an axis."""
    steps = columns["step"]
    owners = next((columns[name] for name in _OWNERS if name in columns), 0 * steps)
    count = int(owners.max(initial=0)) + 1
    if np.any(owners != np.arange(len(steps)) % count):
        raise ValueError("Some rows are missing.")
    logs = len(steps) // count
    metrics = {
        name: values[: logs * count].reshape(logs, count)
        for name, values in columns.items()
        if name not in _COUNTERS
    }
    if count == 1:
        metrics = {name: values[:, 0] for name, values in metrics.items()}
    return metrics | {"step": steps[: logs * count : count].astype(int)}
