import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array

import eqrl
from eqrl._pytree.tree import (
    empty_stack,
    enlarge_stack,
    put_element,
    stack_size,
    take_element,
)


class _Pair(eqx.Module):
    """Two arrays and a function, which all elements share."""

    number: Array
    vector: Array
    function: object = jnp.abs


_STACK = _Pair(number=jnp.arange(3), vector=jnp.arange(6.0).reshape(3, 2))


def test_an_element_is_taken_without_the_axis() -> None:
    element = take_element(_STACK, jnp.array(1))
    np.testing.assert_array_equal(element.number, 1)
    np.testing.assert_array_equal(element.vector, [2, 3])
    assert element.function is jnp.abs


def test_a_member_is_taken_where_it_is_traced() -> None:
    stack = {"x": jnp.arange(6.0).reshape(3, 2), "key": jr.split(jr.key(0), 3)}
    taken = jax.jit(lambda stack, index: eqrl.member(stack, index))(stack, 1)
    np.testing.assert_array_equal(taken["x"], [2, 3])
    assert taken["key"] == stack["key"][1]


def test_one_element_is_put_and_the_others_stay() -> None:
    element = _Pair(number=jnp.array(7), vector=jnp.array([8.0, 9.0]))
    stack = put_element(_STACK, element, 1)
    np.testing.assert_array_equal(stack.number, [0, 7, 2])
    np.testing.assert_array_equal(stack.vector, [[0, 1], [8, 9], [4, 5]])
    assert stack.function is jnp.abs


def test_the_size_is_the_number_of_elements() -> None:
    assert stack_size(_STACK) == 3


def test_an_empty_stack_has_the_shapes_and_types_of_its_elements() -> None:
    for like in (take_element(_STACK, 0), jax.eval_shape(lambda: jnp.zeros((2,), int))):
        stack = empty_stack(like, 4)
        for array, element in zip(
            jax.tree.leaves(eqx.filter(stack, eqx.is_array)),
            jax.tree.leaves(eqx.filter(like, lambda x: hasattr(x, "dtype"))),
            strict=True,
        ):
            assert (array.shape, array.dtype) == ((4, *element.shape), element.dtype)
            assert not np.any(array)


def test_an_enlarged_stack_begins_with_the_same_elements() -> None:
    stack = enlarge_stack(_STACK, 5)
    np.testing.assert_array_equal(stack.number, [0, 1, 2, 0, 0])
    np.testing.assert_array_equal(stack.vector[:3], _STACK.vector)
    np.testing.assert_array_equal(stack.vector[3:], np.zeros((2, 2)))
    assert enlarge_stack(_STACK, 3).number is _STACK.number
