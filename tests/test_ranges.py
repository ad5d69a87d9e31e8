import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqrl._pytree.fields import check_integer, check_range, plain_integer


class TestCheckRange:
    @pytest.mark.parametrize("value", [0.0, 0.3, 1.0])
    def test_the_ends_belong_to_the_range(self, value: float) -> None:
        check_range("rate", value, low=0, high=1)

    @pytest.mark.parametrize("value", [-0.01, 1.01, math.nan, math.inf, -math.inf])
    def test_what_is_outside_is_named_with_the_range(self, value: float) -> None:
        with pytest.raises(ValueError, match=r"`rate=.*` is out of range.*\[0, 1\]"):
            check_range("rate", jnp.array(value), low=0, high=1)

    def test_an_open_end_does_not_belong_to_the_range(self) -> None:
        with pytest.raises(ValueError, match=r"\(0, inf\)"):
            check_range("rate", 0.0, low=0, low_open=True)

    @pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
    def test_without_a_range_it_must_be_finite(self, value: float) -> None:
        with pytest.raises(ValueError, match="finite"):
            check_range("scale", value)

    def test_none_passes_where_it_is_optional(self) -> None:
        check_range("rate", None, low=0, high=1, optional=True)

    def test_none_is_refused_where_it_is_not_optional(self) -> None:
        with pytest.raises(ValueError, match="`rate=None` is not a number"):
            check_range("rate", None, low=0, high=1)

    def test_a_stack_is_refused_and_told_how_to_be_made(self) -> None:
        with pytest.raises(ValueError, match=r"shape \(2,\).*filter_vmap"):
            check_range("rate", jnp.array([0.1, 0.2]), low=0, high=1)

    def test_a_traced_number_passes(self) -> None:
        jax.vmap(lambda x: check_range("rate", x, low=0, high=1))(jnp.array([5.0]))

    def test_a_traced_stack_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"shape \(2,\)"):
            jax.jit(lambda x: check_range("rate", x, low=0, high=1))(jnp.zeros(2))


class TestCheckInteger:
    @pytest.mark.parametrize("value", [1, 7, np.int64(1)])
    def test_integers_from_the_least_on_pass(self, value: Any) -> None:
        check_integer("size", value, least=1)

    @pytest.mark.parametrize("value", [0, -3, 2.0, True, "3", None])
    def test_anything_else_is_named(self, value: Any) -> None:
        with pytest.raises(
            ValueError, match=f"`size={value!r}` must be an integer, at least 1"
        ):
            check_integer("size", value, least=1)


def test_plain_integer_turns_an_integer_of_numpy_into_one_of_python() -> None:
    assert type(plain_integer(np.int64(3))) is int


@pytest.mark.parametrize("value", [3, 2.5, "3"])
def test_plain_integer_leaves_anything_else_as_it_is(value: object) -> None:
    assert plain_integer(value) is value
