import contextlib
import dataclasses
import operator
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .._pytree.fields import converted, is_key
from .._types.custom_types import PyTree, Tree
from .files import Content, __version__, read_json, reason_of, sealed
from .orbax import AnyArray, Piece, is_intact, is_spread, pieces_of, quiet_event_loops


Directory = str | os.PathLike[str]
_Path = tuple[str, ...]
_Wanted = AnyArray | jax.ShapeDtypeStruct

# An error message lists at most this many problems.
_MAX_LISTED = 8

# The file in `record` that describes the arrays.
_RECORD = "metadata"


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
    pieces: list[Piece]


@dataclasses.dataclass(frozen=True)
class _Leaf:
    """Placeholder for a leaf of `like`, to find the leaves that `where` selects."""

    path: tuple[object, ...]


def save(directory: Directory, step: SupportsIndex, tree: object) -> None:
    """Saves the arrays of a tree, bit for bit.

    The tree may contain anything: modules, optimizer states, typed keys. Arrays are
    stored by their path in the tree; other leaves, such as functions, are not stored.
    Earlier steps stay intact if the process is killed while saving. Each array is saved
    with a digest, so that `restore` detects later damage.

    **Arguments:**

    - `directory`: created if it does not exist. Each step has a folder in it.
    - `step`: a whole number, at least 0 and not yet in the directory; `restore` finds
        the tree by it.
    - `tree`: the tree to save, with at least one array. If its arrays are spread over
        several processes, each of these must make this call, with a directory that all
        of them can access; any other tree is saved by process 0 alone.
    """
    number = _whole_number(step)
    check_directory(directory)
    if number in saved_steps(directory):
        raise ValueError(
            f"`step={number}` is in `{directory}` already. Save another step, or "
            f"delete the folder `{Path(directory) / str(number)}` first."
        )
    content = _content(tree)
    folder = Path(directory).absolute() / str(number)
    # If it exists, it is empty; otherwise it would be a step.
    with contextlib.suppress(FileNotFoundError):
        folder.rmdir()
    with quiet_event_loops(), _checkpointer(tree) as checkpointer:
        checkpointer.save(folder, args=content)


def check_directory(directory: Directory) -> None:
    """Checks that arrays can be saved in a directory.

    Orbax finds its files by a glob pattern, in which `[` is special, and does not
    report that it found none. It writes to another folder if a name holds a backslash.
    """
    path = str(converted("directory", Path, directory, "must be a path.").absolute())
    for special in ("[", "\\"):
        if special in path:
            raise ValueError(
                f"`{path}` contains a `{special}`, and arrays in such a folder would "
                "be lost; give a folder whose path has none."
            )


def checkpoint_manager(directory: Directory, *, max_to_keep: int) -> Any:
    """Orbax's manager of a directory, for `begin_save`.

    It keeps the newest steps, and removes unfinished ones of a killed process.
    """
    import orbax.checkpoint as ocp

    check_directory(directory)
    options = ocp.CheckpointManagerOptions(
        max_to_keep=max_to_keep, cleanup_tmp_directories=True
    )
    return ocp.CheckpointManager(
        Path(directory).absolute(),
        options=options,
        item_handlers={
            "arrays": ocp.PyTreeCheckpointHandler(),
            "record": ocp.JsonCheckpointHandler(_RECORD),
        },
    )


def begin_save(manager: Any, step: int, tree: PyTree) -> None:
    """Saves as `save` does, in the background: the arrays must not change meanwhile."""
    # Without `force`, Orbax decides by its own rules whether a step is saved.
    manager.save(step, args=_content(tree), force=True)


def _content(tree: PyTree) -> Any:
    """The arrays of a tree, and their record, as Orbax saves them."""
    import orbax.checkpoint as ocp

    leaves = {
        jax.tree_util.keystr(path): (path, leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        if isinstance(leaf, AnyArray)
    }
    # Orbax cannot save arrays without elements; the record describes them fully.
    arrays = {
        name: jr.key_data(leaf) if is_key(leaf) else leaf
        for name, (_, leaf) in leaves.items()
        if leaf.size > 0
    }
    if not arrays:
        raise ValueError("`tree` holds no array with elements: nothing can be saved.")
    if jax.process_count() > 1:
        if jax.process_index() != 0 and not any(map(is_spread, arrays.values())):
            raise ValueError(
                f"Process {jax.process_index()} cannot save a tree that is its own; "
                "only process 0 can. Write `if jax.process_index() == 0:` before it."
            )
        # Orbax requires an array that only one process holds to be a NumPy array.
        arrays = {
            name: array if is_spread(array) else np.asarray(array)
            for name, array in arrays.items()
        }
    pieces = pieces_of(arrays)
    record = {
        name: dataclasses.asdict(
            _Saved(
                path=_strings(path),
                kind=_kind_of(leaf),
                key_impl=str(jr.key_impl(leaf)) if is_key(leaf) else None,
                pieces=pieces.get(name, []),
            )
        )
        for name, (path, leaf) in leaves.items()
    }
    return ocp.args.Composite(
        arrays=ocp.args.PyTreeSave(arrays),
        record=ocp.args.JsonSave(sealed({"eqrl": __version__, "arrays": record})),
    )


def restore(
    directory: Directory,
    like: Tree,
    step: SupportsIndex | None = None,
    where: Callable[[Tree], PyTree] | None = None,
) -> Tree:
    """Loads the arrays that `save` saved into a tree of the same structure.

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
        the saved tree. The rest of `like` is unchanged.

    **Returns:**

    `like` with its arrays, or those of the part, replaced by the saved ones.

    Raises a `ValueError` if there is no such step; if paths, shapes or types differ,
    naming each; or if the data on disk is damaged, naming the file or the folder. In an
    array that is spread over several processes, damage is only detected in those of the
    saved shards that a process holds whole.
    """
    number = None if step is None else _whole_number(step)
    return restore_part(directory, like, number, where, advice=None)


def restore_part(
    directory: Directory,
    like: Tree,
    step: int | None,
    where: Callable[[Tree], PyTree] | None,
    *,
    advice: str | None,
) -> Tree:
    """Like `restore`; the error message for a damaged step ends with `advice`."""
    folder = Path(directory).absolute() / str(_find_step(directory, step))
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    # `where` selects from a tree of placeholders, each of which knows its path. So the
    # selection is known before any array is read, only these arrays are read and placed
    # on devices, and a part costs no more than its own arrays.
    part = jax.tree.unflatten(structure, [_Leaf(path) for path, _ in leaves])
    if where is not None:
        part = where(part)
        found = jax.tree.leaves(part)
        if not found or not all(isinstance(leaf, _Leaf) for leaf in found):
            raise ValueError(
                "`where` must give a part of `like` which has leaves, such as "
                f"`lambda state: state.actor`; it gave {part!r}."
            )
    selected = {marker.path for marker in jax.tree.leaves(part)}
    wanted = {
        jax.tree_util.keystr(path): leaf
        for path, leaf in leaves
        if path in selected and isinstance(leaf, (AnyArray, jax.ShapeDtypeStruct))
    }
    # The arrays saved at these paths are not needed, so they may be missing, of another
    # shape, or damaged.
    kept = {_strings(path) for path, _ in leaves if path not in selected}
    if advice is None:
        advice = _advice(folder)
    saved = read_json(folder / "record" / _RECORD, _parse_record, advice=advice)
    _check(folder, saved, wanted, kept, _roots(part))
    loaded = _read_arrays(folder, saved, wanted, advice)
    return jax.tree.unflatten(
        structure,
        [loaded.get(jax.tree_util.keystr(path), leaf) for path, leaf in leaves],
    )


def saved_arrays(
    directory: Directory, step: int | None = None
) -> tuple[int, dict[str, jax.ShapeDtypeStruct]]:
    """The shapes and types of saved arrays, by `jax.tree_util.keystr` of their paths.

    **Arguments:**

    - `directory`: as given to `save`.
    - `step`: the step; `None` is the latest.

    **Returns:**

    The step, and a shape for each array other than typed keys.
    """
    step = _find_step(directory, step)
    folder = Path(directory).absolute() / str(step)
    record = folder / "record" / _RECORD
    saved = read_json(record, _parse_record, advice=_advice(folder))
    return step, {
        name: jax.ShapeDtypeStruct(entry.kind.shape, np.dtype(entry.kind.dtype))
        for name, entry in saved.items()
        if entry.key_impl is None
    }


def _kind_of(leaf: _Wanted) -> _Kind:
    return _Kind(shape=tuple(leaf.shape), dtype=str(leaf.dtype))


def _checkpointer(tree: PyTree) -> Any:
    """A checkpointer that waits for other processes only if the tree spans several."""
    import orbax.checkpoint as ocp

    options = ocp.options.MultiprocessingOptions()
    if jax.process_count() > 1 and not any(map(is_spread, jax.tree.leaves(tree))):
        index = jax.process_index()
        options = ocp.options.MultiprocessingOptions(
            primary_host=index,
            active_processes={index},
            barrier_sync_key_prefix=f"process_{index}",
        )
    handler = ocp.CompositeCheckpointHandler(
        composite_options=ocp.CompositeOptions(multiprocessing_options=options),
        arrays=ocp.PyTreeCheckpointHandler(multiprocessing_options=options),
        record=ocp.JsonCheckpointHandler(_RECORD, multiprocessing_options=options),
    )
    return ocp.Checkpointer(handler, multiprocessing_options=options)


def _strings(path: tuple[object, ...]) -> _Path:
    return tuple(str(entry) for entry in path)


def _whole_number(step: Any) -> int:
    # `True` is an index too, but never meant as a step.
    try:
        number = -1 if isinstance(step, (bool, np.bool_)) else operator.index(step)
    except TypeError:
        number = -1
    if number < 0:
        raise ValueError(f"`step={step!r}` must be a whole number, at least 0.")
    return number


def saved_steps(directory: Directory) -> list[int]:
    """The steps in a directory, in order. An empty folder is not a step."""
    path = Path(directory)
    if not path.is_dir():
        return []
    return sorted(
        int(item.name)
        for item in path.iterdir()
        if item.name.isascii()
        and item.name.isdecimal()
        # Step 7 is always in `7`, never in `007`.
        and str(int(item.name)) == item.name
        and item.is_dir()
        and any(item.iterdir())
    )


def is_checkpoint(folder: Path) -> bool:
    """Whether a folder holds a step that `save` wrote, and not something else."""
    return (folder / "record" / _RECORD).is_file()


def _find_step(directory: Directory, step: int | None) -> int:
    steps = saved_steps(directory)
    if not steps:
        raise ValueError(f"There are no saved steps in `{directory}`.")
    if step is None:
        return steps[-1]
    if step not in steps:
        listed = ", ".join(str(step) for step in steps)
        raise ValueError(f"`step={step}` is not in `{directory}`; there are {listed}.")
    return step


def _roots(part: PyTree) -> set[_Path]:
    """Paths in `like` of the subtrees that make up `part`."""
    # A leaf has a path in `part` and another in `like`, and both end alike, since
    # `where` takes subtrees as they are: the root is what is left in `like` once the
    # common end is cut off. The leaves alone would not do: whatever else was saved
    # below a root, such as a further layer, has no place in `part` and is an error.
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


def _parse_record(content: Content) -> dict[str, _Saved]:
    del content["eqrl"]
    arrays = content.pop("arrays")
    if content:
        raise TypeError(f"it holds {sorted(content)} too")
    saved = {}
    for name, entry in arrays.items():
        kind = entry["kind"]
        pieces = [
            Piece(
                **{**piece, "index": tuple((low, high) for low, high in piece["index"])}
            )
            for piece in entry["pieces"]
        ]
        # All names are passed on, so that an unknown one is an error.
        saved[name] = _Saved(
            **{
                **entry,
                "path": tuple(entry["path"]),
                "kind": _Kind(shape=tuple(kind["shape"]), dtype=kind["dtype"]),
                "pieces": pieces,
            }
        )
    return saved


def _advice(folder: Path) -> str:
    """Advice for a damaged step."""
    others = [step for step in saved_steps(folder.parent) if str(step) != folder.name]
    if not others:
        return "there is no other step beside it"
    listed = ", ".join(str(step) for step in others)
    return (
        f"restore another step with `step=`; there are {listed}; or delete `{folder}`, "
        "so that the newest of these is resumed"
    )


def _check(
    folder: Path,
    saved: dict[str, _Saved],
    wanted: dict[str, _Wanted],
    kept: set[_Path],
    roots: set[_Path],
) -> None:
    problems = []
    for name, leaf in wanted.items():
        kind = _kind_of(leaf)
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
            f"What was saved in `{folder}` does not fit `like`: {listed}"
            + (f"; and {more} more." if more > 0 else ".")
        )


def _read_arrays(
    folder: Path, saved: dict[str, _Saved], wanted: dict[str, _Wanted], advice: str
) -> dict[str, AnyArray]:
    stored = {name: leaf for name, leaf in wanted.items() if leaf.size > 0}
    values = _read_stored(folder, stored, advice) if stored else {}
    for name, leaf in stored.items():
        value, data, pieces = values.get(name), _data(leaf), saved[name].pieces
        # Orbax gives a number for an array that is missing.
        if not isinstance(value, AnyArray):
            problem = "is missing"
        elif (kind := _native_kind(value)) != (promised := _native_kind(data)):
            problem = f"is {kind} and was saved as {promised}"
        elif not is_intact(value, pieces):
            problem = "differs from its digest"
        else:
            continue
        raise ValueError(
            f"`{folder / 'arrays'}` is damaged: `{name}` {problem}; {advice}."
        )
    return {
        name: _like(leaf, values.get(name), saved[name].key_impl)
        for name, leaf in wanted.items()
    }


def _read_stored(
    folder: Path, stored: dict[str, _Wanted], advice: str
) -> dict[str, Any]:
    import orbax.checkpoint as ocp

    arrays = ocp.args.PyTreeRestore(
        dict.fromkeys(stored, 0),
        restore_args={name: _restore_args(leaf) for name, leaf in stored.items()},
        partial_restore=True,
    )
    try:
        with quiet_event_loops(), _checkpointer(stored) as checkpointer:
            restored = checkpointer.restore(
                folder, args=ocp.args.Composite(arrays=arrays)
            )
    except jax.errors.JaxRuntimeError:
        # The device has no room for the arrays, or a process has been lost.
        raise
    except Exception as error:
        # Errors of JSON, of missing names, of zarr and of tensorstore.
        raise ValueError(
            f"`{folder / 'arrays'}` is damaged: {reason_of(error)}; {advice}."
        ) from error
    return restored["arrays"]


def _native_kind(leaf: _Wanted) -> _Kind:
    # An array is restored in the byte order of the machine, whatever it was in NumPy.
    dtype = np.dtype(leaf.dtype).newbyteorder("=")
    return _Kind(tuple(leaf.shape), str(dtype))


def _data(leaf: _Wanted) -> jax.ShapeDtypeStruct:
    """Shape and type in which the values of a leaf are stored."""
    if is_key(leaf):
        return jax.eval_shape(jr.key_data, leaf)
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype)


def _restore_args(leaf: _Wanted) -> Any:
    import orbax.checkpoint as ocp

    # JAX chose where to put an uncommitted array, and may do so again.
    is_free = isinstance(leaf, jax.Array) and not leaf.committed
    sharding = None if is_free else getattr(leaf, "sharding", None)
    if sharding is None:
        return ocp.RestoreArgs(restore_type=np.ndarray)
    # Raises an error if the shape does not fit the sharding.
    sharding.shard_shape(leaf.shape)
    return ocp.ArrayRestoreArgs(sharding=sharding)


def _like(leaf: _Wanted, value: AnyArray | None, key_impl: str | None) -> AnyArray:
    """`value` as the same kind of array as `leaf`; `None` if it has no elements."""
    if value is None:
        data = _data(leaf)
        value = np.zeros(data.shape, data.dtype)
    if isinstance(leaf, np.ndarray):
        return np.asarray(value)
    if not isinstance(value, jax.Array):
        # A copy: on a CPU JAX would share the memory of the NumPy array, which must not
        # be donated.
        value = jnp.array(value)
    return value if key_impl is None else jr.wrap_key_data(value, impl=key_impl)
