"""What an environment takes for an action."""

from abc import abstractmethod
from typing import TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray


Action: TypeAlias = Float[Array, " act"] | Int[Array, ""]
"""A vector in [-1, 1], or the number of a choice."""


def check_size(name: str, size: object) -> None:
    """Raises a `ValueError` unless `size` is an integer of at least 1."""
    if not isinstance(size, (int, np.integer)) or isinstance(size, bool):
        raise ValueError(
            f"`{name}` is a {type(size).__name__}; it must be an integer, at least 1."
        )
    if size < 1:
        raise ValueError(f"`{name}={size}` must be at least 1.")


class AbstractActionSpace(eqx.Module):
    """The actions that an environment takes. Hashable, and compared by value."""

    @property
    @abstractmethod
    def struct(self) -> jax.ShapeDtypeStruct:
        """Shape and type of one action."""

    @property
    @abstractmethod
    def num_outputs(self) -> int:
        """How many numbers a network gives to say which action."""

    @abstractmethod
    def sample(self, *, key: PRNGKeyArray) -> Action:
        """Draws one action uniformly from all."""


class Box(AbstractActionSpace):
    """Vectors in [-1, 1]; the environment rescales them to bounds of its own."""

    size: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        check_size("size", self.size)

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((self.size,), jnp.result_type(float))

    @property
    def num_outputs(self) -> int:
        return self.size

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " act"]:
        return jr.uniform(key, (self.size,), minval=-1, maxval=1)


Box.__init__.__doc__ = """**Arguments:**

- `size`: length of the vectors, at least 1.
"""


class Discrete(AbstractActionSpace):
    """A choice among a number of actions, counted from 0."""

    num_actions: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        check_size("num_actions", self.num_actions)

    @property
    def struct(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((), jnp.result_type(int))

    @property
    def num_outputs(self) -> int:
        return self.num_actions

    def sample(self, *, key: PRNGKeyArray) -> Int[Array, ""]:
        return jr.randint(key, (), 0, self.num_actions)


Discrete.__init__.__doc__ = """**Arguments:**

- `num_actions`: how many there are, at least 1.
"""
