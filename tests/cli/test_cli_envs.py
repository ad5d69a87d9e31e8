"""`eqrl envs` lists environments, and says what keeps one from starting."""

import sys
import types
from typing import Any

import pytest

import eqrl
from eqrl._cli import main
from eqrl.envs._base import LIBRARIES
from tests.envs.test_frame_stack import Pictures


class _Toys:
    """A library of sixty-one environments, of which some cannot start."""

    options = ()

    def __init__(self) -> None:
        self.started: list[str] = []

    def load(self) -> Any:
        names = [*(f"Toy-v{index}" for index in range(60)), "Broken-v0"]
        return types.SimpleNamespace(names=lambda: names, make=self.make)

    def make(self, name: str, *, max_steps: None) -> Any:
        self.started.append(name)
        print("Welcome to the toys!")
        if name == "Broken-v0":
            raise RuntimeError("no\nbatteries")
        return Pictures((2, 3, 2)) if name == "Toy-v1" else eqrl.envs.Point()


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> _Toys:
    """The library, beside one that is not installed."""

    def load() -> Any:
        raise ModuleNotFoundError("no", name="absent")

    toys = _Toys()
    # Others take seconds to import.
    known = {
        "gymnasium": LIBRARIES["gymnasium"],
        "toys": toys,
        "absent": types.SimpleNamespace(load=load),
    }
    for module in ("eqrl._cli.listing", "eqrl.envs._make"):
        monkeypatch.setattr(f"{module}.LIBRARIES", known)
    return toys


def _listed(*words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    assert main(["envs", *words]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out.splitlines()


def test_names_are_listed_without_starting_any(
    toys: _Toys, capsys: pytest.CaptureFixture[str]
) -> None:
    names = [*(f"toys/Toy-v{index}" for index in range(60)), "toys/Broken-v0"]
    assert _listed("toys/", capsys=capsys) == names
    assert toys.started == []
    # A line of the one that is missing follows what all libraries have.
    command = '`pip install "eqrl[absent]"`'
    line = f"`absent/...` needs absent, which is not installed: {command}."
    listed = _listed(capsys=capsys)
    assert {"eqrl/Point", "gymnasium/Ant-v5", *names} < {*listed}
    assert listed[-1] == line and toys.started == []
    assert _listed("absent", capsys=capsys) == [line]


def test_few_are_started_and_described(
    toys: _Toys, capsys: pytest.CaptureFixture[str]
) -> None:
    # Wherever it is within a name, and whatever its case.
    listed = _listed("S/tOy-v1", capsys=capsys)
    assert listed[:3] == [
        "name          observations          actions       time limit",
        "toys/Toy-v1   image of 2 x 3 x 2    vector of 1   4",
        "toys/Toy-v10  vector of 4           vector of 2   50",
    ]
    assert len(listed) == len(toys.started) + 1 == 12
    # A pattern is that of the whole name.
    (_, first, *_, last) = _listed("toys/?o*-v?", capsys=capsys)
    assert first.startswith("toys/Toy-v0 ") and last.startswith("toys/Toy-v9 ")
    _, *broken = _listed("*Broken*0", capsys=capsys)[:2]
    assert broken == ["toys/Broken-v0  cannot start: no batteries"]


def test_all_are_described_if_that_is_asked_for(
    toys: _Toys, capsys: pytest.CaptureFixture[str]
) -> None:
    listed = _listed("toys/*", "--sizes", capsys=capsys)
    assert len(listed) == len(toys.started) + 1 == 62
    assert listed[-1].endswith("cannot start: no batteries")


def test_real_ones_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    lines = _listed("gymnasium/[ac]*", capsys=capsys)[1:]
    table = {line.partition(" ")[0]: line.split(maxsplit=1)[1] for line in lines}
    image, failure = "image of 96 x 96 x 3 uint8  ", "cannot start: Box2D is not inst"
    expected = image if sys.version_info < (3, 14) else failure
    assert table["gymnasium/CarRacing-v3"].startswith(expected)
    assert table["gymnasium/Acrobot-v1"].split() == "vector of 6 3 choices 500".split()
    assert table["gymnasium/Ant-v2"].startswith("cannot start: The mujoco v2")
    (_, point) = _listed("eqrl/point", capsys=capsys)
    assert point.split() == "eqrl/Point vector of 4 vector of 2 50".split()


def test_a_reader_that_has_seen_enough_is_no_error(
    toys: _Toys, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*words: str, **options: bool) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr("eqrl._cli.listing.print", fail, raising=False)
    assert _listed("toys/", capsys=capsys) == []


def test_what_matches_nothing_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["envs", "gymnasium/Pndulum"]) == 2
    assert "No environment matches `gymnasium/Pndulum`" in capsys.readouterr().err
    assert main(["envs", "pndulum"]) == 2
    assert "matches `pndulum`; `eqrl envs` lists all" in capsys.readouterr().err
