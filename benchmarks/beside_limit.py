"""Measures work beside the machine's limit, in the same rounds."""

import dataclasses
import functools
from collections.abc import Callable, Mapping

import jax
from jaxtyping import PyTree

from .matmuls import Matmul, make_matmul_run
from .measure import Effort, amount_for, seconds, side_by_side
from .report import Row


# The size of the default networks' layers and batches.
SIZE = 256

Repeated = Callable[[int], PyTree]
"""Does a number of units of work, resuming each time."""

Rates = tuple[float, ...]
"""The rate of each round."""


@dataclasses.dataclass(frozen=True)
class Alone:
    """The matmuls of some work, and nothing else.

    - `run`: runs them for a number of rounds.
    - `count`: the number of units of a row with the matmuls of one round.
    """

    run: Repeated
    count: float


@functools.cache
def _products() -> tuple[Repeated, int]:
    """Products of square matrices, and the number that takes a fifth of a second."""
    matmul = Matmul(
        left=(SIZE, SIZE),
        right=(SIZE, SIZE),
        axes="bi,io->bo",
        dtype="float32",
    )
    run = make_matmul_run([(matmul, 1)])
    return run, amount_for(run, seconds=0.2)


def _operations(num_products: int) -> float:
    return 2 * SIZE**3 * num_products / 1e9


def limit_of_now() -> float:
    """The machine's limit at this moment, in GFLOP/s."""
    products, amount = _products()
    # It may have to be compiled.
    jax.block_until_ready(products(1))
    return _operations(amount) / seconds(lambda: products(amount))


def measure_beside(
    works: Mapping[str, Repeated], *, effort: Effort, least: int = 1
) -> tuple[dict[str, Rates], Rates]:
    """The rate of each work, measured in turns.

    **Arguments:**

    - `works`: by name.
    - `effort`: of measuring.
    - `least`: all work comes in multiples of this.

    **Returns:**

    The rates of each work, and the machine's limit in the same rounds, in GFLOP/s.
    """
    all_of: dict[str, tuple[Repeated, int]] = {
        name: (run, amount_for(run, seconds=effort.seconds, unit=least))
        for name, run in works.items()
    }
    all_of[""] = _products()
    times = side_by_side(
        {
            name: lambda run=run, amount=amount: run(amount)
            for name, (run, amount) in all_of.items()
        },
        repeats=effort.repeats,
    )
    rates = {
        name: tuple(amount / second for second in times[name])
        for name, (_, amount) in all_of.items()
    }
    limits = tuple(_operations(1) * rate for rate in rates.pop(""))
    return rates, limits


def measure_row(
    name: str,
    unit: str,
    run: Repeated,
    *,
    effort: Effort,
    count: float = 1.0,
    least: int = 1,
    alone: Alone | None = None,
    note: str = "",
) -> Row:
    """A row of the rate, or of the seconds, of some work.

    **Arguments:**

    - `name`, `unit`, `note`: of the row.
    - `run`: does a number of units of the work, resuming each time.
    - `effort`: of measuring.
    - `count`: what to count in one of the work, such as the members that it updates.
    - `least`: the work comes in multiples of this.
    - `alone`: the matmuls of the work.
    """
    works = {"work": run} | ({} if alone is None else {"alone": alone.run})
    rates, limits = measure_beside(works, effort=effort, least=least)
    shares: Rates = ()
    if alone is not None:
        pairs = zip(rates["work"], rates["alone"], strict=True)
        shares = tuple(work * count / (rate * alone.count) for work, rate in pairs)
    if unit == "s":
        values = tuple(1 / (rate * count) for rate in rates["work"])
    else:
        values = tuple(rate * count for rate in rates["work"])
    return Row(name, unit, values, limits=limits, shares=shares, note=note)
