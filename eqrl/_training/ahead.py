"""Programs that are compiled before there is what they are called with."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

from .._pytree.tree import placeholders
from .._types.custom_types import PyTree


def lower(program: Callable[..., object], *args: object, **kwargs: object) -> Any:
    """The program lowered for such arguments.

    JAX keeps it, and what it is compiled to, for calls with arrays of these shapes.
    """
    return cast(Any, program).lower(*args, **kwargs)


def compile_side_by_side(init: Any, lower_next: Callable[[PyTree], Any]) -> None:
    """Compiles a lowered program while the next one is lowered and compiled.

    `lower_next` gets placeholders for the result of the first one.
    """
    with ThreadPoolExecutor(1) as pool:
        # The call of the program raises its error again.
        pool.submit(init.compile)
        shapes = init.postprocess(init.lowered.out_info)
        lower_next(placeholders(shapes)).compile()
