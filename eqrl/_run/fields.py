"""Values that were read from a file, against the types of the fields they are for."""

import typing
from collections.abc import Mapping
from typing import Any, TypeVar


Value = TypeVar("Value")


def make_typed(options: type[Value], values: Mapping[str, Any]) -> Value:
    """An instance of a dataclass, of whose fields all have a value of their type.

    Raises a `TypeError` that names the field otherwise.
    """
    types = typing.get_type_hints(options)
    for name, value in values.items():
        if name not in types:
            raise TypeError(f"`{name}` is no option of this version")
        check_type(f"`{name}`", value, types[name])
    return options(**values)


def check_type(name: str, value: Value, expected: Any) -> Value:
    """The value itself. Raises a `TypeError` unless it is of a type.

    A whole number may stand for a float, but no truth value for a number.
    """
    alternatives = (expected, *typing.get_args(expected))
    if isinstance(value, bool):
        fits = bool in alternatives
    elif isinstance(value, int) and float in alternatives:
        fits = True
    else:
        # Imported here because importing it is slow.
        from beartype.door import is_bearable

        fits = is_bearable(value, expected)
    if not fits:
        shown = getattr(expected, "__name__", str(expected))
        raise TypeError(f"{name} is {value!r} and must be of the type {shown}")
    return value
