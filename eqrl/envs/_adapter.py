import math
from collections.abc import Iterator
from contextlib import contextmanager

import jax
import jax.numpy as jnp
from jaxtyping import Array, ArrayLike, Float

from .._types.custom_types import PyTree, Tree


@contextmanager
def lenient_promotion() -> Iterator[None]:
    """Allows the promotion of dtypes and ranks that other libraries rely on."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def _strong(leaf: ArrayLike) -> Array:
    if isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        return leaf
    return jnp.array(leaf, dtype=jnp.result_type(leaf))


def strongly_typed(tree: Tree) -> Tree:
    """Makes every leaf a strongly typed array with its own buffer.

    Libraries start with Python numbers and go on with arrays, which `scan` rejects, and
    hold one array in two places, which rules out donation.
    """
    return jax.tree.map(_strong, tree)


def flat_observation(observation: ArrayLike) -> Float[Array, " obs"]:
    return jnp.ravel(jnp.array(observation, dtype=jnp.result_type(float)))


def observation_sizes(
    observation: PyTree, *, name: str
) -> tuple[int, tuple[int, ...] | None]:
    """Length of an observation and the shape of an image, given what is observed."""
    if not isinstance(observation, jax.ShapeDtypeStruct):
        raise ValueError(
            f"`{name}` observes a {type(observation).__name__}, but an observation "
            "must be one flat vector of numbers. Concatenate its parts in an "
            "environment of your own."
        )
    shape = observation.shape
    return math.prod(shape), shape if len(shape) > 1 else None


def state_descriptor_size(descriptor: PyTree, *, name: str) -> int | None:
    """Length of a descriptor, given its shape; `None` if there is none."""
    if descriptor is None:
        return None
    if not isinstance(descriptor, jax.ShapeDtypeStruct) or len(descriptor.shape) != 1:
        given = (
            f"an array of shape {descriptor.shape}"
            if isinstance(descriptor, jax.ShapeDtypeStruct)
            else f"a {type(descriptor).__name__}"
        )
        raise ValueError(
            f"`state_descriptor` of `{name}` gives {given}; it must give one flat "
            "vector, such as `jnp.stack([x, y])`."
        )
    return descriptor.shape[0]
