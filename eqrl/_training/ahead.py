"""Compiles programs before their arguments exist."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, cast

import jax

from .._pytree.tree import placeholders
from .._types.custom_types import PyTree


class Lowered(NamedTuple):
    """A program that can be compiled, and the shapes of its result.

    JAX caches it and its executable for later calls with arrays of these shapes.
    """

    compile: Callable[[], object]
    result: PyTree


def are_unbound(tree: PyTree) -> bool:
    """Whether no array in a tree is bound to a device; placeholders are not."""
    arrays = (x for x in jax.tree.leaves(tree) if isinstance(x, jax.Array))
    return not any(x.committed for x in arrays)


def lower(program: Callable[..., object], *args: object, **kwargs: object) -> Lowered:
    """Lowers a function wrapped by `equinox.filter_jit` for the given arguments."""
    lowered = cast(PyTree, program).lower(*args, **kwargs)
    return Lowered(lowered.compile, lowered.postprocess(lowered.lowered.out_info))


def compile_side_by_side(
    init: Lowered, lower_next: Callable[[PyTree], Lowered]
) -> None:
    """Compiles a program while the next one is lowered and compiled.

    `lower_next` gets placeholders for the result of the first one. They have no weak
    types, so if the state of an environment has one, as in `jnp.array(0.0)`, the next
    program is compiled again when it is called.
    """
    with ThreadPoolExecutor(1) as pool:
        # An error is raised again when the program is called.
        pool.submit(init.compile)
        lower_next(placeholders(init.result)).compile()
