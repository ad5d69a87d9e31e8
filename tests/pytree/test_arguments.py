"""Arguments are checked by their annotations, each with a message of its own."""

from collections.abc import Callable
from typing import Annotated, Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl
from eqrl._pytree.fields import NonNegativeInt, PositiveInt, Range, Takes, checked
from eqrl.envs import AbstractEnv

from ..toy import Clock


KEY = jr.key(0)


@checked
def function(
    env: AbstractEnv[Any],
    *agents: object,
    number: PositiveInt = 1,
    index: NonNegativeInt | None = None,
    share: Annotated[float, Range(low=0, high=1)] = 0.5,
    mode: Literal["slow", "fast"] = "slow",
    log: Annotated[Callable[..., object], Takes(("metrics", "step"))] | None = None,
    flag: bool = False,
    several: Annotated[AbstractEnv[Any], "single or a stack"] | None = None,
    either: int | str = 0,
    values: Float[Array, " n"] | None = None,
    key: PRNGKeyArray = KEY,
) -> str:
    """A docstring."""
    return f"{number} {index} {mode}"


ENV = Clock(longest=3)
STACK = eqx.filter_vmap(lambda rate: eqrl.SAC(actor_lr=rate))(jnp.ones(3))


@checked
def of_agent(
    agent: eqrl.AbstractAgent[Any, Any, Any],
    stack: Annotated[eqrl.AbstractAgent[Any, Any, Any], "single or a stack"],
) -> None: ...


def test_what_is_allowed_passes_and_the_result_is_the_function_s() -> None:
    assert function(ENV) == "1 None slow"
    options: dict[str, Any] = {"log": lambda metrics, step: None, "key": jr.PRNGKey(0)}
    given = function(
        ENV, 1, "x", number=2, index=0, share=1.0, mode="fast", several=ENV, **options
    )
    assert given == "2 0 fast"
    # `jit` would trace NumPy's integers.
    assert type(checked(lambda number: number)(np.int64(2))) is int
    assert function.__doc__ == "A docstring."
    of_agent(eqrl.SAC(), STACK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"number": 0}, "`number=0` must be an integer, at least 1"),
        ({"number": True}, "`number=True` must be an integer"),
        ({"number": None}, "`number=None` must be an integer"),
        ({"index": -1}, "`index=-1` must be an integer, at least 0"),
        ({"share": 1.5}, r"`share=1.5` is out of range.*\[0, 1\]"),
        ({"mode": "quick"}, "`mode='quick'` must be one of 'slow', 'fast'"),
        ({"log": lambda metrics: None}, r"`log=.*be called as `log\(metrics, step\)`"),
        ({"log": [print, 3]}, "`log=3` must be a function"),
        ({"flag": 1}, "`flag=1` must be True or False"),
        ({"several": 3}, "`several=3` is of type int.*`AbstractEnv`"),
        ({"key": 0}, "`key=0` is not a key"),
        ({"key": jr.split(KEY)}, r"`key` is a stack of keys of shape \(2,\)"),
    ],
)
def test_the_first_that_does_not_fit_is_named(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        function(ENV, **options)


def test_an_abstract_class_stands_for_a_single_one() -> None:
    with pytest.raises(ValueError, match="`env='brax/ant'` is the name"):
        function("brax/ant")  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match="`agent` is a stack of 3: its `actor_lr`"):
        of_agent(STACK, STACK)


def test_other_types_are_left_to_the_function() -> None:
    values: Any = "no array"
    either: Any = 1.5
    assert function(ENV, either=either, values=values) == "1 None slow"


def test_a_call_with_other_arguments_is_python_s_own_error() -> None:
    with pytest.raises(TypeError, match=r"function\(\).*unexpected.*'numbers'"):
        function(ENV, numbers=1)  # pyright: ignore[reportCallIssue]


def test_traced_arguments_are_checked_by_their_shapes() -> None:
    @jax.jit
    def traced(key: PRNGKeyArray) -> Array:
        function(ENV, key=key)
        return jr.uniform(key)

    traced(KEY)
    with pytest.raises(ValueError, match="stack of keys"):
        traced(jr.split(KEY))
