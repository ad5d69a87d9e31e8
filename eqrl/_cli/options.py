"""Options of the command line, made from the fields of the library's classes."""

import dataclasses
import re
from collections.abc import Mapping
from types import NoneType
from typing import Annotated, Any, get_args

import equinox as eqx
import tyro

from .._pytree.fields import Range, range_of


def options_of(module: type[eqx.Module], defaults: Mapping[str, Any]) -> type:
    """A dataclass of those fields of a module that the command line can express.

    **Arguments:**

    - `module`: a class with a `**Arguments:**` list, from which the help texts come.
    - `defaults`: by name, defaults that replace those of the module.
    """
    texts = argument_texts(module)
    fields = []
    for field in dataclasses.fields(module):
        option_type = _option_type(field.type)
        if option_type is None:
            continue
        text = _with_range(texts.get(field.name, ""), range_of(module, field.name))
        annotation = Annotated[option_type, tyro.conf.arg(help=text)]
        default = defaults.get(field.name, field.default)
        fields.append((field.name, annotation, dataclasses.field(default=default)))
    return dataclasses.make_dataclass(f"{module.__name__}Options", fields, frozen=True)


def _option_type(annotation: Any) -> Any:
    """The type of an option for a field; `None` if there can be no option."""
    if annotation in (bool, int, float, str, int | None):
        return annotation
    alternatives = get_args(annotation)
    # Of `FloatLike`, only the float can be written on the command line.
    if float in alternatives:
        return float | None if NoneType in alternatives else float
    return None


def _with_range(text: str, allowed: Range | None) -> str:
    if allowed is None or allowed == Range(optional=allowed.optional):
        return text
    # Some texts say it themselves.
    return text if str(allowed) in text else f"{text} In {allowed}."


def argument_texts(module: type) -> dict[str, str]:
    """The text of each argument in the `**Arguments:**` list of a class."""
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
