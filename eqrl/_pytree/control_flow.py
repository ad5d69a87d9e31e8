"""JAX's loops and branches over carries with static leaves.

JAX requires arrays, but a network may have its activation among its leaves. Here the
static leaves are kept out of the loop, and must not change in it.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.tree_util as jtu
from jaxtyping import Array, Bool, Int

from .._types.custom_types import PyTree


Carry = TypeVar("Carry")
Result = TypeVar("Result")


def _arrays_of(carry: PyTree, static: PyTree) -> PyTree:
    """The arrays of a carry after an iteration, whose other leaves must be `static`."""
    arrays, after = eqx.partition(carry, eqx.is_array)
    _check_static(static, after)
    return arrays


def _check_static(before: PyTree, after: PyTree) -> None:
    # With arrays among the leaves, the result is an array and may not have a value yet.
    if eqx.tree_equal(before, after) is True:
        return
    old, old_structure = jtu.tree_flatten_with_path(before)
    new, new_structure = jtu.tree_flatten_with_path(after)
    if old_structure != new_structure:
        raise ValueError(
            "The structure of a loop's carry changed from "
            f"{old_structure} to {new_structure}; it must stay the same."
        )
    for (path, old_leaf), (_, new_leaf) in zip(old, new, strict=True):
        if old_leaf != new_leaf:
            raise ValueError(
                f"The leaf `{jtu.keystr(path)}` of a loop's carry is not an array and "
                f"changed from {old_leaf!r} to {new_leaf!r}; only arrays may change."
            )


def filter_fori_loop(
    lower: int | Int[Array, ""],
    upper: int | Int[Array, ""],
    body: Callable[[Int[Array, ""], Carry], Carry],
    init: Carry,
) -> Carry:
    """`jax.lax.fori_loop`; the carry may hold functions and other static leaves."""
    init_arrays, static = eqx.partition(init, eqx.is_array)

    def array_body(index: int | Int[Array, ""], arrays: PyTree) -> PyTree:
        # Under `jax.disable_jit` it is a Python integer.
        if not isinstance(index, jax.Array):
            index = jnp.asarray(index, int)
        return _arrays_of(body(index, eqx.combine(arrays, static)), static)

    arrays = lax.fori_loop(lower, upper, array_body, init_arrays)
    return eqx.combine(arrays, static)


def filter_while_loop(
    condition: Callable[[Carry], Bool[Array, ""]],
    body: Callable[[Carry], Carry],
    init: Carry,
) -> Carry:
    """`jax.lax.while_loop`; the carry may hold functions and other static leaves."""
    init_arrays, static = eqx.partition(init, eqx.is_array)

    arrays = lax.while_loop(
        lambda arrays: condition(eqx.combine(arrays, static)),
        lambda arrays: _arrays_of(body(eqx.combine(arrays, static)), static),
        init_arrays,
    )
    return eqx.combine(arrays, static)


def filter_scan(
    body: Callable[[Carry, Any], tuple[Carry, Result]],
    init: Carry,
    xs: PyTree,
    length: int | None = None,
) -> tuple[Carry, Result]:
    """`jax.lax.scan`; the carry may hold functions and other static leaves."""
    init_arrays, static = eqx.partition(init, eqx.is_array)

    def array_body(arrays: PyTree, x: PyTree) -> tuple[PyTree, PyTree]:
        carry, y = body(eqx.combine(arrays, static), x)
        return _arrays_of(carry, static), y

    arrays, ys = lax.scan(array_body, init_arrays, xs, length)
    return eqx.combine(arrays, static), ys


def filter_cond(
    condition: Bool[Array, ""],
    if_true: Callable[..., Result],
    if_false: Callable[..., Result],
    *operands: PyTree,
) -> Result:
    """`jax.lax.cond`; operands and results may hold functions.

    Leaves that are not arrays must be equal in the results of both branches.
    """
    arrays, static = eqx.partition(operands, eqx.is_array)
    # Filled while JAX traces the branches, which return arrays alone.
    statics: list[PyTree] = []

    def array_branch(branch: Callable[..., Result]) -> Callable[[PyTree], PyTree]:
        def call(arrays: PyTree) -> PyTree:
            result = branch(*eqx.combine(arrays, static))
            result_arrays, result_static = eqx.partition(result, eqx.is_array)
            statics.append(result_static)
            return result_arrays

        return call

    result = lax.cond(condition, array_branch(if_true), array_branch(if_false), arrays)
    _check_static(statics[0], statics[-1])
    return eqx.combine(result, statics[0])
