from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.core
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int, PyTree

from .._pytree.fields import check_integer


Stack = TypeVar("Stack")
_AXIS = "population"


def check_mesh(mesh: Mesh | None, size: int) -> None:
    """Raises a `ValueError` where a population cannot be laid over a mesh."""
    check_integer("size", size, least=1)
    if mesh is None:
        return
    if mesh.axis_names != (_AXIS,):
        raise ValueError(
            f"`mesh` has the axes {mesh.axis_names}; it must have one, `{_AXIS}`, as "
            f"in `jax.make_mesh((8,), ('{_AXIS}',))`."
        )
    if size % mesh.size != 0:
        raise ValueError(
            f"`size={size}` members cannot be divided among the {mesh.size} devices of "
            f"`mesh`; the nearest that can are {size // mesh.size * mesh.size} and "
            f"{(size // mesh.size + 1) * mesh.size}."
        )


def automatic(mesh: Mesh | None) -> Mesh | None:
    """The same devices, with types of axes that leave the layout to the compiler."""
    return None if mesh is None else Mesh(mesh.devices, mesh.axis_names)


def shard(stack: Stack, mesh: Mesh | None) -> Stack:
    """Lays a stack over the devices by its leading axis."""
    return _put(stack, mesh, PartitionSpec(_AXIS))


def replicate(tree: Stack, mesh: Mesh | None) -> Stack:
    """Puts the same on every device."""
    return _put(tree, mesh, PartitionSpec())


def _put(tree: Stack, mesh: Mesh | None, spec: PartitionSpec) -> Stack:
    if mesh is None:
        return tree
    arrays, static = eqx.partition(tree, eqx.is_array)
    # The data of typed keys, for they cannot be put on devices of another process.
    data = jax.tree.map(lambda x: jr.key_data(x) if _is_key(x) else x, arrays)
    data = jax.device_put(data, NamedSharding(mesh, spec))
    arrays = jax.tree.map(
        lambda x, y: jr.wrap_key_data(y, impl=jr.key_impl(x)) if _is_key(x) else y,
        arrays,
        data,
    )
    return eqx.combine(arrays, static)


def _is_key(array: Array | np.ndarray) -> bool:
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def on_each_device(
    function: Callable[[Any, Any], tuple[Any, Any]],
    mesh: Mesh | None,
    stacked: Any,
    shared: Any,
) -> tuple[Any, Any]:
    """Runs a function of a stack on each device's share of it.

    **Arguments:**

    - `function`: from a stack and what all share, to a stack and what all share.
    - `mesh`: the devices; `None` runs it once on the whole.
    - `stacked`: arrays have a leading axis `population`.
    - `shared`: the same on every device.
    """
    if mesh is None:
        return function(stacked, shared)
    (stacks, commons), static = eqx.partition((stacked, shared), eqx.is_array)
    statics: list[Any] = []

    def local(stacks: Any, commons: Any) -> tuple[Any, Any]:
        result = function(*eqx.combine((stacks, commons), static))
        arrays, result_static = eqx.partition(result, eqx.is_array)
        statics.append(result_static)
        return arrays

    arrays = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(PartitionSpec(_AXIS), PartitionSpec()),
        out_specs=(PartitionSpec(_AXIS), PartitionSpec()),
        check_vma=False,
    )(stacks, commons)
    return eqx.combine(arrays, statics[0])


def place_in_share(
    index: Int[Array, ""], share: int, mesh: Mesh | None
) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """Where a member stands on this device, within `on_each_device`.

    **Arguments:**

    - `index`: of the member in the population.
    - `share`: members on each device.
    - `mesh`: as given to `on_each_device`.

    **Returns:**

    An index less than `share`, and whether the member is there at all.
    """
    if mesh is not None:
        index = index - lax.axis_index(_AXIS) * share
    return jnp.clip(index, 0, share - 1), (index >= 0) & (index < share)


def from_owner(array: Array, owned: Bool[Array, ""], mesh: Mesh | None) -> Array:
    """Gives every device the array of the one where `owned`, bit for bit.

    Only within `on_each_device`. No device holds more than this one array.
    """
    if mesh is None:
        return array
    if _is_key(array):
        data = from_owner(jr.key_data(array), owned, mesh)
        return jr.wrap_key_data(data, impl=jr.key_impl(array))
    # Added up as integers: a sum of floats may lose the sign of a zero, or a denormal.
    bits = array.view(f"uint{8 * array.dtype.itemsize}")
    bits = lax.psum(jnp.where(owned, bits, jnp.zeros_like(bits)), _AXIS)
    return bits.view(array.dtype)


def to_host(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """Copies arrays to NumPy ones, whole, on every process."""
    return jax.tree.map(np.array, replicate(tree, mesh))


def on_any_process(flag: bool, mesh: Mesh | None) -> bool:
    """Whether the flag is up on any process of the mesh; each must ask at once."""
    if mesh is None or not mesh.is_multi_process:
        return flag
    flags = jax.make_array_from_callback(
        (mesh.size,),
        NamedSharding(mesh, PartitionSpec(_AXIS)),
        lambda index: np.array([flag]),
    )
    return bool(to_host(flags, mesh).any())


def mesh_of_processes(stack: Any) -> Mesh | None:
    """The mesh a stack is laid over, where that is over several processes."""
    for leaf in jax.tree.leaves(stack):
        if not isinstance(leaf, jax.Array) or isinstance(leaf, jax.core.Tracer):
            continue
        if not leaf.is_fully_addressable and isinstance(leaf.sharding, NamedSharding):
            mesh = leaf.sharding.mesh
            return mesh if isinstance(mesh, Mesh) else None
    return None
