"""Checks of what losses are given, while they are traced."""

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array

from .._pytree.tree import described


def check_same_shape(**arrays: ArrayLike) -> None:
    """Raises a `ValueError` unless all have the shape of the first.

    Otherwise they would broadcast: `(batch, 1)` minus `(batch,)` is `(batch, batch)`.
    """
    (first, reference), *others = arrays.items()
    for name, array in others:
        if jnp.shape(array) != jnp.shape(reference):
            raise ValueError(
                f"`{name}` has the shape {jnp.shape(array)}, but `{first}` has "
                f"{jnp.shape(reference)}; they must be the same."
            )


def check_same_rows(**arrays: ArrayLike) -> None:
    """Raises a `ValueError` unless the first axes of all are as long."""
    (first, reference), *others = arrays.items()
    for name, array in others:
        if jnp.shape(array)[:1] != jnp.shape(reference)[:1]:
            raise ValueError(
                f"`{name}` has the shape {jnp.shape(array)}, but `{first}` has "
                f"{jnp.shape(reference)}; the first axis of both is the batch."
            )


def check_flags(**flags: ArrayLike) -> None:
    """Raises a `ValueError` unless all are booleans."""
    for name, flag in flags.items():
        if jnp.result_type(flag) != jnp.bool_:
            raise ValueError(
                f"`{name}` is of {described(flag)}; it must be of type bool: whether, "
                "not how much."
            )


def in_one_type(*values: ArrayLike) -> tuple[Array, ...]:
    """The values in the type that arithmetic with all of them has.

    A scan's carry keeps its type, while rewards, discounts and values may be of others.
    """
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*values)
    return tuple(jnp.asarray(x, dtype) for x in values)
