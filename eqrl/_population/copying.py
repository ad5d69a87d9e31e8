"""Copies members of a population over others, in place."""

import math

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int

from .._training.mesh import from_owner, on_each_device, place_in_share
from .._types.custom_types import PyTree


# Elements that are copied at a time: enough that devices seldom wait for each other,
# and so few that no replay is ever held twice.
_PIECE = 2**16


def copy_members(
    stack: PyTree,
    children: Int[Array, " children"],
    parents: Int[Array, " population"],
    mesh: Mesh | None,
) -> PyTree:
    """Overwrites each of `children`, in order, with its parent.

    It loops over arrays, members and pieces of a member, and copies each piece in
    place, for the sake of memory: a gather of the parents would hold a second copy of
    the whole stack, replays included, and over a mesh the whole population on each
    device. The loop's temporaries are a piece.
    """

    def copy_share(
        share: PyTree,
        shared: tuple[Int[Array, " children"], Int[Array, " population"]],
    ) -> tuple[PyTree, None]:
        copied = jax.tree.map(
            lambda x: _copy(x, *shared, mesh) if eqx.is_array(x) else x, share
        )
        return copied, None

    copied, _ = on_each_device(copy_share, mesh, stack, (children, parents))
    return copied


def _copy(
    array: Array,
    children: Int[Array, " children"],
    parents: Int[Array, " population"],
    mesh: Mesh | None,
) -> Array:
    share = array.shape[0]
    sizes, axis, num_pieces = _pieces(array.shape)

    def copy(index: Int[Array, ""], array: Array) -> Array:
        child = children[index // num_pieces]
        # Both slices clamp the start of a last piece that would reach beyond the end,
        # so it overlaps the one before.
        start: list[int | Array] = [0] * array.ndim
        start[axis] = index % num_pieces * sizes[axis]
        start[0], owned = place_in_share(parents[child], share, mesh)
        piece = from_owner(lax.dynamic_slice(array, start, sizes), owned, mesh)
        start[0], owned = place_in_share(child, share, mesh)
        kept = lax.dynamic_slice(array, start, sizes)
        return lax.dynamic_update_slice(array, jnp.where(owned, piece, kept), start)

    return lax.fori_loop(0, children.shape[0] * num_pieces, copy, array)


def _pieces(shape: tuple[int, ...]) -> tuple[list[int], int, int]:
    """Cuts a member of an array into pieces along its longest axis.

    **Returns:**

    The shape of a piece, the axis, and the number of pieces.
    """
    sizes = [1, *shape[1:]]
    axis = int(np.argmax(sizes))
    if math.prod(sizes) <= _PIECE:
        return sizes, axis, 1
    sizes[axis] = max(1, _PIECE * sizes[axis] // math.prod(sizes))
    return sizes, axis, math.ceil(shape[axis] / sizes[axis])
