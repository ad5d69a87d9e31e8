import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PyTree

from .._pytree.stack import stack_size, take_element
from .._types.custom_types import Tree
from .._types.stacked import Stacked
from .mesh import (
    from_owner,
    mesh_of_processes,
    on_each_device,
    place_in_share,
    replicate,
)


def member(stack: Stacked[Tree, "population"], index: int | Int[Array, ""]) -> Tree:
    """Takes one member out of a stack.

    **Arguments:**

    - `stack`: every array of it has a leading axis `population`.
    - `index`: the member, from 0.

    **Returns:**

    That member, without the axis. If the stack is sharded over several processes, all
    of them must take the same member, and each gets a copy of its own.
    """
    mesh = mesh_of_processes(stack)
    if mesh is not None:
        return _local_member(stack, index, mesh)
    return take_element(stack, index)


def best(
    stack: Stacked[Tree, "population"],
    returns: Float[Array | np.ndarray, "population ..."],
) -> Tree:
    """Takes the member with the highest mean return out of a stack.

    **Arguments:**

    - `stack`: every array of it has a leading axis `population`.
    - `returns`: one or several returns of each member, averaged for each. A member with
        a return that is not finite is chosen only if all members have one.

    **Returns:**

    That member, without the axis.
    """
    means = jnp.mean(jnp.asarray(returns).reshape(returns.shape[0], -1), axis=1)
    return member(stack, jnp.argmax(jnp.where(jnp.isfinite(means), means, -jnp.inf)))


def _local_member(
    stack: Stacked[Tree, "population"], index: int | Int[Array, ""], mesh: Mesh
) -> Tree:
    size = stack_size(stack)
    number = int(index)
    if not -size <= number < size:
        raise ValueError(f"`index={number}` must be less than the {size} members.")
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
