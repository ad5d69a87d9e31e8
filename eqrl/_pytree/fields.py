"""Fields of modules that declare the values they allow, and their checks."""

import dataclasses
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, GetAttrKey, SequenceKey
from jaxtyping import Array, PyTree, Shaped

from .._types.custom_types import FloatLike


_RANGE = "eqrl_range"
_LEAST = "eqrl_least"
_CHOICES = "eqrl_choices"
_INIT_ONLY = "eqrl_init_only"
_ZERO_IF_ABSENT = "eqrl_zero_if_absent"


@dataclasses.dataclass(frozen=True)
class Range:
    """The interval that a hyperparameter must lie in.

    - `low`, `high`: the bounds; `high` itself is allowed where it is finite.
    - `low_open`: whether `low` itself is excluded.
    - `optional`: whether `None` is allowed too.
    """

    low: float | int = -math.inf
    high: float | int = math.inf
    low_open: bool = False
    optional: bool = False

    def __str__(self) -> str:
        left = "(" if self.low_open or self.low == -math.inf else "["
        right = ")" if self.high == math.inf else "]"
        return f"{left}{self.low:g}, {self.high:g}{right}"

    def check(self, name: str, value: FloatLike | Shaped[Array, "..."] | None) -> None:
        """Raises a `ValueError` unless `value` is one finite number in the interval.

        Under `jit` or `vmap` only the shape is checked.
        """
        allowed = f"it must be a finite number in {self}"
        if value is None:
            if not self.optional:
                raise ValueError(f"`{name}=None` is not a number; {allowed}.")
            return
        if np.shape(value) != ():
            raise ValueError(
                f"`{name}` has shape {np.shape(value)}; {allowed}. Make a stack, one "
                "for each of many values, by `equinox.filter_vmap` over the "
                "constructor."
            )
        if isinstance(value, jax.core.Tracer):
            return
        number = float(value)
        above = number > self.low if self.low_open else number >= self.low
        if not (above and number <= self.high and math.isfinite(number)):
            raise ValueError(f"`{name}={number:g}` is out of range; {allowed}.")


def hyperparameter(
    default: float | None = dataclasses.MISSING,  # pyright: ignore[reportArgumentType]
    *,
    low: float | int = -math.inf,
    high: float | int = math.inf,
    low_open: bool = False,
    init_only: bool | str = False,
) -> Any:
    """A field of an `equinox.Module` for a float that enters arithmetic.

    It is stored as a strongly typed scalar array, a leaf. So it can be mapped over with
    `equinox.filter_vmap`, tuned by population based training and changed with
    `equinox.tree_at`, none of which compiles anything anew.

    **Arguments:**

    - `default`: the value when none is given, in the units of the field. `None` makes
        the field optional. Without a default the field is required.
    - `low`, `high`: the interval it must lie in, bounds included. `eqrl.check_fields`
        in the module's `__check_init__` checks it, population based training keeps to
        it, and the help of the command line shows it.
    - `low_open`: whether `low` itself is excluded.
    - `init_only`: whether only `init` reads it, so that a change of it later has no
        effect; or the name of a field of the module that says so. Population based
        training draws such a value, and then leaves it as it is.

    **Returns:**

    A dataclass field, to be assigned as in `name: FloatLike = hyperparameter(0.99)`.
    """
    allowed = Range(low=low, high=high, low_open=low_open, optional=default is None)
    metadata = {_RANGE: allowed, _INIT_ONLY: init_only}
    return _field(default, converter=_strong_scalar, metadata=metadata)


def hyperparameters(
    default: float | None,
    *,
    low: float | int = -math.inf,
    high: float | int = math.inf,
    low_open: bool = False,
) -> Any:
    """As `hyperparameter`, for one float or several, each of which is a leaf.

    **Arguments:**

    - `default`: the value when none is given. `None` makes the field optional.
    - `low`, `high`, `low_open`: the interval that each of them must lie in.

    **Returns:**

    A dataclass field for a number, or for a tuple or vector of numbers.
    """
    allowed = Range(low=low, high=high, low_open=low_open, optional=default is None)
    return _field(default, converter=_strong_scalars, metadata={_RANGE: allowed})


def whole_number(default: int, *, zero_if_absent: bool = False) -> Any:
    """As `hyperparameter`, for an integer that does not decide a shape.

    It is stored as a strongly typed scalar array, a leaf, so that a change of its value
    compiles nothing. Raises a `ValueError` unless it is an integer. With
    `zero_if_absent` it is restored as 0 from a checkpoint that does not hold it,
    because the field did not exist when it was saved.
    """
    metadata = {_ZERO_IF_ABSENT: zero_if_absent}
    return _field(default, converter=strong_integer, metadata=metadata)


def static_integer(
    default: int | None = dataclasses.MISSING,  # pyright: ignore[reportArgumentType]
    *,
    least: int,
) -> Any:
    """A static field for an integer of at least `least`, such as a size.

    A `default` of `None` makes the field optional.
    """
    return _field(
        default, converter=plain_integer, metadata={_LEAST: least}, static=True
    )


def static_choice(
    default: str = dataclasses.MISSING,  # pyright: ignore[reportArgumentType]
    choices: Collection[str] = (),
) -> Any:
    """A static field for a string that must be one of `choices`."""
    return _field(default, metadata={_CHOICES: tuple(choices)}, static=True)


def _field(
    default: object, *, metadata: Mapping[str, object] | None = None, **options: Any
) -> Any:
    if default is not dataclasses.MISSING:
        options["default"] = default
    return eqx.field(metadata=dict(metadata or {}), **options)


def check_fields(module: eqx.Module) -> None:
    """Raises a `ValueError` unless the values of all fields are as declared.

    To be called in `__check_init__`. It reads the ranges of `hyperparameter`; under
    `jit` or `vmap` only shapes are checked.
    """
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        if _RANGE in field.metadata:
            allowed = field.metadata[_RANGE]
            if isinstance(value, tuple):
                # An optional field may be `None` as a whole, but not in part.
                each = dataclasses.replace(allowed, optional=False)
                for index, element in enumerate(value):
                    each.check(f"{field.name}[{index}]", element)
            else:
                allowed.check(field.name, value)
        is_left_out = value is None and field.default is None
        if _LEAST in field.metadata and not is_left_out:
            check_integer(field.name, value, least=field.metadata[_LEAST])
        if _CHOICES in field.metadata:
            check_choice(field.name, value, field.metadata[_CHOICES])


def range_of(module: eqx.Module | type[eqx.Module], name: str) -> Range | None:
    """The range that a field was declared with; `None` if it was declared with none."""
    for field in dataclasses.fields(module):
        if field.name == name:
            return field.metadata.get(_RANGE)
    return None


def init_only_leaves(tree: PyTree) -> PyTree:
    """A tree of the same structure, of whether only `init` reads each leaf."""
    return jax.tree_util.tree_map_with_path(
        lambda path, leaf: _is_init_only(tree, path), tree
    )


def _is_init_only(node: Any, path: Sequence[Any]) -> bool:
    for key in path:
        if isinstance(key, SequenceKey):
            node = node[key.idx]
            continue
        if not isinstance(key, GetAttrKey) or not isinstance(node, eqx.Module):
            return False
        found = {field.name: field for field in dataclasses.fields(node)}
        marked = found[key.name].metadata.get(_INIT_ONLY, False)
        if getattr(node, marked) if isinstance(marked, str) else marked:
            return True
        node = getattr(node, key.name)
    return False


def is_zero_if_absent(tree: PyTree, path: Sequence[Any]) -> bool:
    """Whether a leaf may be absent from a checkpoint; see `whole_number`."""
    node = tree
    for key in path[:-1]:
        if isinstance(key, GetAttrKey):
            node = getattr(node, key.name)
        elif isinstance(key, SequenceKey):
            node = node[key.idx]
        elif isinstance(key, DictKey):
            node = node[key.key]
        else:
            return False
    named = len(path) > 0 and isinstance(path[-1], GetAttrKey)
    if not named or not isinstance(node, eqx.Module):
        return False
    found = {field.name: field for field in dataclasses.fields(node)}
    return found[path[-1].name].metadata.get(_ZERO_IF_ABSENT, False)


def _strong_scalar(value: Any) -> Any:
    # An explicit dtype removes weak typing. A weakly typed leaf would cause a retrace
    # once it is replaced by a strongly typed one, such as a perturbed value.
    if value is None:
        return None
    if isinstance(value, (str, bytes)):
        raise ValueError(f"A hyperparameter must be a number, but {value!r} was given.")
    return jnp.asarray(value, dtype=jnp.result_type(float))


def _strong_scalars(value: Any) -> Any:
    if isinstance(value, (tuple, list)) or getattr(value, "ndim", 0) == 1:
        return tuple(_strong_scalar(element) for element in value)
    return _strong_scalar(value)


def strong_integer(value: Any) -> Any:
    """An integer as a strongly typed scalar array.

    Raises a `ValueError` unless `value` is an integer.
    """
    if not jnp.issubdtype(jnp.result_type(value), jnp.integer):
        raise ValueError(f"A whole number is needed, but {value!r} was given.")
    return jnp.asarray(value, dtype=jnp.result_type(int))


def plain_integer(value: object) -> object:
    """Converts a NumPy integer to Python's; returns anything else as it is."""
    return int(value) if isinstance(value, np.integer) else value


def check_range(
    name: str,
    value: FloatLike | Shaped[Array, "..."] | None,
    *,
    low: float | int = -math.inf,
    high: float | int = math.inf,
    low_open: bool = False,
    optional: bool = False,
) -> None:
    """Raises a `ValueError` unless `value` is one finite number in `[low, high]`.

    For values that are not fields; `check_fields` is for those. Under `jit` or `vmap`
    only the shape is checked. `None` passes if it is `optional`.
    """
    Range(low=low, high=high, low_open=low_open, optional=optional).check(name, value)


def check_integer(name: str, value: Any, *, least: int) -> None:
    """Raises a `ValueError` unless `value` is an integer of at least `least`."""
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or value < least:
        raise ValueError(f"`{name}={value!r}` must be an integer, at least {least}.")


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raises a `ValueError` unless `value` is one of `choices`."""
    if value not in choices:
        names = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"`{name}={value!r}` must be one of {names}.")
