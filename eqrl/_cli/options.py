"""Options of the command line, from the fields of the library's own classes."""

import dataclasses
import re
from collections.abc import Mapping
from types import NoneType
from typing import Annotated, Any, get_args

import equinox as eqx
import tyro


def options_of(module: type[eqx.Module], defaults: Mapping[str, Any]) -> type:
    """A dataclass of the numbers, words and switches among a module's fields.

    **Arguments:**

    - `module`: a class with a `**Arguments:**` list, from which the help texts come.
    - `defaults`: of fields whose default is to differ from the module's.
    """
    texts = argument_texts(module)
    fields = []
    for field in dataclasses.fields(module):
        option_type = _option_type(field.type)
        if option_type is None:
            continue
        annotation = Annotated[
            option_type, tyro.conf.arg(help=texts.get(field.name, ""))
        ]
        default = defaults.get(field.name, field.default)
        fields.append((field.name, annotation, dataclasses.field(default=default)))
    return dataclasses.make_dataclass(f"{module.__name__}Options", fields, frozen=True)


def _option_type(annotation: Any) -> Any:
    """What is given for a field on the command line; `None` where nothing can be."""
    if annotation in (bool, int, float, str, int | None):
        return annotation
    alternatives = get_args(annotation)
    # `FloatLike`, of which the array is for those who write Python.
    if float in alternatives:
        return float | None if NoneType in alternatives else float
    return None


def argument_texts(module: type) -> dict[str, str]:
    """What the `**Arguments:**` list of a class says of each argument."""
    lines = (module.__init__.__doc__ or "").partition("**Arguments:**")[2]
    items = re.findall(r"^ *- (`\w+`(?:, `\w+`)*): (.*(?:\n +\S.*)*)", lines, re.M)
    return {
        name: _plain(text)
        for names, text in items
        for name in re.findall(r"\w+", names)
    }


def _plain(text: str) -> str:
    text = " ".join(text.split()).replace("`", "")
    return text[:1].upper() + text[1:]
