"""The folder of a run and the formats of its files."""

import csv
import json
import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from .._storage.checkpoint import Directory
from .._storage.replace import atomic_write


def new_folder(name: str) -> Path:
    """Makes a folder in `runs`, called after the run and the time."""
    name = f"{name}-{time.strftime('%Y%m%d-%H%M%S')}"
    number = 1
    while True:
        folder = Path("runs") / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            # Another run began in this second.
            number += 1
        else:
            return folder


def claim_folder(folder: Directory) -> None:
    """Makes a folder for a run. Raises a `ValueError` unless it is new or empty.

    A `config.json` alone was left by a run that was stopped before its first row, and
    may be overwritten.
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
    """The checkpoint of a seed or a member."""
    return Path(folder) / "policy" / f"{kind}_{index}"


def library_folder(folder: Directory) -> Path:
    """The library of skills that were learned one after another."""
    return Path(folder) / "library"


def finite(values: Float[np.ndarray, " values"]) -> list[float | None]:
    """For JSON: NaN and infinity become null."""
    return [float(value) if math.isfinite(value) else None for value in values]


def write_json(folder: Directory, name: str, content: dict[str, Any]) -> None:
    """Writes a JSON file."""
    with atomic_write(Path(folder) / name) as path:
        path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


def write_csv(
    folder: Directory, name: str, header: Sequence[str], rows: Iterable[Sequence[Any]]
) -> None:
    """Writes a table."""
    with (
        atomic_write(Path(folder) / name) as path,
        open(path, "w", newline="") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
