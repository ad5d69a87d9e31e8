"""Spectral normalization of the dense layers of a network."""

import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from .._pytree.tree import parts
from .._types.custom_types import Tree
from ..nn import Linear


Directions = tuple[Float[Array, " _"], ...]

# Of the power iteration before the first update, since a random direction may be far
# from that of the largest singular value.
_NUM_FIRST_STEPS = 10


def first_directions(network: object, *, key: PRNGKeyArray) -> Directions:
    """For each layer a direction near that of its largest singular value."""
    layers = parts(network, Linear)
    keys = jr.split(key, len(layers))
    directions = tuple(
        jr.normal(key, layer.bias.shape)
        for layer, key in zip(layers, keys, strict=True)
    )
    for _ in range(_NUM_FIRST_STEPS):
        directions = next_directions(network, directions)
    return directions


def next_directions(network: object, directions: Directions) -> Directions:
    """The directions after one more step of the power iteration."""
    return tuple(
        _unit(_unit(layer.weight @ direction) @ layer.weight)
        for layer, direction in zip(parts(network, Linear), directions, strict=True)
    )


def spectrally_normalized(network: Tree, directions: Directions) -> Tree:
    """The network with each weight divided by its largest singular value.

    That is `u' W v` for the directions v and u = W v, scaled to length 1. The gradient
    flows through W alone.
    """
    weights = []
    for layer, direction in zip(parts(network, Linear), directions, strict=True):
        other = _unit(lax.stop_gradient(layer.weight) @ direction)
        weights.append(layer.weight / (other @ layer.weight @ direction))
    where = lambda tree: [layer.weight for layer in parts(tree, Linear)]
    return eqx.tree_at(where, network, weights)


def _unit(x: Float[Array, " size"]) -> Float[Array, " size"]:
    return x / (jnp.linalg.norm(x) + 1e-12)
