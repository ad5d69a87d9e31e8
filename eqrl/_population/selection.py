"""Which members of a population are replaced, and by children of which others."""

from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import check_fields, static_integer


class AbstractSelection(eqx.Module):
    """Chooses the members to replace and their parents."""

    @abstractmethod
    def check_size(self, size: int) -> None:
        """Raises a `ValueError` unless it can choose among so many members."""

    @abstractmethod
    def most_replaced(self, size: int) -> int:
        """How many members of `size` are replaced at a time, at most."""

    @abstractmethod
    def parents(
        self,
        ranked: Float[Array, " population"],
        order: Int[Array, " population"],
        *,
        key: PRNGKeyArray,
    ) -> Int[Array, " population"]:
        """The index of each member's parent, which is its own index if it is kept.

        A parent stands behind its children in `order`, or is kept itself.

        **Arguments:**

        - `ranked`: score of each member, minus infinity if it failed.
        - `order`: the members from worst to best.
        - `key`: of what is drawn.
        """


class Truncation(AbstractSelection):
    """The worst members are replaced by children of the best.

    Each of the `num_replaced` worst gets a parent drawn from the `num_elite` best.
    """

    num_replaced: int = static_integer(2, least=0)
    num_elite: int = static_integer(2, least=1)

    def __check_init__(self) -> None:
        check_fields(self)

    def check_size(self, size: int) -> None:
        if self.num_elite + self.num_replaced > size:
            raise ValueError(
                f"`num_elite={self.num_elite}` and `num_replaced={self.num_replaced}` "
                f"are more than the {size} members of the population together; lower "
                "one of them, or enlarge the population."
            )

    def most_replaced(self, size: int) -> int:
        del size
        return self.num_replaced

    def parents(
        self,
        ranked: Float[Array, " population"],
        order: Int[Array, " population"],
        *,
        key: PRNGKeyArray,
    ) -> Int[Array, " population"]:
        size = order.shape[0]
        elite = order[size - self.num_elite :]
        worst = order[: self.num_replaced]
        # Only finite scores qualify; in the order from worst to best they are last.
        num_finite = jnp.sum(jnp.isfinite(ranked[elite]))
        drawn = jr.randint(key, (self.num_replaced,), 0, jnp.maximum(num_finite, 1))
        parents = elite[self.num_elite - 1 - drawn]
        parents = jnp.where(num_finite > 0, parents, worst)
        return jnp.arange(size).at[worst].set(parents)


Truncation.__init__.__doc__ = """**Arguments:**

- `num_replaced`: number of members to replace at a time, at least 0.
- `num_elite`: number of members to copy from, at least 1.
"""


class Tournament(AbstractSelection):
    """Every member meets another, and losers are replaced by children of the winner.

    The other is drawn from all. A member loses if the other is better.
    """

    num_replaced: int | None = static_integer(None, least=0)

    def __check_init__(self) -> None:
        check_fields(self)

    def check_size(self, size: int) -> None:
        del size

    def most_replaced(self, size: int) -> int:
        # The best member never loses.
        most = size - 1
        return most if self.num_replaced is None else min(self.num_replaced, most)

    def parents(
        self,
        ranked: Float[Array, " population"],
        order: Int[Array, " population"],
        *,
        key: PRNGKeyArray,
    ) -> Int[Array, " population"]:
        size = order.shape[0]
        members = jnp.arange(size)
        opponents = (members + jr.randint(key, (size,), 1, max(size, 2))) % size
        loses = ranked[opponents] > ranked
        num_losses = jnp.cumsum(loses[order])
        allowed = num_losses <= self.most_replaced(size)
        allowed = jnp.zeros(size, bool).at[order].set(allowed)
        return jnp.where(loses & allowed, opponents, members)


Tournament.__init__.__doc__ = """**Arguments:**

- `num_replaced`: number of losers to replace at a time, the worst of them, at least 0;
    `None` replaces every loser, as in the paper.
"""
