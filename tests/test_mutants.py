from pathlib import Path

from .mutants.fault import problem_of
from .mutants.faults import FAULTS


ROOT = Path(__file__).parents[1]
ROOMS = [
    "pytree",
    "storage",
    "nn",
    "losses",
    "envs",
    "skills",
    "rewards",
    "agents",
    "interaction",
    "training",
    "population",
    "disk",
    "reporting",
    "run",
    "cli",
    "benchmarks",
]


def test_every_fault_can_be_applied() -> None:
    problems = {fault.name: problem_of(fault, ROOT) for fault in FAULTS}
    assert {name: problem for name, problem in problems.items() if problem} == {}


def test_faults_have_names_of_their_own_in_every_room() -> None:
    names = [fault.name for fault in FAULTS]
    assert len(set(names)) == len(names) >= 80
    assert {name.partition(":")[0] for name in names} == set(ROOMS)
