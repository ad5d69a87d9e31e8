"""Options of the command line, made from the arguments of the library's classes."""

import dataclasses
import functools
import inspect
import operator
import re
from collections.abc import Collection, Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import equinox as eqx
import tyro

from .._pytree.fields import Range, range_of


def options_of(
    module: type[eqx.Module],
    defaults: Mapping[str, Any],
    *,
    without: Collection[str] = (),
) -> type:
    """A dataclass of those arguments of a module that the command line can express.

    **Arguments:**

    - `module`: a class with an `**Arguments:**` list, from which the help texts come.
    - `defaults`: by name, defaults that replace those of the module.
    - `without`: names of arguments that are no options.

    Raises a `ValueError` if an annotation names what is not there.
    """
    return _options_of(module, tuple(defaults.items()), tuple(without))


@functools.cache
def _options_of(
    module: type[eqx.Module],
    defaults: tuple[tuple[str, Any], ...],
    without: tuple[str, ...],
) -> type:
    texts = argument_texts(module)
    annotations = _annotations(module)
    replaced = dict(defaults)
    fields = []
    for name, parameter in inspect.signature(module).parameters.items():
        # A converter hides the type of a field from the signature.
        option_type = _option_type(
            annotations.get(name, parameter.annotation),
            optional=parameter.default is None,
        )
        if option_type is None or name in without:
            continue
        text = _with_range(texts.get(name, ""), range_of(module, name))
        annotation = Annotated[option_type, tyro.conf.arg(help=text)]
        default = replaced.get(name, parameter.default)
        if default is inspect.Parameter.empty:
            default = dataclasses.MISSING
        fields.append((name, annotation, dataclasses.field(default=default)))
    return dataclasses.make_dataclass(
        f"{module.__name__}Options", fields, frozen=True, kw_only=True
    )


def _annotations(module: type[eqx.Module]) -> Mapping[str, object]:
    try:
        return get_type_hints(module)
    except NameError as error:
        raise ValueError(
            f"The annotations of `{module.__name__}` make no options: {error}. Import "
            "what they name where the module can see it when it runs."
        ) from error


def _option_type(annotation: object, *, optional: bool) -> Any:
    """The type of an option for an argument; `None` if there can be no option."""
    is_union = get_origin(annotation) in (Union, UnionType)
    alternatives = get_args(annotation) if is_union else (annotation,)
    known: list[Any] = [
        each
        for each in alternatives
        if each in (bool, int, float, str) or get_origin(each) is Literal
    ]
    if not known:
        return None
    if float in known:
        # Of `FloatLike`, only the float is written on the command line.
        known = [float]
    if optional or NoneType in alternatives:
        known.append(NoneType)
    return functools.reduce(operator.or_, known)


def _with_range(text: str, allowed: Range | None) -> str:
    if allowed is None or allowed == Range(optional=allowed.optional):
        return text
    # Some texts say it themselves.
    return text if str(allowed) in text else f"{text} In {allowed}."


def argument_texts(module: type) -> dict[str, str]:
    """The text of each argument in the `**Arguments:**` list of a class."""
    document = inspect.cleandoc(module.__init__.__doc__ or "")
    lines = document.partition("**Arguments:**")[2]
    items = re.findall(r"^ *- (`\w+`(?:, `\w+`)*): (.*(?:\n +\S.*)*)", lines, re.M)
    return {
        name: _plain(text)
        for names, text in items
        for name in re.findall(r"\w+", names)
    }


def _plain(text: str) -> str:
    text = " ".join(text.split()).replace("`", "")
    return text[:1].upper() + text[1:]
