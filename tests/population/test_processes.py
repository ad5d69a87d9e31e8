"""The same population on one process and on two."""

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import equinox as eqx
import jax.random as jr
import numpy as np
import pytest

import eqrl

from . import process, tiny


pytestmark = pytest.mark.long

_NUM_PROCESSES = 2
_SECONDS = 150

Solutions = dict[str, eqrl.PopulationSolution]
on_each_process = pytest.mark.parametrize("index", range(_NUM_PROCESSES))


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def _run_processes(folder: Path) -> None:
    """Runs the processes, each of which writes what it found; none outlives this."""
    port = _free_port()
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    environment["JAX_PLATFORMS"] = "cpu"
    children: list[subprocess.Popen[bytes]] = []
    codes: list[int] = []
    deadline = time.monotonic() + _SECONDS
    try:
        for index in range(_NUM_PROCESSES):
            arguments = [index, _NUM_PROCESSES, port, folder]
            with (folder / f"{index}.log").open("wb") as log:
                children.append(
                    subprocess.Popen(
                        [sys.executable, "-m", process.__name__, *map(str, arguments)],
                        cwd=Path(__file__).parents[2],
                        env=environment,
                        stdout=log,
                        stderr=log,
                    )
                )
        for child in children:
            codes.append(child.wait(max(deadline - time.monotonic(), 0)))
    except subprocess.TimeoutExpired:
        pass  # Then there are fewer codes than processes.
    finally:
        for child in children:
            child.kill()
            child.wait()
    logs = [log.read_text()[-3000:] for log in sorted(folder.glob("*.log"))]
    assert codes == [0] * _NUM_PROCESSES, "\n".join(logs)


@pytest.fixture(scope="module")
def on_two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    _run_processes(folder)
    return folder


@pytest.fixture(scope="module")
def on_one() -> Solutions:
    return tiny.solutions(None)


def test_there_are_members_to_replace(on_one: Solutions) -> None:
    for solution in on_one.values():
        assert np.sum(solution.parents[1:] != np.arange(4)) == 4


@on_each_process
def test_members_in_turn_on_two_processes_are_those_of_one_bit_for_bit(
    on_one: Solutions, on_two: Path, index: int
) -> None:
    expected = tiny.found(on_one["in_turn"])
    with np.load(on_two / f"in_turn_{index}.npz") as actual:
        assert set(actual) == set(expected)
        for name, value in expected.items():
            np.testing.assert_array_equal(actual[name], value, err_msg=name)


@on_each_process
def test_members_together_on_two_processes_are_those_of_one(
    on_one: Solutions, on_two: Path, index: int
) -> None:
    expected = tiny.found(on_one["together"])
    with np.load(on_two / f"together_{index}.npz") as actual:
        assert np.array_equal(actual["['parents']"], expected["['parents']"])
        for name, value in expected.items():
            # Devices that map over fewer members round otherwise in the last bits.
            np.testing.assert_allclose(
                actual[name], value, rtol=1e-3, atol=1e-5, err_msg=name
            )


def test_states_that_all_processes_save_are_those_of_one_bit_for_bit(
    on_one: Solutions, on_two: Path
) -> None:
    expected = on_one["in_turn"].trainer_states
    assert eqx.tree_equal(eqrl.restore(on_two / "states", expected), expected)


def test_of_what_is_spread_the_part_of_each_process_has_a_digest(on_two: Path) -> None:
    record = json.loads((on_two / "states" / "0" / "record" / "metadata").read_text())
    entries = record["arrays"].values()
    assert {len(entry["pieces"]) for entry in entries} == {_NUM_PROCESSES}
    halves = [[[begin, end] for begin, end in ((0, 2), (2, 4))]]
    begins = [[piece["index"][0] for piece in entry["pieces"]] for entry in entries]
    assert all(each in halves for each in begins)


def test_one_process_saves_a_member_without_the_other(
    on_one: Solutions, on_two: Path
) -> None:
    like = eqx.filter_eval_shape(tiny.AGENT.init, tiny.ENV.spec, key=jr.key(0))
    winner = eqrl.restore(on_two / "winner", like)
    assert eqx.tree_equal(winner, tiny.winner(on_one["in_turn"]))


def test_another_process_is_told_not_to_save_what_is_its_own(on_two: Path) -> None:
    assert "only process 0 can" in (on_two / "refusal").read_text()
    assert not (on_two / "refused").exists()


@on_each_process
def test_ctrl_c_on_one_process_stops_both(on_two: Path, index: int) -> None:
    assert (on_two / f"generations_{index}").read_text() == "1"
