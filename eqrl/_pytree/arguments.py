"""Checks of the arguments of public functions, by their annotations."""

import functools
import inspect
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from .fields import check_declared, is_module, stack_of


Function = TypeVar("Function", bound=Callable[..., Any])


def checked(function: Function) -> Function:
    """Checks the arguments of each call by their annotations, with `check_declared`.

    So `num_episodes: PositiveInt` is an integer of at least 1, `mode: Mode` one of the
    strings of a `Literal`, `key: PRNGKeyArray` one key, and `env: AbstractEnv` a single
    environment: an argument of an abstract class must not be a stack, unless it is
    `Annotated`. The first that does not fit raises a `ValueError` that names it.
    """
    # Inspecting takes longer than all checks of a call, so it is done once.
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError:
            # Python's own error names the function.
            return function(*args, **kwargs)
        for name, value in given.items():
            declared = signature.parameters[name].annotation
            check_declared(name, value, declared)
            # A stack has the class of its elements; only its hyperparameters tell.
            kind = typing.get_origin(declared) or declared
            if is_module(kind) and inspect.isabstract(kind):
                check_single(name, value)
        return function(*args, **kwargs)

    return typing.cast(Function, call)


def check_single(name: str, module: object) -> None:
    """Checks that a module, such as an agent, is not a stack of several."""
    if (stack := stack_of(module)) is not None:
        field, size = stack
        raise ValueError(
            f"`{name}` is a stack of {size}: its `{field}` has an axis of that length. "
            f"Take one by `eqrl.member({name}, index)`, and its state likewise; or "
            "train them all by `eqrl.train_population`."
        )
