from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Bool, Float, Int

from eqrl._pytree.control_flow import (
    filter_cond,
    filter_fori_loop,
    filter_scan,
    filter_while_loop,
)
from tests.toy import GetKey, equations


class _Carry(eqx.Module):
    """With a function among its leaves."""

    total: Float[Array, ""]
    function: Any


def _start() -> _Carry:
    return _Carry(total=jnp.zeros(()), function=jnp.abs)


def _add(carry: _Carry, value: Float[Array, ""]) -> _Carry:
    return _Carry(total=carry.total + carry.function(value), function=carry.function)


def _change_function(carry: _Carry) -> _Carry:
    return _Carry(total=carry.total, function=jnp.exp)


class TestScan:
    def test_carries_functions_and_stacks_results(self) -> None:
        def body(carry: _Carry, x: Float[Array, ""]) -> tuple[_Carry, Float[Array, ""]]:
            carry = _add(carry, x)
            return carry, carry.total

        carry, totals = filter_scan(body, _start(), jnp.array([1.0, -2.0, 3.0]))
        np.testing.assert_array_equal(totals, [1, 3, 6])
        np.testing.assert_array_equal(carry.total, 6)
        assert carry.function is jnp.abs

    def test_takes_a_length_in_place_of_values(self) -> None:
        carry, _ = filter_scan(
            lambda carry, _: (_add(carry, jnp.array(1.0)), None), _start(), None, 4
        )
        np.testing.assert_array_equal(carry.total, 4)

    def test_names_the_leaf_that_changed(self) -> None:
        with pytest.raises(ValueError, match=r"`\.function` of a loop's carry.*exp"):
            filter_scan(
                lambda carry, _: (_change_function(carry), None), _start(), None, 4
            )

    def test_a_change_of_structure_is_refused(self) -> None:
        with pytest.raises(ValueError, match="structure of a loop's carry changed"):
            filter_scan(
                lambda carry, _: ((carry, carry), None),
                (jnp.zeros(()), jnp.abs),
                None,
                2,
            )

    def test_carries_a_network_of_equinox(self, getkey: GetKey) -> None:
        network = eqx.nn.MLP(2, 2, 4, 1, key=getkey())

        def body(
            carry: tuple[eqx.nn.MLP, Array], _: None
        ) -> tuple[tuple[eqx.nn.MLP, Array], None]:
            network, x = carry
            return (network, network(x)), None

        (_, x), _ = filter_scan(body, (network, jnp.ones(2)), None, 2)
        np.testing.assert_allclose(x, network(network(jnp.ones(2))), rtol=1e-6)


class TestForiLoop:
    def test_carries_functions_and_counts_from_lower_to_upper(self) -> None:
        def body(index: Int[Array, ""], carry: _Carry) -> _Carry:
            return _add(carry, -index.astype(float))

        carry = filter_fori_loop(2, 5, body, _start())
        np.testing.assert_array_equal(carry.total, 2 + 3 + 4)
        assert carry.function is jnp.abs

    def test_bounds_may_be_traced(self) -> None:
        def total(upper: Int[Array, ""]) -> Array:
            return filter_fori_loop(
                0, upper, lambda _, carry: _add(carry, jnp.array(1.0)), _start()
            ).total

        np.testing.assert_array_equal(jax.jit(total)(jnp.array(3)), 3)

    def test_names_the_leaf_that_changed(self) -> None:
        with pytest.raises(ValueError, match=r"`\.function` of a loop's carry"):
            filter_fori_loop(0, 2, lambda _, carry: _change_function(carry), _start())


class TestWhileLoop:
    def test_carries_functions_until_the_condition_fails(self) -> None:
        def going_on(carry: _Carry) -> Bool[Array, ""]:
            return carry.total < 5

        carry = filter_while_loop(
            going_on, lambda carry: _add(carry, jnp.array(-2.0)), _start()
        )
        np.testing.assert_array_equal(carry.total, 6)
        assert carry.function is jnp.abs

    def test_names_the_leaf_that_changed(self) -> None:
        with pytest.raises(ValueError, match=r"`\.function` of a loop's carry"):
            filter_while_loop(lambda carry: carry.total < 5, _change_function, _start())


class TestCond:
    @pytest.mark.parametrize(("condition", "total"), [(True, 3), (False, -3)])
    def test_takes_the_branch_with_functions_among_operands_and_results(
        self, condition: bool, total: float
    ) -> None:
        carry = filter_cond(
            jnp.array(condition),
            lambda carry, x: _add(carry, x),
            lambda carry, x: _Carry(total=carry.total + x, function=carry.function),
            _start(),
            jnp.array(-3.0),
        )
        np.testing.assert_array_equal(carry.total, total)
        assert carry.function is jnp.abs

    def test_names_the_leaf_in_which_the_branches_differ(self) -> None:
        with pytest.raises(ValueError, match=r"`\.function`"):
            filter_cond(
                jnp.array(True), _change_function, lambda carry: carry, _start()
            )

    @pytest.mark.parametrize("condition", [True, False])
    def test_is_differentiable(self, condition: bool) -> None:
        def choose(x: Float[Array, ""]) -> Array:
            return filter_cond(
                jnp.array(condition), lambda x: 2 * x, lambda x: 3 * x, x
            )

        np.testing.assert_array_equal(
            jax.grad(choose)(jnp.array(1.0)), 2 if condition else 3
        )

    def test_stays_a_branch_under_vmap_with_an_unbatched_condition(self) -> None:
        def choose(x: Array, condition: Array) -> Array:
            return filter_cond(condition, lax.sin, lax.cos, x)

        jaxpr = jax.make_jaxpr(jax.vmap(choose, in_axes=(0, None)))(
            jnp.ones(3), jnp.array(True)
        )
        names = [equation.primitive.name for equation in equations(jaxpr)]
        assert "cond" in names
        assert "select_n" not in names
