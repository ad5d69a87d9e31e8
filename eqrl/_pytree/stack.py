"""Stacks: pytrees whose arrays all have a leading axis for the elements.

Leaves that are not arrays are shared by all elements.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from .._types.custom_types import PyTree, Tree


def take_element(stack: Tree, index: int | Int[Array, ""]) -> Tree:
    """One element of a stack, without the axis."""
    return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, stack)


def put_element(stack: Tree, element: Tree, index: int | Int[Array, ""]) -> Tree:
    """A stack with one element replaced."""
    return jax.tree.map(
        lambda x, y: x.at[index].set(y) if eqx.is_array(x) else x, stack, element
    )


def stack_size(stack: PyTree) -> int:
    """The number of elements of a stack."""
    return jax.tree.leaves(eqx.filter(stack, eqx.is_array))[0].shape[0]


def check_stack(name: str, stack: PyTree, *, size: int | None = None) -> None:
    """Raises a `ValueError` unless all arrays have one leading axis in common.

    With a `size`, that is how long it must be.
    """
    paths = jax.tree_util.tree_flatten_with_path(eqx.filter(stack, eqx.is_array))[0]
    sizes = {x.shape[0] for _, x in paths if x.ndim > 0}
    scalars = [(path, x) for path, x in paths if x.ndim == 0]
    if scalars or len(sizes) > 1:
        path, array = (scalars or paths)[0]
        raise ValueError(
            f"`{name}` is a single {type(stack).__name__}, no stack: its leaf "
            f"`{jax.tree_util.keystr(path)}` has the shape {array.shape}, but all "
            "arrays of a stack have the same leading axis. `PBT.init`, "
            "`train_population` and `equinox.filter_vmap` make stacks."
        )
    if size is not None and sizes != {size} and len(sizes) > 0:
        raise ValueError(
            f"`{name}` is a stack of {sizes.pop()}, but {size} are needed: one for "
            "each."
        )


def empty_stack(element: Tree, capacity: int) -> Tree:
    """A zero-filled stack of `capacity` elements of the shapes of `element`."""
    return jax.tree.map(
        lambda x: (
            jnp.zeros((capacity, *x.shape), x.dtype)
            if isinstance(x, (jax.Array, jax.ShapeDtypeStruct))
            else x
        ),
        element,
    )


def enlarge_stack(stack: Tree, capacity: int) -> Tree:
    """A stack of `capacity` elements: those of `stack`, followed by zeros."""

    def enlarged(x: Any) -> Any:
        if not eqx.is_array(x) or x.shape[0] == capacity:
            return x
        missing = jnp.zeros((capacity - x.shape[0], *x.shape[1:]), x.dtype)
        return jnp.concatenate([x, missing])

    return jax.tree.map(enlarged, stack)
