"""The same population on one process and on two."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from . import process, tiny


_NUM_PROCESSES = 2
_SECONDS = 150


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _run_processes(folder: Path) -> list[tiny.Results]:
    """What each of the processes found; none outlives this."""
    port = _free_port()
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment["JAX_PLATFORMS"] = "cpu"
    children = []
    deadline = time.monotonic() + _SECONDS
    try:
        for index in range(_NUM_PROCESSES):
            arguments = [index, _NUM_PROCESSES, port, folder / f"{index}.npz"]
            with (folder / f"{index}.log").open("w") as log:
                command = [sys.executable, "-m", process.__name__]
                children.append(
                    subprocess.Popen(
                        [*command, *map(str, arguments)],
                        cwd=Path(__file__).parents[2],
                        env=environment,
                        stdout=log,
                        stderr=log,
                    )
                )
        codes = [child.wait(deadline - time.monotonic()) for child in children]
    except subprocess.TimeoutExpired:
        codes = ["too long"]
    finally:
        for child in children:
            child.kill()
            child.wait()
    logs = [log.read_text()[-3000:] for log in sorted(folder.glob("*.log"))]
    assert codes == [0] * _NUM_PROCESSES, "\n".join(logs)
    return [dict(np.load(folder / f"{index}.npz")) for index in range(_NUM_PROCESSES)]


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> list[tiny.Results]:
    return _run_processes(tmp_path_factory.mktemp("processes"))


@pytest.fixture(scope="module")
def on_one() -> tiny.Results:
    return tiny.results(None)


def test_there_are_members_to_replace(on_one: tiny.Results) -> None:
    for members in ("in_turn", "together"):
        assert np.sum(on_one[f"{members}['parents']"][1:] != np.arange(4)) == 4


@pytest.mark.parametrize("index", range(_NUM_PROCESSES))
def test_members_in_turn_on_two_processes_are_those_of_one_bit_for_bit(
    on_one: tiny.Results, on_two: list[tiny.Results], index: int
) -> None:
    names = [name for name in on_one if name.startswith("in_turn")]
    assert len(names) > 20
    for name in names:
        np.testing.assert_array_equal(on_two[index][name], on_one[name], err_msg=name)


@pytest.mark.parametrize("index", range(_NUM_PROCESSES))
def test_members_together_on_two_processes_are_those_of_one(
    on_one: tiny.Results, on_two: list[tiny.Results], index: int
) -> None:
    names = [name for name in on_one if name.startswith("together")]
    parents = "together['parents']"
    assert np.array_equal(on_two[index][parents], on_one[parents])
    for name in names:
        # Devices that map over fewer members round otherwise in the last bits.
        np.testing.assert_allclose(
            on_two[index][name], on_one[name], rtol=1e-3, atol=1e-5, err_msg=name
        )


def test_ctrl_c_on_one_process_stops_both(on_two: list[tiny.Results]) -> None:
    assert [found["interrupted"].item() for found in on_two] == [1, 1]
