from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from .._pytree.fields import Range, check_fields, interval, number
from .._pytree.tree import show_values
from .._types.custom_types import FloatLike


_DOWN = 0.8
_UP = 1.25


class AbstractPrior(eqx.Module):
    """The prior of one hyperparameter, and how its values are perturbed."""

    def __check_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        return show_values(self)

    @abstractmethod
    def sample(self, *, key: PRNGKeyArray) -> Float[Array, ""]:
        """Draws a value."""

    @abstractmethod
    def perturb(
        self, value: Float[Array, ""], *, key: PRNGKeyArray
    ) -> Float[Array, ""]:
        """Multiplies `value` by 1.25 or 0.8, each with probability one half.

        The factors are those of population based training. They apply in the
        coordinates of the prior, and the result is clipped to its range.
        """


def _multiply(
    value: Float[Array, ""],
    low: FloatLike,
    high: FloatLike,
    *,
    key: PRNGKeyArray,
) -> Float[Array, ""]:
    factor = jnp.where(jr.bernoulli(key), _UP, _DOWN)
    return jnp.clip(value * factor, low, high)


def _check_order(low: FloatLike, high: FloatLike) -> None:
    Range(low=float(low), low_open=True).check("high", high)


class Uniform(AbstractPrior):
    """A uniform prior."""

    low: FloatLike = eqx.field(converter=number("low"), metadata=interval())
    high: FloatLike = eqx.field(converter=number("high"), metadata=interval())

    def __check_init__(self) -> None:
        check_fields(self)
        _check_order(self.low, self.high)

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, ""]:
        return jr.uniform(key, (), minval=self.low, maxval=self.high)

    def perturb(
        self, value: Float[Array, ""], *, key: PRNGKeyArray
    ) -> Float[Array, ""]:
        return _multiply(value, self.low, self.high, key=key)


Uniform.__init__.__doc__ = """**Arguments:**

- `low`, `high`: the bounds, `low` less than `high`.
"""


class LogUniform(AbstractPrior):
    """A uniform prior of the logarithm."""

    low: FloatLike = eqx.field(
        converter=number("low"), metadata=interval(low=0, low_open=True)
    )
    high: FloatLike = eqx.field(converter=number("high"), metadata=interval())

    def __check_init__(self) -> None:
        check_fields(self)
        _check_order(self.low, self.high)

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, ""]:
        low, high = jnp.log(self.low), jnp.log(self.high)
        # Rounding may leave the range by one bit.
        value = jnp.exp(jr.uniform(key, (), minval=low, maxval=high))
        return jnp.clip(value, self.low, self.high)

    def perturb(
        self, value: Float[Array, ""], *, key: PRNGKeyArray
    ) -> Float[Array, ""]:
        return _multiply(value, self.low, self.high, key=key)


LogUniform.__init__.__doc__ = """**Arguments:**

- `low`, `high`: the bounds, more than 0, `low` less than `high`.
"""


class OneMinus(AbstractPrior):
    """A prior of one minus the hyperparameter, for a value near one.

    A discount of 0.985 times 1.25 would be more than 1. As one minus 0.015 it is
    perturbed to 0.988 or 0.981.
    """

    prior: AbstractPrior

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, ""]:
        return 1 - self.prior.sample(key=key)

    def perturb(
        self, value: Float[Array, ""], *, key: PRNGKeyArray
    ) -> Float[Array, ""]:
        return 1 - self.prior.perturb(1 - value, key=key)


OneMinus.__init__.__doc__ = """**Arguments:**

- `prior`: the prior of one minus the hyperparameter.
"""


def check_prior(name: str, prior: AbstractPrior, allowed: Range | None) -> None:
    """Checks that a prior of this module stays within a range.

    **Arguments:**

    - `name`: of the hyperparameter.
    - `prior`: any; what one of another class draws cannot be known.
    - `allowed`: the range of the hyperparameter; `None` if it has none.
    """
    bounds = _bounds_of(prior)
    if allowed is None or bounds is None:
        return
    for bound in bounds:
        allowed.check(name, bound)


def _bounds_of(prior: AbstractPrior) -> tuple[FloatLike, FloatLike] | None:
    if isinstance(prior, (Uniform, LogUniform)):
        return prior.low, prior.high
    if isinstance(prior, OneMinus):
        bounds = _bounds_of(prior.prior)
        return None if bounds is None else (1 - bounds[1], 1 - bounds[0])
    return None
