"""The description of a fault."""

import dataclasses
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Fault:
    """A small change of the library after which some test should fail.

    - `name`: `room:what-is-wrong`.
    - `file`: the file to change, relative to the root of the repository.
    - `old`: a snippet that occurs in the file exactly once.
    - `new`: its replacement.
    - `tests`: selections of tests as on the command line of pytest, such as
        `tests/losses/test_losses.py -k sac`, run in this order until one fails.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]


def problem_of(fault: Fault, root: Path) -> str | None:
    """Why a fault cannot be applied to the tree at `root`; `None` if it can."""
    path = root / fault.file
    if not path.is_file():
        return f"there is no file {fault.file}"
    if fault.old == fault.new:
        return "it changes nothing"
    count = path.read_text().count(fault.old)
    if count != 1:
        return f"its snippet stands {count} times in {fault.file}: {fault.old!r}"
    for selection in fault.tests:
        test_file = selection.split()[0].partition("::")[0]
        if not (root / test_file).exists():
            return f"there are no tests {test_file}"
    if not fault.tests:
        return "it has no tests"
    return None
