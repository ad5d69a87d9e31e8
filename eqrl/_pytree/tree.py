import contextlib
import contextvars
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeGuard, TypeVar

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import wadler_lindig
from jax.tree_util import DictKey, GetAttrKey, SequenceKey
from jaxtyping import Array, Bool, Int, UInt8

from .._types.custom_types import FloatLike, PyTree, Tree
from .fields import Range, is_init_only, is_key, range_of, shown


Part = TypeVar("Part")


def tree_where(condition: Bool[Array, ""], if_true: Tree, if_false: Tree) -> Tree:
    """Selects all arrays of one of two trees by a scalar condition.

    Leaves that are not arrays must be equal in both, and are taken from `if_true`.
    """
    true_arrays, static = eqx.partition(if_true, eqx.is_array)
    false_arrays = eqx.filter(if_false, eqx.is_array)
    arrays = jax.tree.map(
        lambda x, y: jnp.where(condition, x, y), true_arrays, false_arrays
    )
    return eqx.combine(arrays, static)


class Flat(eqx.Module, Generic[Tree]):
    """A tree as a list of its arrays, with everything else as one constant.

    It is quick to pass to and from compiled functions, which need not traverse modules.
    """

    arrays: list[PyTree]
    structure: PyTree = eqx.field(static=True)
    others: tuple[PyTree, ...] = eqx.field(static=True)

    @property
    def tree(self) -> Tree:
        """The tree."""
        arrays = iter(self.arrays)
        leaves = [next(arrays) if x is None else x for x in self.others]
        return jax.tree.unflatten(self.structure, leaves)


def flatten(tree: Tree) -> Flat[Tree]:
    """A tree that is quick to pass to a compiled function."""
    leaves, structure = jax.tree.flatten(tree)
    others = tuple(None if eqx.is_array(leaf) else leaf for leaf in leaves)
    arrays = [leaf for leaf in leaves if eqx.is_array(leaf)]
    return Flat(arrays=arrays, structure=structure, others=others)


def tree_is_finite(tree: PyTree) -> Bool[Array, ""]:
    """Whether no element of a tree's inexact arrays is `nan` or infinite."""
    leaves = [x for x in jax.tree.leaves(tree) if eqx.is_inexact_array(x)]
    if not leaves:
        return jnp.array(True)
    # One reduction over all leaves, since one for each would be compiled separately.
    parts = [leaf.astype(float).reshape(-1) for leaf in leaves]
    return jnp.all(jnp.isfinite(jnp.concatenate(parts)))


def tree_copy(tree: Tree) -> Tree:
    """A copy of `tree` that shares no buffer with it. NumPy arrays stay NumPy arrays.

    Use it in `init` for parts that begin as equal, such as a target network: a state
    that holds one buffer twice cannot be donated.
    """

    def copy(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return x.copy()
        if not eqx.is_array(x):
            return x
        # `device_put` copies without compiling a program for each shape, but not keys
        # or arrays that other processes hold.
        if isinstance(x, jax.core.Tracer) or is_key(x) or not x.is_fully_addressable:
            return jnp.array(x)
        return jax.device_put(x, may_alias=False)

    return jax.tree.map(copy, tree)


_gives_away = contextvars.ContextVar("gives_away", default=False)


@contextlib.contextmanager
def giving_away() -> Iterator[None]:
    """Lets training in the block donate the arrays of its `initial`.

    Otherwise a copy of them, with the replay, stays in memory for the whole training.
    """
    token = _gives_away.set(True)
    try:
        yield
    finally:
        _gives_away.reset(token)


def to_donate(tree: Tree) -> Tree:
    """A copy of `tree`, or within `giving_away` the tree itself."""
    return tree if _gives_away.get() else tree_copy(tree)


def digest_of(tree: PyTree) -> UInt8[np.ndarray, "32"]:
    """The bytes of a hash, equal only for arrays that are equal to the last bit."""
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array)):
        array = np.asarray(jr.key_data(leaf) if is_key(leaf) else leaf)
        sha.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return np.frombuffer(sha.digest(), np.uint8)


def incremental_update(new: Tree, old: Tree, step_size: FloatLike) -> Tree:
    """Moves the inexact arrays of `old` towards those of `new`.

    **Arguments:**

    - `new`: the tree to move towards, such as a critic.
    - `old`: the tree that is moved, such as the critic's target; of the same structure.
    - `step_size`: in [0, 1]; 1 copies `new`.

    **Returns:**

    `step_size * new + (1 - step_size) * old` in the types of `old`; half precision
    loses small steps. Other leaves are those of `old`.
    """

    def move(x: Any, y: Any) -> Any:
        if not eqx.is_inexact_array(y):
            return y
        return (step_size * x + (1 - step_size) * y).astype(y.dtype)

    # Strict promotion refuses to multiply half precision by a step size.
    with jax.numpy_dtype_promotion("standard"):
        return jax.tree.map(move, new, old)


def init_optimizer(
    optimizer: optax.GradientTransformation, model: PyTree
) -> optax.OptState:
    """The initial state of an optimizer of the inexact arrays of `model`."""
    # A network may hold functions and integers too, which have no gradient.
    return optimizer.init(eqx.filter(model, eqx.is_inexact_array))


def gradient_step(
    model: Tree,
    gradient: PyTree,
    optimizer: optax.GradientTransformation,
    optimizer_state: optax.OptState,
) -> tuple[Tree, optax.OptState]:
    """One step of an optimizer on the inexact arrays of a model.

    **Arguments:**

    - `model`: any pytree; its inexact arrays are optimized.
    - `gradient`: as `equinox.filter_grad` returns it.
    - `optimizer`: as `make_optimizer(learning_rate)` returns it.
    - `optimizer_state`: from `optimizer.init(equinox.filter(model,
        equinox.is_inexact_array))`, or from the previous step.

    **Returns:**

    The model and the optimizer's state after the step, each array in its own type.
    """
    # JAX would broadcast the gradient of another model without an error.
    _check_gradient(model, gradient)
    # Optax multiplies arrays by Python numbers and by weakly typed numbers of other
    # types, which is an error under strict promotion.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        updates, after = optimizer.update(
            gradient, optimizer_state, eqx.filter(model, eqx.is_inexact_array)
        )
        # A learning rate turns half precision into float32.
        moved = eqx.apply_updates(model, updates)
        return _typed_as(moved, model), _typed_as(after, optimizer_state)


def _check_gradient(model: PyTree, gradient: PyTree) -> None:
    wanted, given = (
        jax.tree_util.tree_flatten_with_path(eqx.filter(tree, eqx.is_inexact_array))[0]
        for tree in (model, gradient)
    )
    if [path for path, _ in wanted] != [path for path, _ in given]:
        raise ValueError(
            f"`gradient` has {len(given)} arrays of floats, at other places than the "
            f"{len(wanted)} of the {type(model).__name__}: it is that of another model."
        )
    for (path, x), (_, y) in zip(wanted, given, strict=True):
        if x.shape != y.shape:
            raise ValueError(
                f"`gradient` is that of another model: its leaf "
                f"`{jax.tree_util.keystr(path)}` has the shape {y.shape}, but that of "
                f"the {type(model).__name__} has {x.shape}."
            )


def _typed_as(tree: Tree, like: Tree) -> Tree:
    """`tree` with its inexact arrays in the types of those of `like`."""

    def typed(x: Any, y: Any) -> Any:
        return jnp.asarray(x, y.dtype) if eqx.is_inexact_array(y) else x

    return jax.tree.map(typed, tree, like)


def check_same_shapes(name: str, expected: PyTree, given: PyTree) -> None:
    """Checks that two trees have the same structure, and arrays of the same shapes."""
    expected, given = (
        eqx.filter(eqx.filter_eval_shape(lambda tree: tree, x), is_array_shape)
        for x in (expected, given)
    )
    misfit = difference(expected, given)
    if misfit is not None:
        same = jax.tree.structure(expected) == jax.tree.structure(given)
        raise ValueError(
            f"`{name}` "
            + ("does not fit this" if same else "is of another kind of")
            + f" agent, environment or trainer: {misfit}. Resume with those that it "
            "was trained with."
        )


def check_kept(what: str, before: PyTree, after: PyTree, *, source: str) -> None:
    """Checks that a tree keeps its structure, shapes and types.

    The message begins with `what`, such as "`update` of SAC gives another state".
    `source` is the method that gave the first tree. A weakly typed number may change
    its type, as in JAX's loops.
    """
    changed = difference(before, after)
    if changed is not None:
        raise ValueError(
            f"{what} than `{source}`: {changed}. Arrays must keep their shapes and "
            "types, and everything else must stay the same; a number that changes "
            "must be an array, such as `jnp.asarray(0.0)`."
        )


def difference(before: PyTree, after: PyTree) -> str | None:
    """Describes how a tree differs from another one; `None` if it does not.

    Arrays are compared by their shapes and types, everything else by value.
    """
    old, new = (
        {
            jax.tree_util.keystr(path): leaf
            for path, leaf in jax.tree_util.tree_leaves_with_path(
                tree, is_leaf=lambda x: x is None
            )
        }
        for tree in (before, after)
    )
    if old.keys() != new.keys() and type(before) is not type(after):
        return f"it is {_in_words(after)}, not {_in_words(before)}"
    # Names of leaves come before classes: `.weight` tells more than a tree structure.
    for path, leaf in old.items():
        name = f"`{path}`" if path else "it"
        if path not in new:
            return f"{name} is missing"
        if not _is_same(leaf, new[path]):
            return f"{name} is {_in_words(new[path])}, not {_in_words(leaf)}"
    for path in new:
        if path not in old:
            return f"`{path}` has been added"
    if jax.tree.structure(before) != jax.tree.structure(after):
        return "the class or a static field of a part has changed"
    return None


def _is_same(old: object, new: object) -> bool:
    if _is_array(old) and _is_array(new):
        # A loop promotes a weakly typed number that it begins with.
        same_type = old.dtype == new.dtype or old.weak_type
        return old.shape == new.shape and same_type
    if _is_array(old) or _is_array(new):
        return False
    return bool(eqx.tree_equal(old, new))


def _in_words(node: object) -> str:
    if _is_array(node):
        return f"of {described(node)}"
    is_leaf = node is None or jax.tree_util.all_leaves([node])
    return shown(node) if is_leaf else f"a {type(node).__name__}"


def _is_array(value: object) -> TypeGuard[jax.Array | jax.ShapeDtypeStruct]:
    return isinstance(value, (jax.Array, jax.ShapeDtypeStruct))


def is_array_shape(value: object) -> TypeGuard[jax.ShapeDtypeStruct]:
    """Whether `value` represents an array in a result of `jax.eval_shape`."""
    return isinstance(value, jax.ShapeDtypeStruct)


def is_float_shape(value: object) -> TypeGuard[jax.ShapeDtypeStruct]:
    """Whether `value` represents a float array in a result of `jax.eval_shape`."""
    return is_array_shape(value) and jnp.issubdtype(value.dtype, jnp.floating)


def described(value: object) -> str:
    """The shape and type of an array, or of its placeholder, in words."""
    if isinstance(value, (jax.ShapeDtypeStruct, jax.Array, np.ndarray)):
        return f"shape {value.shape} and type {value.dtype}"
    return f"the Python type {type(value).__name__}"


def parts(tree: PyTree, kind: type[Part]) -> list[Part]:
    """All parts of a pytree that are of one kind, such as wrappers in an agent."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kind))
    return [leaf for leaf in leaves if isinstance(leaf, kind)]


def map_parts(function: Callable[[Part], object], tree: Tree, kind: type[Part]) -> Tree:
    """A pytree with a function applied to all of its `parts` of one kind."""
    is_part = lambda node: isinstance(node, kind)
    return jax.tree.map(
        lambda node: function(node) if is_part(node) else node, tree, is_leaf=is_part
    )


def take_element(stack: Tree, index: int | Int[Array, ""]) -> Tree:
    """One element of a stack, without the axis."""
    return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, stack)


def placeholders(shapes: Tree) -> Tree:
    """Placeholders for arrays of these shapes, to lower a program with.

    They take no memory until they are put on a device.
    """

    def placeholder(x: PyTree) -> PyTree:
        if not is_array_shape(x):
            return x
        if is_key(x):
            return jnp.empty(x.shape, x.dtype)
        return np.broadcast_to(np.zeros((), x.dtype), x.shape)

    return jax.tree.map(placeholder, shapes)


def put_element(stack: Tree, element: Tree, index: int | Int[Array, ""]) -> Tree:
    """A stack with one element replaced."""
    return jax.tree.map(
        lambda x, y: x.at[index].set(y) if eqx.is_array(x) else x, stack, element
    )


def stack_size(stack: PyTree) -> int:
    """The number of elements of a stack."""
    return jax.tree.leaves(eqx.filter(stack, eqx.is_array))[0].shape[0]


def check_stack(name: str, stack: PyTree, *, size: int | None = None) -> None:
    """Checks that all arrays have one leading axis in common.

    If `size` is given, the axis must have that length.
    """
    paths = jax.tree_util.tree_flatten_with_path(eqx.filter(stack, eqx.is_array))[0]
    sizes = {x.shape[0] for _, x in paths if x.ndim > 0}
    scalars = [(path, x) for path, x in paths if x.ndim == 0]
    if scalars or len(sizes) > 1:
        path, _ = (scalars or paths)[0]
        raise ValueError(
            f"`{name}` is a single {type(stack).__name__}, not a stack: its "
            f"leaf `{jax.tree_util.keystr(path)}` has no common leading axis. "
            "`PBT.init`, `train_population` and `equinox.filter_vmap` make stacks."
        )
    if size is not None and sizes != {size} and len(sizes) > 0:
        raise ValueError(
            f"`{name}` is a stack of {sizes.pop()}, but {size} are needed: one for "
            "each."
        )


def empty_stack(element: Tree, capacity: int) -> Tree:
    """A zero-filled stack of `capacity` elements of the shapes of `element`."""
    return jax.tree.map(
        lambda x: jnp.zeros((capacity, *x.shape), x.dtype) if _is_array(x) else x,
        element,
    )


def repeated(element: Tree, size: int) -> Tree:
    """A stack of `size` copies of the same element."""
    return jax.tree.map(
        lambda x: jnp.broadcast_to(x, (size, *x.shape)) if eqx.is_array(x) else x,
        element,
    )


def enlarge_stack(stack: Tree, capacity: int) -> Tree:
    """A stack of `capacity` elements: those of `stack`, followed by zeros."""

    def enlarged(x: Any) -> Any:
        if not eqx.is_array(x) or x.shape[0] == capacity:
            return x
        missing = jnp.zeros((capacity - x.shape[0], *x.shape[1:]), x.dtype)
        return jnp.concatenate([x, missing])

    return jax.tree.map(enlarged, stack)


def init_only_leaves(tree: PyTree) -> PyTree:
    """A tree of flags of the same structure: whether only `init` reads each leaf."""

    def is_marked(path: Sequence[object], leaf: object) -> bool:
        del leaf
        return any(is_init_only(*field) for field in _fields_along(tree, path) if field)

    return jax.tree_util.tree_map_with_path(is_marked, tree)


def range_at(tree: PyTree, path: Sequence[object]) -> Range | None:
    """The range that the field of a leaf was declared with; `None` if it has none.

    A leaf may be an element of a tuple whose elements must all lie in the range.
    """
    if len(path) > 0 and isinstance(path[-1], SequenceKey):
        path = path[:-1]
    found = _fields_along(tree, path)
    return range_of(*found[-1]) if found and found[-1] else None


def _fields_along(
    tree: PyTree, path: Sequence[Any]
) -> list[tuple[eqx.Module, str] | None]:
    """For each key of a path, the module whose field it names, and the field's name."""
    found: list[tuple[eqx.Module, str] | None] = []
    node: Any = tree
    for key in path:
        found.append(None)
        if isinstance(key, GetAttrKey):
            if isinstance(node, eqx.Module):
                found[-1] = (node, key.name)
            node = getattr(node, key.name)
        elif isinstance(key, SequenceKey):
            node = node[key.idx]
        elif isinstance(key, DictKey):
            node = node[key.key]
        else:
            # The node keeps its children by other means; no field leads further.
            return [None] * len(path)
    return found


def show_values(module: object) -> str:
    """A module as text, all its fields included, with the values of its scalars.

    Equinox shows the shape of an array instead, and leaves out static fields that have
    their default.
    """
    return wadler_lindig.pformat(module, custom=_show_scalar, hide_defaults=False)


def _show_scalar(value: object) -> wadler_lindig.AbstractDoc | None:
    if isinstance(value, jax.core.Tracer):
        return None
    # Such as `jax.nn.relu`, which would be shown by its address.
    if isinstance(value, jax.custom_jvp):
        return wadler_lindig.TextDoc(value.__name__)
    # Objects of other libraries, whose address is not informative.
    if type(value).__repr__ is object.__repr__:
        return wadler_lindig.TextDoc(type(value).__name__)
    if not isinstance(value, (jax.Array, np.ndarray, np.generic)) or value.ndim != 0:
        return None
    if is_key(value):
        return None
    # `str` has the fewest digits that tell a number from its neighbors.
    text = str(np.asarray(value)[()])
    is_float = jnp.issubdtype(value.dtype, jnp.floating)
    return wadler_lindig.TextDoc(repr(float(text)) if is_float else text)
