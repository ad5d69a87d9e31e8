"""Stacks are seen for what they are where shapes are checked."""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import pytest
from beartype import beartype
from jaxtyping import Array, Float, TypeCheckError, jaxtyped

from eqrl import Stacked


class Pair(eqx.Module):
    """A number and a vector."""

    number: Float[Array, ""]
    vector: Float[Array, " size"]


def make(size: int) -> Pair:
    return eqx.filter_vmap(lambda x: Pair(number=x, vector=x[None]))(jnp.ones(size))


@jaxtyped(typechecker=beartype)
def take(pairs: Stacked[Pair, "members"], weights: Float[Array, " members"]) -> None:
    del pairs, weights


def test_a_stack_is_accepted() -> None:
    take(make(3), jnp.ones(3))


def test_an_axis_that_does_not_agree_is_refused() -> None:
    with pytest.raises(TypeCheckError):
        take(make(3), jnp.ones(4))


def test_a_single_one_is_refused() -> None:
    with pytest.raises(TypeCheckError):
        take(Pair(number=jnp.ones(()), vector=jnp.ones(1)), jnp.ones(1))


def test_leaves_that_do_not_agree_are_refused() -> None:
    pairs = eqx.tree_at(lambda pair: pair.number, make(3), jnp.ones(2))
    with pytest.raises(TypeCheckError):
        take(pairs, jnp.ones(3))


def test_a_stack_of_stacks_is_refused() -> None:
    stacks = eqx.filter_vmap(lambda _: make(3))(jnp.ones(3))
    with pytest.raises(TypeCheckError):
        take(stacks, jnp.ones(3))


def test_one_is_refused_although_its_axes_agree() -> None:
    class Square(eqx.Module):
        matrix: Float[Array, "size size"]
        vectors: tuple[Pair, ...] = ()

    stack: Any = Stacked[Square, "members"]
    square = Square(matrix=jnp.ones((3, 3)))
    assert not isinstance(square, stack)
    squares = eqx.filter_vmap(lambda _: square)(jnp.ones(3))
    assert isinstance(squares, stack)
    # Modules in a tuple are looked at too.
    within = eqx.tree_at(
        lambda x: x.vectors, squares, (Pair(jnp.ones((3, 3)), jnp.ones((3, 3))),)
    )
    assert not isinstance(within, stack)


def test_something_else_is_refused() -> None:
    with pytest.raises(TypeCheckError):
        take(jnp.ones(3), jnp.ones(3))  # pyright: ignore[reportArgumentType]
