"""Times things side by side: these machines are noisy, so only ratios count."""

import statistics
import time
from collections.abc import Callable

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
        # Every second round goes backwards, so that nobody always comes first.
        names = list(runs) if index % 2 == 0 else list(reversed(runs))
        for name in names:
            times[name].append(seconds(runs[name]))
    return times


def median_ratio(numerator: list[float], denominator: list[float]) -> float:
    """Median over rounds of the ratio of two times measured in the same round."""
    ratios = [x / y for x, y in zip(numerator, denominator, strict=True)]
    return statistics.median(ratios)
