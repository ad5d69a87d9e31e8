"""Statistics over seeds: their center, and how well a few of them determine it."""

import math
from collections.abc import Callable
from typing import Literal, SupportsFloat

import numpy as np
from jaxtyping import Array, Float, Real

from .._pytree.fields import (
    Range,
    check_choice,
    check_integer,
    converted,
    shown,
)


Center = Literal["mean", "iqm"]
"""The mean, or the interquartile mean."""

# The most numbers that a bootstrap holds in memory.
_MOST_AT_ONCE = 2**22


def rounded(value: SupportsFloat) -> str:
    """A return for people to read: one decimal, but more of a number below ten."""
    number = float(value)
    digits = 1 if abs(number) >= 10 else 3 if abs(number) >= 1 else 4
    # The sum is never -0.
    return str(round(number, digits) + 0.0)


def interquartile_mean(
    values: Real[np.ndarray, "*rows seeds"] | Real[Array, "*rows seeds"],
) -> Float[np.ndarray, "*rows"]:
    """The mean of the middle half of the values along the last axis.

    The first and the last `n // 4` of n sorted values are left out, so none of fewer
    than four. The interquartile mean depends less on outliers than the mean, and varies
    less from experiment to experiment than the median.

    **Arguments:**

    - `values`: such as the returns of several seeds. Those that are `nan` are left out.

    **Returns:**

    The interquartile means, `nan` where there is no value, or where infinite values of
    both signs are in the middle half. Raises a `ValueError` for a number alone.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{agarwal2021deep,
            title={Deep Reinforcement Learning at the Edge of the Statistical
                Precipice},
            author={Agarwal, Rishabh and Schwarzer, Max and Castro, Pablo Samuel and
                Courville, Aaron and Bellemare, Marc G.},
            booktitle={Advances in Neural Information Processing Systems},
            year={2021},
        }
        ```
    """
    return center_of(values, "iqm")


def bootstrap_interval(
    values: Real[np.ndarray, "*rows seeds"] | Real[Array, "*rows seeds"],
    *,
    center: Center = "mean",
    level: float | int = 0.95,
    num_resamples: int = 2_000,
    seed: int = 0,
) -> tuple[Float[np.ndarray, "*rows"], Float[np.ndarray, "*rows"]]:
    """A confidence interval for the center of the values along the last axis.

    It is that of the percentile bootstrap: the center of as many values, drawn from the
    given ones with replacement, lies above the interval in `(1 - level) / 2` of all
    draws, and below it equally often. With few seeds the intervals are too narrow.
    Agarwal et al. (2021), see `eqrl.interquartile_mean`, recommend it for the handful
    of seeds that reinforcement learning affords.

    **Arguments:**

    - `values`: such as the returns of several seeds. Those that are `nan` are left out.
    - `center`: `"mean"`, or `"iqm"` for the interquartile mean.
    - `level`: confidence level, in (0, 1].
    - `num_resamples`: the number of draws, at least 2.
    - `seed`: seed of the draws, at least 0.

    **Returns:**

    The lower and the upper ends, `nan` where there are fewer than two values. Infinite
    values of one sign give infinite ends; those of both signs give `nan`. Raises a
    `ValueError` for a number alone.
    """
    check_choice("center", center, _CENTERS)
    Range(low=0, high=1, low_open=True).check("level", level)
    check_integer("num_resamples", num_resamples, least=2)
    check_integer("seed", seed, least=0)

    def ends(rows: Float[np.ndarray, "rows seeds"]) -> Float[np.ndarray, "rows 2"]:
        count = rows.shape[1]
        # A single value does not show how much values differ.
        if count < 2:
            return np.full((len(rows), 2), np.nan)
        # All rows share their draws, so that the shade is as smooth as its curve.
        random = np.random.default_rng(seed)
        drawn = random.integers(count, size=(num_resamples, count))
        result = np.empty((len(rows), 2))
        at_once = max(1, _MOST_AT_ONCE // drawn.size)
        for start in range(0, len(rows), at_once):
            some = slice(start, start + at_once)
            centers = _CENTERS[center](rows[some][:, drawn], axis=-1)
            tails = [(1 - level) / 2, (1 + level) / 2]
            result[some] = _quantiles(centers, tails).T
        return result

    both = _of_known(values, ends, width=2)
    return both[..., 0], both[..., 1]


def _quantiles(
    values: Float[np.ndarray, "rows draws"], levels: list[float]
) -> Float[np.ndarray, "levels rows"]:
    """The quantiles of each row, which may have infinite values."""
    result = np.quantile(values, levels, axis=-1)
    if np.all(np.isfinite(result)):
        return result
    # NumPy's interpolation subtracts neighbors, which gives `nan` for infinite ones.
    low, high = (
        np.quantile(values, levels, axis=-1, method=method)
        for method in ("lower", "higher")
    )
    between = np.where(low == high, low, low + high)
    return np.where(np.isfinite(result), result, between)


def center_of(
    values: Real[np.ndarray, "*rows seeds"] | Real[Array, "*rows seeds"],
    center: Center,
) -> Float[np.ndarray, "*rows"]:
    """The center of the values along the last axis, without those that are `nan`."""
    check_choice("center", center, _CENTERS)

    def column(rows: Float[np.ndarray, "rows seeds"]) -> Float[np.ndarray, "rows 1"]:
        if rows.shape[1] == 0:
            return np.full((rows.shape[0], 1), np.nan)
        return _CENTERS[center](rows, axis=-1)[:, None]

    return _of_known(values, column, width=1)[..., 0]


def moving_average(
    values: Float[np.ndarray, "rows seeds"], num_rows: int
) -> Float[np.ndarray, "rows seeds"]:
    """The mean, for each seed, of the values in a row and in those right before it.

    **Arguments:**

    - `values`: the values; `nan` marks a missing one, which is left out.
    - `num_rows`: how many rows are averaged; fewer at the beginning.

    **Returns:**

    The averages, `nan` where none of their rows has a value.
    """
    num_rows = min(num_rows, len(values))
    if num_rows <= 1:
        return values
    known = ~np.isnan(values)
    sums = _moving_sums(np.where(known, values, 0.0), num_rows)
    counts = _moving_sums(known.astype(float), num_rows)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def _moving_sums(
    values: Float[np.ndarray, "rows seeds"], num_rows: int
) -> Float[np.ndarray, "rows seeds"]:
    padded = np.pad(values, ((num_rows - 1, 0), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, num_rows, axis=0)
    return windows.sum(axis=-1)


def _middle_mean(
    values: Float[np.ndarray, "*rows seeds"], axis: int = -1
) -> Float[np.ndarray, "*rows"]:
    # As `scipy.stats.trim_mean` does, which takes longer to import than to plot.
    count = values.shape[axis]
    middle = range(count // 4, count - count // 4)
    return np.sort(values, axis=axis).take(middle, axis=axis).mean(axis=axis)


_CENTERS: dict[str, Callable[..., Float[np.ndarray, "..."]]] = {
    "mean": np.mean,
    "iqm": _middle_mean,
}


def _of_known(
    values: Real[np.ndarray, "*rows seeds"] | Real[Array, "*rows seeds"],
    statistic: Callable[
        [Float[np.ndarray, "rows seeds"]], Float[np.ndarray, "rows width"]
    ],
    *,
    width: int,
) -> Float[np.ndarray, "*rows width"]:
    """Statistics of the values in each row that are not `nan`."""
    what = "must be an array of numbers, whose last axis is that of the seeds."
    given = converted("values", lambda x: np.asarray(x, float), values, what)
    if given.ndim == 0:
        raise ValueError(f"`values={shown(values)}` {what}")
    rows = given.reshape(math.prod(given.shape[:-1]), given.shape[-1])
    result = np.empty((len(rows), width))
    # Rows in which the same seeds have values form a matrix again.
    patterns, which = np.unique(~np.isnan(rows), axis=0, return_inverse=True)
    for index, pattern in enumerate(patterns):
        chosen = which.reshape(-1) == index
        # The mean of infinite values of both signs is `nan`, with a warning.
        with np.errstate(invalid="ignore"):
            result[chosen] = statistic(rows[chosen][:, pattern])
    return result.reshape(*given.shape[:-1], width)
