from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._stacked import Stacked


Tree = TypeVar("Tree")


def member(stack: Stacked[Tree, "population"], index: int | Int[Array, ""]) -> Tree:
    """Takes one member out of a stack.

    **Arguments:**

    - `stack`: every array of it has a leading axis `population`.
    - `index`: which member, from 0.

    **Returns:**

    That member, without the axis.
    """
    return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, stack)


def best(
    stack: Stacked[Tree, "population"], returns: Float[Array, "population ..."]
) -> Tree:
    """Takes the member with the highest mean return out of a stack.

    **Arguments:**

    - `stack`: every array of it has a leading axis `population`.
    - `returns`: of each member, one or several, over which the mean is taken. A member
        with one that is not finite is chosen only if all have.

    **Returns:**

    That member, without the axis.
    """
    means = jnp.mean(jnp.asarray(returns).reshape(returns.shape[0], -1), axis=1)
    return member(stack, jnp.argmax(jnp.where(jnp.isfinite(means), means, -jnp.inf)))


def size_of(stack: Any) -> int:
    """Members of a stack."""
    return jax.tree.leaves(eqx.filter(stack, eqx.is_array))[0].shape[0]
