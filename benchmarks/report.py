"""Rows of figures with their spread: as a table, as JSON, and beside earlier ones.

Machines differ, and one machine differs from day to day. A row can therefore hold the
machine's limit for each round, the rate of a matrix product measured in the same round;
two runs are compared by their figures as ratios to it.
"""

import dataclasses
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path


VERSION = 2

Quartiles = tuple[float, float, float]


@dataclasses.dataclass(frozen=True)
class Row:
    """The measurements of all rounds.

    - `name`: with parts separated by slashes.
    - `unit`: `s`, a rate that ends in `/s`, `MB`, or `times` what another one does.
    - `values`: of the rounds.
    - `limits`: the machine's limit in the same rounds, in GFLOP/s; empty where the
        figure does not depend on the machine's speed.
    - `shares`: of the time of the rounds that the same matmuls alone take, if measured.
    - `note`: for the reader of the table.
    - `is_checked`: whether a later run is compared with it; not if it is the figure of
        another library.
    """

    name: str
    unit: str
    values: tuple[float, ...]
    limits: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()
    note: str = ""
    is_checked: bool = True

    @property
    def more_is_better(self) -> bool:
        """Whether greater figures are better."""
        return self.unit.endswith("/s") or self.unit == "times"

    @property
    def relative(self) -> tuple[float, ...]:
        """The values as ratios to the machine's limit; of times, their products."""
        if not self.limits:
            return self.values
        pairs = zip(self.values, self.limits, strict=True)
        if self.more_is_better:
            return tuple(value / limit for value, limit in pairs)
        return tuple(value * limit for value, limit in pairs)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A row beside the one of the same name in an earlier run.

    - `ratio`: how many times as good it is as before, medians of ratios to the limit.
    - `slower`: whether it is worse by more than the spread of both.
    """

    name: str
    ratio: float
    slower: bool


def quartiles(values: Sequence[float]) -> Quartiles:
    """The lower quartile, the median and the upper quartile."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def compare_row(now: Row, before: Row, *, tolerance: float) -> Comparison:
    """Whether a row is worse than before.

    It is if its quartiles lie outside the earlier ones, and its median is worse by more
    than `tolerance`, the difference between one process and the next.
    """
    low, middle, high = quartiles(now.relative)
    low_before, middle_before, high_before = quartiles(before.relative)
    if now.more_is_better:
        ratio = middle / middle_before
        beyond = high < low_before
    else:
        ratio = middle_before / middle
        beyond = low > high_before
    return Comparison(now.name, ratio, slower=beyond and ratio < 1 - tolerance)


def compare(
    now: Sequence[Row], before: Sequence[Row], *, tolerance: float
) -> list[Comparison]:
    """The rows to check that both runs have, measured in the same unit."""
    known = {(row.name, row.unit): row for row in before}
    return [
        compare_row(row, known[row.name, row.unit], tolerance=tolerance)
        for row in now
        if row.is_checked and (row.name, row.unit) in known
    ]


def write(path: Path, rows: Sequence[Row], machine: Mapping[str, str]) -> None:
    """Writes all rows and their machine as JSON."""
    content = {
        "version": VERSION,
        "machine": dict(machine),
        "rows": [dataclasses.asdict(row) for row in rows],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def read(path: Path) -> tuple[list[Row], dict[str, str]]:
    """The rows and the machine that `write` wrote."""
    content = json.loads(path.read_text())
    if not isinstance(content, dict) or content.get("version") != VERSION:
        raise ValueError(f"`{path}` holds no results of this version of benchmarks.")
    rows = [
        Row(
            name=row["name"],
            unit=row["unit"],
            values=tuple(row["values"]),
            limits=tuple(row["limits"]),
            shares=tuple(row["shares"]),
            note=row["note"],
            is_checked=row["is_checked"],
        )
        for row in content["rows"]
    ]
    return rows, content["machine"]


TITLE = "| what | median | quartiles | unit | of the matmuls' rate | |"
TITLE += "\n|---|---|---|---|---|---|"


def line(row: Row) -> str:
    """A row of the table."""
    low, middle, high = quartiles(row.values)
    share = ""
    if row.shares:
        share_low, share, share_high = map("{:.3f}".format, quartiles(row.shares))
        share += f" ({share_low} to {share_high})"
    return (
        f"| {row.name} | {_shown(middle)} | {_shown(low)} to {_shown(high)} "
        f"| {row.unit} | {share} | {row.note} |"
    )


def _shown(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4f}" if value < 0.1 else f"{value:.4g}"
