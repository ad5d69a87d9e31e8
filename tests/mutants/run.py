"""Runs tests on a faulty copy of the tree, each time in a forked process."""

import dataclasses
import importlib
import os
import re
import shlex
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from .fault import Fault


_COPIED = ("eqrl", "tests", "docs", "benchmarks")
_COPIED_FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "noxfile.py")
_OWN_PACKAGES = _COPIED

# Imported once, before forking. The library itself is imported in each fork.
_PRELOADED = (
    "beartype",
    "equinox",
    "jax",
    "jaxtyping",
    "numpy",
    "optax",
    "pytest",
    "scipy.special",
)

# As in `pyproject.toml`, but without type checks at run time: decorating every function
# takes longer than most of the tests.
_WITHOUT_TYPES = "addopts=-ra --strict-markers -m 'not long and not worlds'"

# Exit codes of pytest: tests failed; tests could not be imported or were interrupted.
_FAILED, _INTERRUPTED = 1, 2


@dataclasses.dataclass(frozen=True)
class Outcome:
    """Whether a fault was seen, by which test, and at what cost."""

    seen: bool
    by: str
    cpu_seconds: float

    def as_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def preload() -> None:
    """Imports the slow dependencies, which all forked processes then share."""
    for name in _PRELOADED:
        importlib.import_module(name)


def copy_tree(root: Path, copy: Path) -> None:
    """Copies what the tests need; the cache of compiled programs is shared."""
    copy.mkdir(parents=True, exist_ok=True)
    for name in _COPIED:
        shutil.copytree(
            root / name, copy / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in _COPIED_FILES:
        shutil.copy(root / name, copy / name)
    (root / ".jax_cache").mkdir(exist_ok=True)
    (copy / ".jax_cache").symlink_to((root / ".jax_cache").resolve())


def try_fault(fault: Fault, tree: Path, *, timeout: float) -> Outcome:
    """Applies a fault to the tree, runs its tests until one fails, and undoes it."""
    path = tree / fault.file
    sound = path.read_text()
    _write(path, sound.replace(fault.old, fault.new))
    cpu_seconds = 0.0
    try:
        for typed in (False, True):
            for selection in fault.tests:
                result = _run(selection, tree, timeout=timeout, typed=typed)
                cpu_seconds += result.cpu_seconds
                if result.code is None:
                    by = f"a hang of {timeout:.0f} s in {selection}"
                    return Outcome(seen=True, by=by, cpu_seconds=cpu_seconds)
                if result.code in (_FAILED, _INTERRUPTED):
                    by = _first_failure(result.text)
                    return Outcome(seen=True, by=by, cpu_seconds=cpu_seconds)
                if result.code != 0:
                    by = f"{selection} selects no test, or pytest failed"
                    return Outcome(seen=False, by=by, cpu_seconds=cpu_seconds)
    finally:
        _write(path, sound)
    return Outcome(seen=False, by="all pass", cpu_seconds=cpu_seconds)


def _write(path: Path, source: str) -> None:
    path.write_text(source)
    # Its time of change has whole seconds only, by which Python may take an old one.
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
        compiled.unlink()


def passes(selection: str, tree: Path, *, timeout: float) -> bool:
    """Whether tests pass in a tree without a fault."""
    result = _run(selection, tree, timeout=timeout, typed=False)
    if result.code != 0:
        print(result.text[-2000:], file=sys.stderr)
    return result.code == 0


@dataclasses.dataclass(frozen=True)
class _Result:
    code: int | None
    text: str
    cpu_seconds: float


def _run(selection: str, tree: Path, *, timeout: float, typed: bool) -> _Result:
    log = tree / "pytest.log"
    arguments = ["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--tb=line"]
    # Some preloaded modules are plugins of pytest.
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    if not typed:
        arguments += ["-o", _WITHOUT_TYPES]
    arguments += shlex.split(selection)
    child = os.fork()
    if child == 0:
        _be_pytest(arguments, tree, log)
    code, cpu_seconds = _wait(child, timeout)
    return _Result(code=code, text=log.read_text(), cpu_seconds=cpu_seconds)


def _be_pytest(arguments: list[str], tree: Path, log: Path) -> None:
    """Turns this process into pytest, which ends it."""
    code = 3
    try:
        # A process group of its own, which a timeout ends as a whole.
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.chdir(tree)
        sys.path[0] = str(tree)
        sys.dont_write_bytecode = False
        for name in list(sys.modules):
            if name.partition(".")[0] in _OWN_PACKAGES:
                del sys.modules[name]
        pytest = importlib.import_module("pytest")
        code = int(pytest.main(arguments))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _wait(child: int, timeout: float) -> tuple[int | None, float]:
    """The exit code, `None` after a hang, and seconds of processor time."""
    end = time.monotonic() + timeout
    while True:
        ended, status, usage = os.wait4(child, os.WNOHANG)
        if ended == child:
            code = os.waitstatus_to_exitcode(status)
            # A process that was killed by a signal failed.
            code = _FAILED if code < 0 else code
            break
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            _, _, usage = os.wait4(child, 0)
            code = None
            break
        time.sleep(0.1)
    return code, usage.ru_utime + usage.ru_stime


def _first_failure(text: str) -> str:
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", text, re.M)
    return found.group(1) if found else "a crash of pytest"
