import math
from typing import Any, overload

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int

from .._pytree.tree import check_stack, stack_size, take_element
from .._training.mesh import (
    from_owner,
    gather,
    mesh_of_processes,
    on_each_device,
    place_in_share,
    replicate,
)
from .._types.custom_types import PyTree, State, Tree
from .._types.stacked import Stacked
from .history import Agents, PopulationSolution


def member(stack: Stacked[Tree, "population"], index: int | Int[Array, ""]) -> Tree:
    """Takes one member out of a stack.

    **Arguments:**

    - `stack`: every array of it has a leading axis `population`.
    - `index`: the member, from 0.

    **Returns:**

    That member, without the axis, on one device. If the stack is sharded over several
    processes, all of them must take the same member, and each gets a copy of its own.

    Raises a `ValueError` if `stack` is not a stack, or has no such member.
    """
    check_stack("stack", stack)
    if isinstance(index, (int, np.integer)):
        _check_index(int(index), stack_size(stack))
    mesh = mesh_of_processes(stack)
    if mesh is not None:
        return _local_member(stack, index, mesh)
    return gather(take_element(stack, index))


@overload
def best(
    stack: Stacked[Tree, "population"],
    returns: Float[Array | np.ndarray, "population ..."],
) -> Tree: ...


@overload
def best(
    stack: PopulationSolution[State, Agents], returns: None = None
) -> tuple[Agents, State]: ...


def best(
    stack: Any, returns: Float[Array | np.ndarray, "population ..."] | None = None
) -> Any:
    """Takes the member with the highest score, or the highest mean return.

    **Arguments:**

    - `stack`: a `PopulationSolution`; or a stack, every array of which has a leading
        axis `population`.
    - `returns`: with a stack, one or several scores or returns of each member, averaged
        for each. A member with one that is not finite is chosen only if all members
        have one.

    **Returns:**

    Of a `PopulationSolution`, the agent and the agent's state that were ranked best in
    the last generation; of a stack, that member, without the axis.

    Raises a `ValueError` unless `returns` has one row for each member.
    """
    if isinstance(stack, PopulationSolution) and returns is None:
        return best((stack.agents, stack.states), stack.scores[-1])
    if returns is None:
        raise ValueError(
            "`returns` is needed to choose from a stack; only a `PopulationSolution` "
            "holds its scores."
        )
    check_stack("stack", stack)
    size = stack_size(stack)
    if jnp.shape(returns)[:1] != (size,):
        raise ValueError(
            f"`returns` has the shape {jnp.shape(returns)}, but `stack` has {size} "
            "members: the first axis must be theirs. Of the history of a "
            "`PopulationSolution`, take one generation, as `solution.returns[-1]`."
        )
    means = jnp.mean(jnp.asarray(returns).reshape(returns.shape[0], -1), axis=1)
    return member(stack, jnp.argmax(jnp.where(jnp.isfinite(means), means, -jnp.inf)))


def _check_index(index: int, size: int) -> None:
    if not -size <= index < size:
        raise ValueError(
            f"`index={index}` must be from -{size} to {size - 1}: there are {size} "
            "members."
        )


def _local_member(
    stack: Stacked[Tree, "population"], index: int | Int[Array, ""], mesh: Mesh
) -> Tree:
    size = stack_size(stack)
    number = int(index)
    _check_index(number, size)
    replicated = _replicated_member(
        stack, replicate(jnp.asarray(number % size, int), mesh), mesh
    )
    return jax.tree.map(
        lambda x: x.addressable_data(0) if eqx.is_array(x) else x, replicated
    )


@eqx.filter_jit
def _replicated_member(
    stack: Stacked[Tree, "population"], index: Int[Array, ""], mesh: Mesh
) -> Tree:
    def take_share(share: PyTree, index: Int[Array, ""]) -> tuple[None, PyTree]:
        place, owned = place_in_share(index, stack_size(share), mesh)
        return None, jax.tree.map(
            lambda x: from_owner(x[place], owned, mesh) if eqx.is_array(x) else x, share
        )

    _, taken = on_each_device(take_share, mesh, stack, index)
    return taken


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
