from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from .._ranges import check_integer


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
    return eqx.combine(jax.device_put(arrays, NamedSharding(mesh, spec)), static)


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
