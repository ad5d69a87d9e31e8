import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, PRNGKeyArray

from eqrl import FloatLike, check_fields, hyperparameter
from eqrl._pytree.fields import (
    Range,
    check_integer,
    hyperparameters,
    is_key,
    plain_integer,
    range_of,
    reusable_key,
    static_choice,
    static_integer,
)


class _Options(eqx.Module):
    """A field of every kind."""

    rate: FloatLike = hyperparameter(0.5, low=0, high=1)
    scale: FloatLike = hyperparameter(1.0)
    width: FloatLike = hyperparameter(1.0, low=0, low_open=True)
    target: FloatLike | None = hyperparameter(None, low=0)
    weights: Any = hyperparameters(1.0, low=0)
    size: int = static_integer(2, least=1)
    word: str = static_choice("some", ("some", "all"))

    def __check_init__(self) -> None:
        check_fields(self)


_ALLOWED: list[dict[str, Any]] = [
    {},
    {"rate": 0},
    {"rate": 1},
    {"rate": jnp.array(0.3)},
    {"scale": -1e9},
    {"width": 1e-9},
    {"target": None},
    {"target": 0.0},
    {"weights": (0.0, 2.0)},
    {"size": 1},
    {"size": np.int64(7)},
    {"word": "all"},
]

_REFUSED: list[tuple[dict[str, Any], str]] = [
    *(
        ({"rate": value}, r"`rate=.*` is out of range.*\[0, 1\]")
        for value in (-0.01, 1.01, math.nan, math.inf, -math.inf)
    ),
    *(({"scale": value}, "finite") for value in (math.inf, -math.inf, math.nan)),
    ({"width": 0.0}, r"\(0, inf\)"),
    ({"rate": None}, "`rate=None` is not a number"),
    ({"target": -1.0}, r"`target=-1` is out of range.*\[0, inf\)"),
    ({"rate": jnp.array([0.1, 0.2])}, r"shape \(2,\).*filter_vmap"),
    ({"rate": "0.5"}, "`rate='0.5'` is not a number"),
    ({"weights": (1.0, -1.0)}, r"`weights\[1\]=-1` is out of range"),
    *(
        ({"size": value}, f"`size={value!r}` must be an integer, at least 1")
        for value in (0, -3, 2.0, True, "3", None)
    ),
    ({"word": "none"}, "`word='none'` must be one of 'some', 'all'"),
]


class TestCheckFields:
    def test_allowed_values_pass(self) -> None:
        for options in _ALLOWED:
            _Options(**options)

    def test_anything_else_is_named_with_what_is_allowed(self) -> None:
        for options, message in _REFUSED:
            with pytest.raises(ValueError, match=message):
                _Options(**options)

    def test_under_vmap_the_value_of_a_number_passes(self) -> None:
        options = eqx.filter_vmap(lambda x: _Options(rate=x))(jnp.array([5.0]))
        np.testing.assert_array_equal(options.rate, [5])

    def test_under_jit_a_stack_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"shape \(2,\)"):
            jax.eval_shape(lambda x: _Options(rate=x).rate, jnp.zeros(2))


def test_the_range_of_a_field_can_be_read() -> None:
    assert range_of(_Options, "rate") == Range(low=0, high=1)
    assert range_of(_Options(), "width") == Range(low=0, low_open=True)
    assert range_of(_Options, "target") == Range(low=0, optional=True)
    assert range_of(_Options, "size") is None


def test_a_static_integer_is_one_of_python() -> None:
    assert type(_Options(size=np.int64(3)).size) is int  # pyright: ignore[reportArgumentType]


def test_what_is_no_field_can_be_checked_too() -> None:
    Range(low=0).check("radius", 1.0)
    Range(optional=True).check("radius", None)
    check_integer("count", np.int64(1), least=1)
    with pytest.raises(ValueError, match="`radius=-1` is out of range"):
        Range(low=0).check("radius", -1.0)
    with pytest.raises(ValueError, match="`count=0` must be an integer, at least 1"):
        check_integer("count", 0, least=1)


def test_plain_integer_turns_an_integer_of_numpy_into_one_of_python() -> None:
    assert type(plain_integer(np.int64(3))) is int
    for value in (3, 2.5, "3"):
        assert plain_integer(value) is value


@pytest.mark.checks_keys
def test_a_key_may_be_given_again_but_not_be_used_twice_within() -> None:
    jr.bits(key := jr.key(3))
    again = reusable_key(key)
    assert jr.bits(again) == jr.bits(jr.key(3))
    typed = reusable_key(jr.PRNGKey(3))
    assert is_key(typed) and jr.bits(typed) == jr.bits(jr.key(3))

    @jax.jit
    def twice(key: PRNGKeyArray) -> tuple[Array, Array]:
        return jr.bits(reusable_key(key)), jr.bits(reusable_key(key))

    with pytest.raises(jax.errors.KeyReuseError):
        twice(jr.key(3))
