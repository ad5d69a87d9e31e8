import math
from collections.abc import Collection
from typing import Any

import jax
import jax.core
import numpy as np
from jaxtyping import Array, Shaped

from .._types.custom_types import FloatLike


def check_range(
    name: str,
    value: FloatLike | Shaped[Array, "..."] | None,
    *,
    low: float | int = -math.inf,
    high: float | int = math.inf,
    low_open: bool = False,
    optional: bool = False,
) -> None:
    """Raises a `ValueError` unless `value` is one number in `[low, high]`.

    Of a traced value, as within `vmap`, only the shape is known and looked at. `None`
    passes where it is `optional`.
    """
    left = "(" if low_open or low == -math.inf else "["
    right = ")" if high == math.inf else "]"
    allowed = f"it must be a finite number in {left}{low:g}, {high:g}{right}"
    if value is None:
        if not optional:
            raise ValueError(f"`{name}=None` is not a number; {allowed}.")
        return
    if np.shape(value) != ():
        raise ValueError(
            f"`{name}` has shape {np.shape(value)}; {allowed}. Make a stack, one for "
            "each of many values, by `equinox.filter_vmap` over the constructor."
        )
    if isinstance(value, jax.core.Tracer):
        return
    number = float(value)
    above = number > low if low_open else number >= low
    if not (above and number <= high and math.isfinite(number)):
        raise ValueError(f"`{name}={number:g}` is out of range; {allowed}.")


def plain_integer(value: Any) -> Any:
    """A NumPy integer as Python's; anything else as it is."""
    return int(value) if isinstance(value, np.integer) else value


def check_integer(name: str, value: Any, *, least: int) -> None:
    """Raises a `ValueError` unless `value` is an integer of at least `least`."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or value < least:
        raise ValueError(f"`{name}={value!r}` must be an integer, at least {least}.")


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raises a `ValueError` unless `value` is one of some words."""
    if value not in choices:
        names = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"`{name}={value!r}` must be one of {names}.")
