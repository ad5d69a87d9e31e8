import math

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int, PyTree

from .mesh import from_owner, on_each_device, place_in_share


# Elements that travel at a time: so many that devices seldom wait for each other, so
# few that a replay does not fit in.
_PIECE = 2**16


def copy_members(
    stack: PyTree,
    children: Int[Array, " children"],
    parents: Int[Array, " population"],
    mesh: Mesh | None,
) -> PyTree:
    """Writes over each of `children`, in order, its parent.

    One piece of one member of one array at a time, in place: a gather would hold a
    second copy of everything, over a mesh one of the whole population on each device.
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
        # The last piece begins earlier where it would reach beyond the end, both when
        # it is read and when it is written.
        start: list[int | Array] = [0] * array.ndim
        start[axis] = index % num_pieces * sizes[axis]
        start[0], owned = place_in_share(parents[child], share, mesh)
        piece = from_owner(lax.dynamic_slice(array, start, sizes), owned, mesh)
        start[0], owned = place_in_share(child, share, mesh)
        kept = lax.dynamic_slice(array, start, sizes)
        return lax.dynamic_update_slice(array, jnp.where(owned, piece, kept), start)

    return lax.fori_loop(0, children.shape[0] * num_pieces, copy, array)


def _pieces(shape: tuple[int, ...]) -> tuple[list[int], int, int]:
    """Cuts a member of an array along its longest axis.

    **Returns:**

    The shape of a piece, the axis, and the number of pieces.
    """
    sizes = [1, *shape[1:]]
    axis = int(np.argmax(sizes))
    if math.prod(sizes) <= _PIECE:
        return sizes, axis, 1
    sizes[axis] = max(1, _PIECE * sizes[axis] // math.prod(sizes))
    return sizes, axis, math.ceil(shape[axis] / sizes[axis])
