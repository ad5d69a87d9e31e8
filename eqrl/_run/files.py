"""The files of a run, and how they are written."""

import csv
import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from .._storage.checkpoint import Directory
from .._storage.replace import replacing


def claim_folder(folder: Directory) -> None:
    """Makes a folder for a run; a `ValueError` where there is something in it.

    A `config.json` alone is left by a run that was stopped before it reached anything,
    and may be written over.
    """
    path = Path(folder)
    if path.exists() and not (
        path.is_dir() and {item.name for item in path.iterdir()} <= {"config.json"}
    ):
        raise ValueError(
            f"`folder={str(folder)!r}` is there already and not empty; give another."
        )
    path.mkdir(parents=True, exist_ok=True)


def policy_folder(folder: Directory, kind: str, index: int) -> Path:
    """Where what a seed or a member has learnt is."""
    return Path(folder) / "policy" / f"{kind}_{index}"


def finite(values: Float[np.ndarray, " values"]) -> list[float | None]:
    """As JSON, which has no nan."""
    return [float(value) if math.isfinite(value) else None for value in values]


def write_json(folder: Directory, name: str, content: dict[str, Any]) -> None:
    """Writes a file of a run."""
    with replacing(Path(folder) / name) as path:
        path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_csv(
    folder: Directory, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Writes a file of a run."""
    with (
        replacing(Path(folder) / name) as path,
        open(path, "w", newline="") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
