"""Times things side by side: these machines are noisy, so only ratios count."""

import dataclasses
import pathlib
import platform
import statistics
import time
from collections.abc import Callable
from importlib import metadata

import jax
from jaxtyping import PyTree


def seconds(run: Callable[[], PyTree]) -> float:
    """Wall-clock time of one call, results included."""
    begin = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - begin


def side_by_side(
    runs: dict[str, Callable[[], PyTree]], *, repeats: int
) -> dict[str, list[float]]:
    """Seconds of each run, round after round, after one call each to compile."""
    for run in runs.values():
        jax.block_until_ready(run())
    times: dict[str, list[float]] = {name: [] for name in runs}
    for index in range(repeats):
        # Every second round is in reverse order, so that no run always comes first.
        names = list(runs) if index % 2 == 0 else list(reversed(runs))
        for name in names:
            times[name].append(seconds(runs[name]))
    return times


def median_ratio(numerator: list[float], denominator: list[float]) -> float:
    """Median over rounds of the ratio of two times measured in the same round."""
    ratios = [x / y for x, y in zip(numerator, denominator, strict=True)]
    return statistics.median(ratios)


def machine() -> dict[str, str]:
    """The machine and the versions that a result depends on."""
    device = jax.devices()[0]
    return {
        "device": device.device_kind if device.platform != "cpu" else _processor(),
        "devices": str(jax.device_count()),
        "instructions": _instructions(),
        "python": platform.python_version(),
        **{name: metadata.version(name) for name in ("jax", "jaxlib", "equinox")},
    }


def _of_processor(name: str) -> str:
    """What Linux says of the first core, such as its flags; empty elsewhere."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((x.partition(":")[2].strip() for x in lines if x.startswith(name)), "")


def _processor() -> str:
    return _of_processor("model name") or platform.processor() or platform.machine()


def _instructions() -> str:
    """The best of the instruction sets by which products differ."""
    flags = _of_processor("flags").split()
    sets = ("amx_bf16", "avx512_bf16", "avx512f", "avx2")
    return next((name for name in sets if name in flags), "unknown")


def amount_for(run: Callable[[int], PyTree], *, seconds: float, unit: int = 1) -> int:
    """The number of units of work that takes about `seconds`; compiles first."""
    # Called twice, because the results of the first call may have other types than its
    # arguments, such as strong ones.
    for _ in range(2):
        jax.block_until_ready(run(unit))
    amount = unit
    while True:
        begin = time.perf_counter()
        jax.block_until_ready(run(amount))
        elapsed = time.perf_counter() - begin
        if elapsed > seconds / 4:
            return max(1, round(seconds / elapsed * amount / unit)) * unit
        # Bounded, since a first, slow call may be misleading.
        amount *= 4


@dataclasses.dataclass(frozen=True)
class Effort:
    """The least number of seconds of a call, and the number of rounds."""

    seconds: float
    repeats: int
