from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, PyTree

from .._types.custom_types import FloatLike, Tree


def tree_where(condition: Bool[Array, ""], if_true: Tree, if_false: Tree) -> Tree:
    """Leaf by leaf, `if_true` where the scalar `condition` holds, else `if_false`.

    Leaves that are not arrays must be the same in both and are taken from `if_true`.
    """
    true_arrays, static = eqx.partition(if_true, eqx.is_array)
    false_arrays = eqx.filter(if_false, eqx.is_array)
    arrays = jax.tree.map(
        lambda x, y: jnp.where(condition, x, y), true_arrays, false_arrays
    )
    return eqx.combine(arrays, static)


def tree_copy(tree: Tree) -> Tree:
    """A copy of `tree` which shares no buffer with it. NumPy arrays stay such.

    Use it in `init` for what starts out equal, such as a target network: a state that
    holds one buffer twice cannot be donated.
    """

    def copy(x: Any) -> Any:
        if isinstance(x, np.ndarray):
            return x.copy()
        return jnp.array(x) if eqx.is_array(x) else x

    return jax.tree.map(copy, tree)


def incremental_update(new: Tree, old: Tree, step_size: FloatLike) -> Tree:
    """Moves the inexact arrays of `old` towards those of `new`.

    **Arguments:**

    - `new`: where to move, such as a critic.
    - `old`: what is moved, such as the critic's target; the same structure.
    - `step_size`: in [0, 1]; 1 copies `new`.

    **Returns:**

    `step_size * new + (1 - step_size) * old`; other leaves are those of `old`.
    """
    return jax.tree.map(
        lambda x, y: (
            step_size * x + (1 - step_size) * y if eqx.is_inexact_array(y) else y
        ),
        new,
        old,
    )


def gradient_step(
    model: Tree,
    gradient: PyTree,
    optimizer: optax.GradientTransformation,
    optimizer_state: optax.OptState,
) -> tuple[Tree, optax.OptState]:
    """One step of an optimizer on the inexact arrays of a model.

    **Arguments:**

    - `model`: any pytree; its inexact arrays are what is optimized.
    - `gradient`: as `equinox.filter_grad` gives it.
    - `optimizer`: as `make_optimizer(learning_rate)` builds it.
    - `optimizer_state`: from `optimizer.init(equinox.filter(model,
        equinox.is_inexact_array))`, or from the last step.

    **Returns:**

    The model after the step and the optimizer's state after it.
    """
    # Optax multiplies by Python and weakly typed numbers of other types, which strict
    # promotion refuses.
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        updates, optimizer_state = optimizer.update(
            gradient, optimizer_state, eqx.filter(model, eqx.is_inexact_array)
        )
        return eqx.apply_updates(model, updates), optimizer_state


def check_same_shapes(name: str, expected: Any, given: Any) -> None:
    """Raises a `ValueError` unless two trees have the same structure and shapes."""
    expected, given = (
        eqx.filter_eval_shape(lambda tree: tree, x) for x in (expected, given)
    )
    if jax.tree.structure(expected) != jax.tree.structure(given):
        raise ValueError(
            f"`{name}` is of another kind of agent or environment: it is a "
            f"{type(given).__name__} of another structure than the one of this agent "
            "here. Go on with what it was trained with."
        )
    paths = jax.tree_util.tree_flatten_with_path(expected)[0]
    for (path, wanted), found in zip(paths, jax.tree.leaves(given), strict=True):
        if isinstance(wanted, jax.ShapeDtypeStruct) and wanted != found:
            raise ValueError(
                f"`{name}` does not fit this agent, environment and trainer: its leaf "
                f"`{jax.tree_util.keystr(path)}` is {found.dtype}{list(found.shape)}, "
                f"but {wanted.dtype}{list(wanted.shape)} is needed. Go on with the "
                "sizes it was trained with."
            )


def is_array_shape(value: Any) -> bool:
    """Whether this is the shape and type of an array, as `jax.eval_shape` gives it."""
    return isinstance(value, jax.ShapeDtypeStruct)


def is_float_shape(value: Any) -> bool:
    """Whether this is the shape and type of an array of floats."""
    return is_array_shape(value) and jnp.issubdtype(value.dtype, jnp.floating)


def described(value: Any) -> str:
    """Shape and type, in words."""
    if is_array_shape(value):
        return f"shape {value.shape} and type {value.dtype}"
    return f"the Python type {type(value).__name__}"
