import argparse
import json
from pathlib import Path

import pytest

from benchmarks import command
from benchmarks.measure import Effort
from benchmarks.report import Row, compare, line, quartiles, read, write


LIMITS = (200.0, 220.0, 180.0, 210.0, 190.0)


def _row(unit: str, scale: float, *, speed: float = 1.0) -> Row:
    """A figure that follows the machine's limit, on one `speed` times as fast."""
    limits = tuple(speed * limit for limit in LIMITS)
    values = {
        "updates/s": tuple(scale * limit for limit in limits),
        "s": tuple(scale / limit for limit in limits),
        "MB": (scale,),
        "times": (0.99 * scale, scale, 1.01 * scale),
    }[unit]
    return Row("row", unit, values, limits=limits if unit in ("updates/s", "s") else ())


def _is_slower(now: Row, before: Row) -> bool:
    (comparison,) = compare([now], [before], tolerance=0.05)
    return comparison.slower


@pytest.mark.parametrize("unit", ["updates/s", "s", "MB", "times"])
def test_a_row_is_slower_where_its_figure_is_worse_than_its_spread(unit: str) -> None:
    more_is_better = unit in ("updates/s", "times")
    good, bad = (1.0, 0.8) if more_is_better else (0.8, 1.0)
    assert _is_slower(_row(unit, bad), _row(unit, good))
    assert not _is_slower(_row(unit, good), _row(unit, bad))
    (comparison,) = compare([_row(unit, bad)], [_row(unit, good)], tolerance=0.05)
    assert comparison.ratio == pytest.approx(0.8)


@pytest.mark.parametrize("unit", ["updates/s", "s"])
def test_a_slower_machine_makes_no_row_slower(unit: str) -> None:
    now, before = _row(unit, 1.0, speed=0.5), _row(unit, 1.0)
    (comparison,) = compare([now], [before], tolerance=0.05)
    assert not comparison.slower
    assert comparison.ratio == pytest.approx(1.0)


def test_a_row_within_the_spread_or_the_tolerance_is_not_slower() -> None:
    before = Row("row", "updates/s", (100.0, 80.0, 120.0, 70.0, 130.0))
    within_spread = Row("row", "updates/s", (85.0, 75.0, 95.0, 84.0, 86.0))
    assert not _is_slower(within_spread, before)
    assert not _is_slower(_row("times", 0.96), _row("times", 1.0))


def test_quartiles_are_those_of_the_values_themselves() -> None:
    assert quartiles((5.0, 1.0, 4.0, 2.0, 3.0)) == (2.0, 3.0, 4.0)
    assert quartiles((7.0,)) == (7.0, 7.0, 7.0)


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    rows = [
        Row("a", "updates/s", (1.0, 2.0), limits=(3.0, 4.0), shares=(0.8, 0.9)),
        Row("b", "MB", (5.0,), note="a device", is_checked=False),
    ]
    write(tmp_path / "rows.json", rows, {"jax": "1"})
    assert read(tmp_path / "rows.json") == (rows, {"jax": "1"})
    assert [x.name for x in compare(rows, rows, tolerance=0.0)] == ["a"]
    (tmp_path / "other.json").write_text("[1]")
    with pytest.raises(ValueError, match="no results"):
        read(tmp_path / "other.json")


def test_a_line_has_the_median_and_the_quartiles() -> None:
    row = Row("a", "updates/s", (10.0, 30.0, 20.0), shares=(0.5, 0.7, 0.6))
    shown = "| a | 20 | 15 to 25 | updates/s | 0.600 (0.550 to 0.650) |  |"
    assert line(row) == shown


def test_rows_are_chosen_by_their_names_and_groups() -> None:
    names = ["updates/SAC", "updates/TD3", "insert/10", "insert/100"]
    assert command.chosen(names, []) == names
    assert command.chosen(names, ["updates", "insert/10"]) == names[:3]
    with pytest.raises(SystemExit, match="PPO"):
        command.chosen(names, ["PPO"])


def test_a_check_exits_with_1_where_a_row_is_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("eqrl.use_all_cores", lambda: None)
    monkeypatch.setattr(command, "machine", lambda: {"jax": "1"})
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)

    def make_rows(effort: Effort) -> list[Row]:
        return [Row("a", "updates/s", (float(effort.repeats),))]

    def measure(*options: str) -> None:
        command.measure_all({"a": make_rows}, parser.parse_args(options))

    path = tmp_path / "rows.json"
    measure("--repeats", "10", "--output", str(path))
    assert json.loads(path.read_text())["rows"][0]["values"] == [10.0]
    measure("--repeats", "11", "--check", str(path))
    assert "0 of 1 rows are worse" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="1"):
        measure("--repeats", "5", "--check", str(path))
    assert "1 of 1 rows are worse" in capsys.readouterr().out
