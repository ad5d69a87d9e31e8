"""Stacks of members on several devices, along the one axis of a mesh."""

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import equinox as eqx
import jax
import jax.core
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import Array, Bool, Int

from .._pytree.fields import is_key
from .._types.custom_types import PyTree, Tree


_LIMITS = Path("/sys/fs/cgroup")


def use_all_cores() -> None:
    """Makes each CPU core that this process may use a JAX device.

    `train_seeds` and `train_population` then divide their seeds and members among them.
    Otherwise the whole CPU is one device. GPUs are separate devices in any case.

    ```python
    import eqrl

    eqrl.use_all_cores()
    ```

    Call it before anything else uses JAX: creating an agent or a key already makes
    arrays. It overrides the number in `jax_num_cpu_devices` or `XLA_FLAGS`.

    Raises a `RuntimeError` if JAX has started with another number of devices.
    """
    number = count_cores()
    if make_devices(number) or jax.default_backend() != "cpu":
        return
    there = jax.local_device_count("cpu")
    if there != number:
        raise RuntimeError(
            f"JAX has started with {there} devices, but there are {number} cores. Call "
            "`eqrl.use_all_cores()` before JAX does anything else, right after the "
            "imports: making an agent, or a key, makes arrays. A notebook has to "
            "be started again."
        )


def make_devices(number: int) -> bool:
    """Makes JAX divide the processor into devices; `False` if JAX has started."""
    try:
        jax.config.update("jax_num_cpu_devices", number)
    except RuntimeError:
        return False
    return True


def count_cores() -> int:
    """The cores that this process may use, by its affinity and its CPU quota."""
    available = os.cpu_count() or 1
    with contextlib.suppress(AttributeError):  # Some systems lack affinities.
        available = len(os.sched_getaffinity(0))
    # The quota of a container may be less than the cores that it sees. With control
    # groups of version 2, the files of version 1 are ignored.
    version_2 = [_LIMITS / "cpu.max"]
    version_1 = [_LIMITS / "cpu" / f"cpu.cfs_{name}_us" for name in ("quota", "period")]
    for files in (version_2, version_1):
        with contextlib.suppress(OSError, ValueError):
            quota, period = " ".join(file.read_text() for file in files).split()
            if quota != "max" and int(quota) >= 0:
                available = min(available, int(quota) // int(period))
            break
    return max(1, available)


def device_memory() -> int:
    """The bytes of memory of the device on which JAX puts new arrays."""
    statistics = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in statistics:
        return statistics["bytes_limit"]
    memory = 2**33
    with contextlib.suppress(AttributeError, OSError, ValueError):
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # A container may have less; without a limit of its own the file says `max`.
    with contextlib.suppress(OSError, ValueError):
        memory = min(memory, int((_LIMITS / "memory.max").read_text()))
    return memory


Members = Literal["together", "in_turn"]

POPULATION = "population"
"""The name of the axis."""


def choose_members(members: Members | None, mesh: Mesh | None) -> Members:
    """Decides how the members of each device run, by default by the kind of device."""
    if members is None:
        device = jax.devices()[0] if mesh is None else mesh.devices.flat[0]
        return "in_turn" if device.platform == "cpu" else "together"
    return members


def default_mesh(members: Members, size: int) -> Mesh | None:
    """As many CPU devices as can have equal shares of the members; `None` for one.

    Members that run together stay on one device, since their rounding depends on how
    many share it. So do all members if a default device was chosen, or if there are
    several processes.
    """
    is_placed = jax.config.values["jax_default_device"] is not None
    devices = jax.devices()
    is_cpu = devices[0].platform == "cpu"
    if members == "together" or is_placed or jax.process_count() > 1 or not is_cpu:
        return None
    number = most_shares(size, len(devices))
    if number == 1:
        return None
    return Mesh(np.array(devices[:number]), (POPULATION,))


def most_shares(size: int, limit: int) -> int:
    """The largest number, up to a limit, of equal shares of `size` members."""
    return max(number for number in range(1, limit + 1) if size % number == 0)


def map_members(
    function: Callable[..., PyTree], members: Members, *stacked: PyTree
) -> PyTree:
    """Maps over stacks to a stack, the members together or in turn.

    In turn, each result equals that of the member alone, bit for bit. Together,
    rounding differs, even in orthogonal initial weights.
    """
    if members == "together":
        return eqx.filter_vmap(function)(*stacked)
    arrays, static = eqx.partition(stacked, eqx.is_array)
    statics: list[PyTree] = []

    def of_one(arrays: PyTree) -> PyTree:
        result = function(*eqx.combine(arrays, static))
        result_arrays, result_static = eqx.partition(result, eqx.is_array)
        statics.append(result_static)
        return result_arrays

    return eqx.combine(lax.map(of_one, arrays), statics[-1])


def check_mesh(mesh: Mesh | None, size: int, *, name: str = "size") -> None:
    """Checks that the devices can have equal shares of the members.

    `name` is the argument that holds the number of members, for the error.
    """
    if mesh is None:
        return
    if mesh.axis_names != (POPULATION,):
        raise ValueError(
            f"`mesh` has the axes {mesh.axis_names}; it must have one, "
            f"`{POPULATION}`, as in `jax.make_mesh((8,), ('{POPULATION}',))`."
        )
    if size % mesh.size != 0:
        below = size // mesh.size * mesh.size
        nearest = f"the nearest that can are {below} and" if below else "the least is"
        raise ValueError(
            f"`{name}={size}` cannot be divided among {mesh.size} devices; "
            f"{nearest} {below + mesh.size}."
        )


def automatic(mesh: Mesh | None) -> Mesh | None:
    """The same devices, with an axis whose shardings the compiler chooses."""
    return None if mesh is None else Mesh(mesh.devices, mesh.axis_names)


def shard(stack: Tree, mesh: Mesh | None) -> Tree:
    """Shards a stack along its leading axis."""
    return _put(stack, mesh, PartitionSpec(POPULATION))


def replicate(tree: Tree, mesh: Mesh | None) -> Tree:
    """Copies a tree to every device."""
    return _put(tree, mesh, PartitionSpec())


def shardings_over(
    mesh: Mesh | None,
) -> tuple[NamedSharding | None, NamedSharding | None]:
    """Shardings of a stack and of shared arrays; `None` without a mesh."""
    if mesh is None:
        return None, None
    devices = Mesh(mesh.devices, mesh.axis_names)
    return (
        NamedSharding(devices, PartitionSpec(POPULATION)),
        NamedSharding(devices, PartitionSpec()),
    )


def gather(tree: Tree) -> Tree:
    """Puts arrays that are spread over several devices where JAX puts new ones.

    Like new arrays, they are not committed to a device. Besides the tree and the
    result, only one or two arrays are in memory at a time.
    """

    def put(leaf: PyTree) -> PyTree:
        # A traced array is not on a device yet.
        if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
            return leaf
        if len(leaf.sharding.device_set) == 1:
            return leaf
        if is_key(leaf):
            return jr.wrap_key_data(put(jr.key_data(leaf)), impl=jr.key_impl(leaf))
        if leaf.is_fully_replicated:
            whole = np.asarray(leaf.addressable_data(0))
        else:
            assert leaf.is_fully_addressable
            # `np.asarray(leaf)` would stay in memory for as long as `leaf` does.
            whole = np.empty(leaf.shape, leaf.dtype)
            for part in leaf.addressable_shards:
                whole[part.index] = part.data
        # The copy holds its source until it is made.
        return jax.block_until_ready(jnp.array(whole))

    return jax.tree.map(put, tree)


def hand_over(tree: Tree, mesh: Mesh | None) -> Tree:
    """Shards the result of a call over the given mesh, or gathers it without one.

    Without a `mesh` argument, results are returned on the default device.
    """
    return gather(tree) if mesh is None else tree


def _put(tree: Tree, mesh: Mesh | None, spec: PartitionSpec) -> Tree:
    if mesh is None:
        return tree
    arrays, static = eqx.partition(tree, eqx.is_array)
    # Typed keys cannot be put on devices of another process, but their data can.
    data = jax.tree.map(lambda x: jr.key_data(x) if is_key(x) else x, arrays)
    data = jax.device_put(data, NamedSharding(mesh, spec))
    arrays = jax.tree.map(
        lambda x, y: jr.wrap_key_data(y, impl=jr.key_impl(x)) if is_key(x) else y,
        arrays,
        data,
    )
    return eqx.combine(arrays, static)


def on_each_device(
    function: Callable[[PyTree, PyTree], tuple[PyTree, PyTree]],
    mesh: Mesh | None,
    stacked: PyTree,
    shared: PyTree,
) -> tuple[PyTree, PyTree]:
    """Runs a function of a stack on each device's share of it.

    **Arguments:**

    - `function`: from a stack and a shared tree to a stack and a shared tree.
    - `mesh`: the devices; `None` runs it once, on the whole stack.
    - `stacked`: every array has a leading axis `population`.
    - `shared`: the same on every device, as the shared result must be.
    """
    if mesh is None:
        return function(stacked, shared)
    (stacks, commons), static = eqx.partition((stacked, shared), eqx.is_array)
    # The static part of the result is known once `local` has been traced.
    statics: list[PyTree] = []

    def local(stacks: PyTree, commons: PyTree) -> tuple[PyTree, PyTree]:
        result = function(*eqx.combine((stacks, commons), static))
        arrays, result_static = eqx.partition(result, eqx.is_array)
        statics.append(result_static)
        return arrays

    arrays = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(PartitionSpec(POPULATION), PartitionSpec()),
        out_specs=(PartitionSpec(POPULATION), PartitionSpec()),
        # JAX cannot infer that the shared result is the same on every device.
        check_vma=False,
    )(stacks, commons)
    return eqx.combine(arrays, statics[0])


def place_in_share(
    index: Int[Array, ""], share: int, mesh: Mesh | None
) -> tuple[Int[Array, ""], Bool[Array, ""]]:
    """The place of a member in the share of this device, within `on_each_device`.

    **Arguments:**

    - `index`: place of the member in the population.
    - `share`: members on each device.
    - `mesh`: as given to `on_each_device`.

    **Returns:**

    An index less than `share`, and whether the member is on this device.
    """
    if mesh is not None:
        index = index - lax.axis_index(POPULATION) * share
    return jnp.clip(index, 0, share - 1), (index >= 0) & (index < share)


def from_owner(array: Array, owned: Bool[Array, ""], mesh: Mesh | None) -> Array:
    """Sends the array of the one device where `owned` is true to all, bit for bit.

    For use within `on_each_device`. No device holds more than one such array at a time.
    """
    if mesh is None:
        return array
    if is_key(array):
        data = from_owner(jr.key_data(array), owned, mesh)
        return jr.wrap_key_data(data, impl=jr.key_impl(array))
    # A sum of integers: one of floats may lose the sign of a zero, or a denormal.
    bits = array.view(f"uint{8 * array.dtype.itemsize}")
    bits = lax.psum(jnp.where(owned, bits, jnp.zeros_like(bits)), POPULATION)
    return bits.view(array.dtype)


def to_host(tree: PyTree, mesh: Mesh | None) -> PyTree:
    """Copies whole arrays to NumPy on every process."""
    return jax.tree.map(np.array, replicate(tree, mesh))


def on_any_process(flag: bool, mesh: Mesh | None) -> bool:
    """Whether the flag is set on any process of the mesh; all must call it together."""
    return bool(largest_on_any_process(float(flag), mesh))


def largest_on_any_process(number: float, mesh: Mesh | None) -> float:
    """The largest of the numbers of all processes, which must call this together."""
    if mesh is None or not mesh.is_multi_process:
        return number
    numbers = jax.make_array_from_callback(
        (mesh.size,),
        NamedSharding(mesh, PartitionSpec(POPULATION)),
        lambda index: np.array([number], np.float32),
    )
    return float(to_host(numbers, mesh).max())


@contextmanager
def naming_lost_processes(mesh: Mesh | None) -> Iterator[None]:
    """Replaces JAX's error if another process of the mesh no longer responds."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        out_of_memory = "RESOURCE_EXHAUSTED" in str(error)
        if mesh is None or not mesh.is_multi_process or out_of_memory:
            raise
        reason = str(error).partition("\n")[0]
        raise RuntimeError(
            f"Process {jax.process_index()} of {jax.process_count()} cannot continue, "
            f"most likely since another one has ended: {reason} "
            "Start all of them again, with the solution of the last checkpoint as "
            "`initial`."
        ) from error


def mesh_of_processes(stack: PyTree) -> Mesh | None:
    """The mesh of a stack that is sharded over several processes, else `None`."""
    for leaf in jax.tree.leaves(stack):
        if not isinstance(leaf, jax.Array) or isinstance(leaf, Tracer):
            continue
        if not leaf.is_fully_addressable and isinstance(leaf.sharding, NamedSharding):
            mesh = leaf.sharding.mesh
            return mesh if isinstance(mesh, Mesh) else None
    return None
