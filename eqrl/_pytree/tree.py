import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, PyTree

from .._types.custom_types import FloatLike, Tree


def _strong_scalar(value: Any) -> Any:
    # An explicit dtype drops weak typing: a weakly typed leaf retraces once anything
    # strongly typed, such as a perturbed value, is written over it.
    if value is None:
        return None
    if isinstance(value, (str, bytes)):
        raise ValueError(f"A hyperparameter must be a number, but {value!r} was given.")
    return jnp.asarray(value, dtype=jnp.result_type(float))


def hyperparameter(default: float | None = dataclasses.MISSING) -> Any:  # pyright: ignore[reportArgumentType]
    """A field of an `equinox.Module` for a float that enters arithmetic.

    It is stored as a strongly typed scalar array, a leaf. So it can be mapped over with
    `equinox.filter_vmap`, tuned by population based training and changed with
    `equinox.tree_at`, none of which compiles anything anew.

    **Arguments:**

    - `default`: the value when none is given, in the units of the field. `None` makes
        the field optional. Without a default the field is required.

    **Returns:**

    A dataclass field, to stand behind `name: FloatLike =`.
    """
    if default is dataclasses.MISSING:
        return eqx.field(converter=_strong_scalar)
    return eqx.field(default=default, converter=_strong_scalar)


def _strong_scalars(value: Any) -> Any:
    if isinstance(value, (tuple, list)) or getattr(value, "ndim", 0) == 1:
        return tuple(_strong_scalar(element) for element in value)
    return _strong_scalar(value)


def hyperparameters(default: float | None) -> Any:
    """As `hyperparameter`, for one float or several, each a leaf of its own.

    **Arguments:**

    - `default`: the value when none is given. `None` makes the field optional.

    **Returns:**

    A dataclass field, which takes a number, or a tuple or vector of numbers.
    """
    return eqx.field(default=default, converter=_strong_scalars)


def strong_integer(value: Any) -> Any:
    """An integer as a strongly typed scalar array; of anything else a `ValueError`."""
    if not jnp.issubdtype(jnp.result_type(value), jnp.integer):
        raise ValueError(f"A whole number is needed, but {value!r} was given.")
    return jnp.asarray(value, dtype=jnp.result_type(int))


def whole_number(default: int) -> Any:
    """As `hyperparameter`, for an integer that decides no shape.

    It is stored as a strongly typed scalar array, a leaf, so that another one compiles
    nothing. Anything but an integer is a `ValueError`.
    """
    return eqx.field(default=default, converter=strong_integer)


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
