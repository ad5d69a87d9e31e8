"""Processes that repeat one measurement on demand, and take turns at it.

A worker is a module that compiles its work and passes it to `serve`, or that calls
`hold` repeatedly if a library trains in a single call. It prints the seconds of
processor time and of wall time of the first run, compilation included; then, for each
line that it reads, those of one more run. Each library can have its own Python, so this
module imports only the standard library.
"""

import dataclasses
import os
import pathlib
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


ROOT = pathlib.Path(__file__).parents[1]


@dataclasses.dataclass(frozen=True)
class Times:
    """Seconds of processor time and of wall time."""

    cpu: float
    wall: float


class Worker:
    """A process that has compiled one piece of work and repeats it on demand."""

    def __init__(self, command: Sequence[str]) -> None:
        environment = {
            # Workers share the memory of a GPU.
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            **os.environ,
            # A worker says how long compiling takes.
            "JAX_ENABLE_COMPILATION_CACHE": "false",
            # Safe paths: the folder that it is started in must not hide packages.
            "PYTHONPATH": str(ROOT),
            "PYTHONSAFEPATH": "1",
        }
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.first = self._answer()

    def measure(self) -> Times:
        stdin = self._process.stdin
        assert stdin is not None
        stdin.write("go\n")
        stdin.flush()
        return self._answer()

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> Times:
        stdout = self._process.stdout
        assert stdout is not None
        for line in stdout:
            try:
                cpu, wall = map(float, line.split())
            except ValueError:
                continue  # Output of a library.
            return Times(cpu, wall)
        raise RuntimeError(f"{self._process.args} ended")


def compare(
    started: Mapping[str, Sequence[str]], *, processes: int, repeats: int
) -> tuple[dict[str, list[Times]], dict[str, list[Times]]]:
    """Times of compiling and the first run, and of the others, in turns.

    **Arguments:**

    - `started`: the command that starts each worker.
    - `processes`: sets of workers, one after another, because one program is
        faster or slower from process to process.
    - `repeats`: turns of each worker.
    """
    first: dict[str, list[Times]] = {name: [] for name in started}
    times: dict[str, list[Times]] = {name: [] for name in started}
    for index in range(processes):
        names = list(started) if index % 2 == 0 else list(reversed(list(started)))
        workers: dict[str, Worker] = {}
        try:
            for name in names:
                workers[name] = Worker(started[name])
                first[name].append(workers[name].first)
            for turn in range(repeats):
                for name in names if turn % 2 == 0 else reversed(names):
                    times[name].append(workers[name].measure())
        finally:
            for worker in workers.values():
                worker.close()
    return first, times


def answer(cpu: float, wall: float) -> None:
    """Reports the time of the work to the process that started this one."""
    print(cpu, wall, flush=True)


def serve(run: Callable[[], Any]) -> None:
    """Compiles, reports it, and measures on demand."""
    import jax

    def measured() -> tuple[float, float]:
        cpu, wall = time.process_time(), time.perf_counter()
        jax.block_until_ready(run())
        return time.process_time() - cpu, time.perf_counter() - wall

    answer(*measured())
    for _ in sys.stdin:
        answer(*measured())


def make_hold() -> Callable[..., None]:
    """A function of any arguments that pauses a training until the next line of input.

    The work between two calls is one measurement.
    """
    begin: list[float] = []

    def hold(*_: Any, **__: Any) -> None:
        cpu, wall = time.process_time(), time.perf_counter()
        if begin:
            answer(cpu - begin[0], wall - begin[1])
            if not sys.stdin.readline():
                sys.exit()
        begin[:] = [time.process_time(), time.perf_counter()]

    return hold
