import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, PyTree

from .._types.custom_types import Tree


Directory = str | os.PathLike[str]
_Array = Array | np.ndarray
_Path = tuple[str, ...]

# An error message lists at most this many problems.
_MAX_LISTED = 8


@dataclasses.dataclass(frozen=True)
class _Kind:
    """Shape and type of an array."""

    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclasses.dataclass(frozen=True)
class _Saved:
    """The record of a saved array: everything but its values."""

    path: _Path
    kind: _Kind
    key_impl: str | None

    @property
    def is_stored(self) -> bool:
        # Orbax cannot save arrays without elements; the record describes them fully.
        return 0 not in self.kind.shape


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """Placeholder for a leaf of `like`, to find the leaves that `where` selects."""

    path: tuple[Any, ...]


def save(directory: Directory, step: int, tree: PyTree) -> None:
    """Saves the arrays of a tree, bit for bit.

    The tree may contain anything: modules, optimizer states, typed keys. Arrays are
    stored by their path in the tree; other leaves, such as functions, are not stored.
    Earlier steps stay intact if the process is killed while saving.

    **Arguments:**

    - `directory`: created if it does not exist. Each step has a folder in it.
    - `step`: at least 0 and not yet in the directory; `restore` finds the tree by it.
    - `tree`: the tree to save, with at least one array. If its arrays are spread over
        several processes, each of these must make this call, with a directory that all
        of them can access; any other tree is saved by process 0 alone.
    """
    import orbax.checkpoint as ocp

    if step < 0:
        raise ValueError(f"`step={step}` must be at least 0.")
    if step in _steps(directory):
        raise ValueError(
            f"`step={step}` is in `{directory}` already. Save another step, or delete "
            "it first."
        )
    saved = {}
    arrays = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if isinstance(leaf, _Array):
            name = jax.tree_util.keystr(path)
            saved[name] = _describe(path, leaf)
            if saved[name].is_stored:
                arrays[name] = jr.key_data(leaf) if _is_key(leaf) else leaf
    if not arrays:
        raise ValueError("`tree` holds no array with elements: nothing can be saved.")
    record = {name: dataclasses.asdict(entry) for name, entry in saved.items()}
    if jax.process_count() > 1:
        if jax.process_index() != 0 and not any(map(_is_spread, arrays.values())):
            raise ValueError(
                f"Process {jax.process_index()} cannot save a tree that is its own; "
                "only process 0 can. Write `if jax.process_index() == 0:` before it."
            )
        # Orbax takes an array of one process alone only as a NumPy array.
        arrays = {
            name: array if _is_spread(array) else np.asarray(array)
            for name, array in arrays.items()
        }
    with _checkpointer(tree) as checkpointer:
        checkpointer.save(
            Path(directory).absolute() / str(step),
            args=ocp.args.Composite(
                arrays=ocp.args.PyTreeSave(arrays), record=ocp.args.JsonSave(record)
            ),
        )


def restore(
    directory: Directory,
    like: Tree,
    step: int | None = None,
    where: Callable[[Tree], PyTree] | None = None,
) -> Tree:
    """Loads what `save` saved into a tree of the same structure.

    ```python
    eqrl.save("checkpoints", 1000, solution.state)
    like = eqx.filter_eval_shape(agent.init, env.spec, key=jr.key(0))
    state = eqrl.restore("checkpoints", like)
    state = eqrl.restore("checkpoints", other_state, where=lambda state: state.actor)
    ```

    **Arguments:**

    - `directory`: as given to `save`.
    - `like`: a tree with the saved shapes and types, as arrays or as
        `jax.ShapeDtypeStruct`s. Other leaves are taken from it, and so is the sharding
        of arrays that were put on devices.
    - `step`: the step to load; `None` is the latest.
    - `where`: a function from `like` to the part of it to load, from the same place in
        the saved tree. The rest of `like` is unchanged, whatever was saved there.

    **Returns:**

    `like` with its arrays, or those of the part, replaced by the saved ones.

    Raises a `ValueError` if there is no such step, and if paths, shapes or types
    differ, naming each.
    """
    folder = Path(directory).absolute() / str(_find_step(directory, step))
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    markers = jax.tree.unflatten(structure, [_Leaf(path) for path, _ in leaves])
    part = _select(markers, where)
    selected = {marker.path for marker in jax.tree.leaves(part)}
    wanted = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in leaves
        if path in selected and isinstance(leaf, (_Array, jax.ShapeDtypeStruct))
    }
    kept = {_strings(path) for path, _ in leaves if path not in selected}
    saved = _read_record(folder, like)
    _check(saved, wanted, kept, _roots(part))
    loaded = _read_arrays(folder, saved, wanted)
    return jax.tree.unflatten(
        structure,
        [loaded.get(jax.tree_util.keystr(path), leaf) for path, leaf in leaves],
    )


def _is_key(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _is_spread(leaf: object) -> bool:
    sharding = getattr(leaf, "sharding", None)
    return sharding is not None and not sharding.is_fully_addressable


def _checkpointer(tree: PyTree) -> Any:
    """A checkpointer that waits for other processes only if the tree spans several."""
    import orbax.checkpoint as ocp

    options = ocp.options.MultiprocessingOptions()
    if jax.process_count() > 1 and not any(map(_is_spread, jax.tree.leaves(tree))):
        index = jax.process_index()
        options = ocp.options.MultiprocessingOptions(
            primary_host=index,
            active_processes={index},
            barrier_sync_key_prefix=f"process_{index}",
        )
    handler = ocp.CompositeCheckpointHandler(
        composite_options=ocp.CompositeOptions(multiprocessing_options=options),
        arrays=ocp.PyTreeCheckpointHandler(multiprocessing_options=options),
        record=ocp.JsonCheckpointHandler(multiprocessing_options=options),
    )
    return ocp.Checkpointer(handler, multiprocessing_options=options)


def _strings(path: tuple[Any, ...]) -> _Path:
    return tuple(str(entry) for entry in path)


def _describe(path: tuple[Any, ...], leaf: _Array) -> _Saved:
    return _Saved(
        path=_strings(path),
        kind=_Kind(shape=tuple(leaf.shape), dtype=str(leaf.dtype)),
        key_impl=str(jr.key_impl(leaf)) if _is_key(leaf) else None,
    )


def _steps(directory: Directory) -> list[int]:
    """The steps that were saved completely, in order."""
    import orbax.checkpoint as ocp

    path = Path(directory).absolute()
    return sorted(ocp.utils.checkpoint_steps(path)) if path.is_dir() else []


def _find_step(directory: Directory, step: int | None) -> int:
    steps = _steps(directory)
    if not steps:
        raise ValueError(f"There are no saved steps in `{directory}`.")
    if step is None:
        return steps[-1]
    if step not in steps:
        listed = ", ".join(str(step) for step in steps)
        raise ValueError(f"`step={step}` is not in `{directory}`; there are {listed}.")
    return step


def _select(markers: PyTree, where: Callable[[Any], PyTree] | None) -> PyTree:
    """The part of `like` to load, with a marker for each leaf."""
    if where is None:
        return markers
    part = where(markers)
    found = jax.tree.leaves(part)
    if not found or not all(isinstance(leaf, _Leaf) for leaf in found):
        raise ValueError(
            "`where` must give a part of `like` which has leaves, such as "
            f"`lambda state: state.actor`; it gave {part!r}."
        )
    return part


def _roots(part: PyTree) -> set[_Path]:
    """Paths in `like` of the subtrees that make up `part`."""
    roots = set()
    for path, leaf in jax.tree_util.tree_flatten_with_path(part)[0]:
        above = _strings(leaf.path)
        for mine, theirs in zip(
            reversed(_strings(path)), reversed(above), strict=False
        ):
            if mine != theirs:
                break
            above = above[:-1]
        roots.add(above)
    return roots


def _read_record(folder: Path, like: PyTree) -> dict[str, _Saved]:
    import orbax.checkpoint as ocp

    with _checkpointer(like) as checkpointer:
        restored = checkpointer.restore(
            folder, args=ocp.args.Composite(record=ocp.args.JsonRestore())
        )
    return {
        name: _Saved(
            path=tuple(entry["path"]),
            kind=_Kind(tuple(entry["kind"]["shape"]), entry["kind"]["dtype"]),
            key_impl=entry["key_impl"],
        )
        for name, entry in restored["record"].items()
    }


def _check(
    saved: dict[str, _Saved],
    wanted: dict[str, Any],
    kept: set[_Path],
    roots: set[_Path],
) -> None:
    problems = []
    for name, leaf in wanted.items():
        kind = _Kind(shape=tuple(leaf.shape), dtype=str(leaf.dtype))
        if name not in saved:
            problems.append(f"`{name}` is wanted as {kind} and was not saved")
        elif saved[name].kind != kind:
            problems.append(
                f"`{name}` was saved as {saved[name].kind} and is wanted as {kind}"
            )
    for name, entry in saved.items():
        in_part = any(entry.path[: len(root)] == root for root in roots)
        if name not in wanted and in_part and entry.path not in kept:
            problems.append(
                f"`{name}` was saved as {entry.kind} and has no place there"
            )
    if problems:
        listed = "; ".join(problems[:_MAX_LISTED])
        more = len(problems) - _MAX_LISTED
        raise ValueError(
            f"What was saved does not fit `like`: {listed}"
            + (f"; and {more} more." if more > 0 else ".")
        )


def _read_arrays(
    folder: Path, saved: dict[str, _Saved], wanted: dict[str, Any]
) -> dict[str, _Array]:
    import orbax.checkpoint as ocp

    stored = {name: leaf for name, leaf in wanted.items() if saved[name].is_stored}
    values: dict[str, Any] = {}
    if stored:
        arrays = ocp.args.PyTreeRestore(
            dict.fromkeys(stored, 0),
            restore_args={name: _restore_args(leaf) for name, leaf in stored.items()},
            partial_restore=True,
        )
        with _checkpointer(stored) as checkpointer:
            restored = checkpointer.restore(
                folder, args=ocp.args.Composite(arrays=arrays)
            )
        values = restored["arrays"]
    return {
        name: _like(leaf, values.get(name), saved[name].key_impl)
        for name, leaf in wanted.items()
    }


def _sharding(leaf: object) -> jax.sharding.Sharding | None:
    """Where an array must be put; `None` if JAX may decide."""
    if isinstance(leaf, jax.Array):
        return leaf.sharding if leaf.committed else None
    return getattr(leaf, "sharding", None)


def _restore_args(leaf: Any) -> Any:
    import orbax.checkpoint as ocp

    sharding = _sharding(leaf)
    if sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    return ocp.ArrayRestoreArgs(sharding=sharding)


def _like(leaf: Any, value: Any, key_impl: str | None) -> _Array:
    """`value` as the same kind of array as `leaf`; `None` stands for no elements."""
    if value is None:
        data = jax.eval_shape(jr.key_data, leaf) if _is_key(leaf) else leaf
        value = np.zeros(data.shape, data.dtype)
    if isinstance(leaf, np.ndarray):
        return np.asarray(value)
    if not isinstance(value, jax.Array):
        # A copy: on a CPU JAX would share the memory of the NumPy array, which must not
        # be donated.
        value = jnp.array(value)
    return value if key_impl is None else jr.wrap_key_data(value, impl=key_impl)
