"""How wrong programs end: with an error that says what is wrong, or with another.

`python -m tests.typing.runtime` runs `runtime_programs.py` once for each mode, in a
process of its own: without checks, with `EQRL_TYPECHECK=1`, and with these and the
strict `eqrl.typecheck` of the programs. It ends with 1 unless each program ends as
`EXPECTED` says. With `--record` it prints what to write there.
"""

import contextlib
import inspect
import io
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any


ROOT = Path(__file__).parents[2]
PROGRAMS = "tests.typing.runtime_programs"
MODES = ("unchecked", "checked", "strict")

# How those programs end that do not end clearly in every mode, and why.
#
# - `truncated_for_terminated`: both are booleans of one shape.
# - `loss_of_ones_own_that_broadcasts`, `key_used_twice`: only JAX's strict flags see
#   it.
# - `matrix_for_a_vector_in_ones_own_function`: only seen where that is checked.
# - The environments: only their values are wrong. Strict checks play them.
EXPECTED: dict[str, tuple[str, str, str]] = {
    "actions_that_are_not_read": ("silent", "silent", "clear"),
    "both_flags_at_once": ("silent", "silent", "clear"),
    "key_used_twice": ("silent", "silent", "clear"),
    "limit_that_is_not_kept": ("silent", "silent", "clear"),
    "loss_of_ones_own_that_broadcasts": ("silent", "silent", "clear"),
    "matrix_for_a_vector_in_ones_own_function": ("silent", "silent", "clear"),
    "right": ("silent", "silent", "silent"),
    "truncated_for_terminated": ("silent", "silent", "silent"),
}
CLEAR = ("clear", "clear", "clear")


def ending(error: Exception) -> str:
    """`clear` if an error says what is wrong where it was done, else `unclear`.

    That is a `ValueError` of eqrl, a check of types or a strict flag of JAX, or an
    error of Python about how something was called or read.
    """
    name, text = type(error).__name__, str(error)
    of_jax = ("KeyReuseError", "TypePromotionError")
    if name in ("TypeCheckError", *of_jax) or "rank_promotion" in text:
        return "clear"
    last = Path(traceback.extract_tb(error.__traceback__)[-1].filename)
    if isinstance(error, ValueError) and last.is_relative_to(ROOT / "eqrl"):
        return "clear"
    calls = ("unexpected keyword", "required", "positional argument", "no attribute")
    is_own = last.is_relative_to(ROOT / "tests")
    return "clear" if is_own and any(x in text for x in calls) else "unclear"


def run_all(programs: ModuleType) -> dict[str, tuple[str, str]]:
    """How each program ends, and what is said."""
    ends = {}
    for name, program in inspect.getmembers(programs, inspect.isfunction):
        if program.__module__ != PROGRAMS or inspect.signature(program).parameters:
            continue
        try:
            with contextlib.redirect_stdout(io.StringIO()):
                program()
            ends[name] = ("silent", "")
        except Exception as error:
            said = " ".join(f"{type(error).__name__}: {error}".split())
            ends[name] = (ending(error), said)
    return ends


def in_this_process(mode: str) -> None:
    """Prints how all programs end in a mode, as JSON."""
    import importlib

    import eqrl

    if mode == "strict":
        eqrl.typecheck(PROGRAMS, strict=True)
    print(json.dumps(run_all(importlib.import_module(PROGRAMS))))


def ends_of(mode: str) -> dict[str, tuple[str, str]]:
    settings = {
        "EQRL_TYPECHECK": "0" if mode == "unchecked" else "1",
        "JAX_TRACEBACK_FILTERING": "off",
        # Nearly all of the time is compiling.
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    }
    result = subprocess.run(
        [sys.executable, "-m", "tests.typing.runtime", "--mode", mode],
        cwd=ROOT,
        env=os.environ | settings,
        check=True,
        capture_output=True,
        text=True,
    )
    ends: dict[str, tuple[str, str]] = json.loads(result.stdout.splitlines()[-1])
    return ends


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--mode"]:
        in_this_process(arguments[1])
        return 0
    every: list[dict[str, Any]] = [ends_of(mode) for mode in MODES]
    found = {name: tuple(ends[name][0] for ends in every) for name in every[0]}
    if arguments == ["--record"]:
        print(json.dumps(found, indent=4))
        return 0
    for name, ends in found.items():
        print(f"{name:42} " + " ".join(f"{end:8}" for end in ends))
    for index, mode in enumerate(MODES):
        ends = [each[index] for name, each in found.items() if name != "right"]
        counted = ", ".join(
            f"{ends.count(x)} {x}" for x in ("clear", "unclear", "silent")
        )
        print(f"{mode}: {counted} of {len(ends)}")
    wrong = {
        name
        for name in found.keys() | EXPECTED.keys()
        if found.get(name) != EXPECTED.get(name, CLEAR)
    }
    for name in sorted(wrong):
        print(f"`{name}` ends as {found.get(name)}, not {EXPECTED.get(name, CLEAR)}:")
        for mode, ends in zip(MODES, every, strict=True):
            print(f"  {mode}: {ends.get(name, ('', 'not there'))[1][:300]}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
