from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import check_fields, converted_field, hyperparameters
from .._types.custom_types import (
    FloatLike,
    Metrics,
    Seen,
)
from .._types.data import EnvSpec, Transition
from .base import AbstractReward, after_update


class SumState(eqx.Module):
    """State of `Sum`: those of its rewards."""

    rewards: tuple[Any, ...]


SumState.__init__.__doc__ = """**Arguments:**

- `rewards`: a state for each reward.
"""


class Sum(AbstractReward[SumState, Seen]):
    """The weighted sum of several rewards, each of which learns for itself.

    The names of their metrics begin with the index of the reward, as in
    `0_discriminator_loss`.
    """

    rewards: tuple[AbstractReward[Any, Seen], ...] = converted_field(
        convert=tuple, what="must be a sequence of rewards."
    )
    weights: tuple[FloatLike, ...] | None = hyperparameters(None)

    if TYPE_CHECKING:
        # What the converters take, of which not all static type checkers know.
        def __init__(
            self,
            rewards: Sequence[AbstractReward[Any, Seen]],
            weights: Sequence[FloatLike] | None = ...,
        ) -> None: ...

    def __check_init__(self) -> None:
        check_fields(self)
        if len(self.rewards) == 0:
            raise ValueError("`rewards` is empty; give at least one reward.")
        if self.weights is None:
            return
        if not isinstance(self.weights, tuple) or len(self.weights) != len(
            self.rewards
        ):
            raise ValueError(
                f"`weights` must be a sequence of {len(self.rewards)} numbers, one for "
                "each of `rewards`."
            )

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> SumState:
        keys = jr.split(key, len(self.rewards))
        return SumState(
            tuple(
                reward.init(spec, key=key)
                for reward, key in zip(self.rewards, keys, strict=True)
            )
        )

    def observe(self, state: SumState, transitions: Transition[Seen]) -> SumState:
        return SumState(
            tuple(
                reward.observe(part, transitions)
                for reward, part in zip(self.rewards, state.rewards, strict=True)
            )
        )

    def reward(
        self,
        state: SumState,
        batch: Transition[Seen],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        total = jnp.zeros(batch.timestep.shape)
        weights = self.weights or (1.0,) * len(self.rewards)
        keys = jr.split(key, len(self.rewards))
        for reward, part, weight, key in zip(
            self.rewards, state.rewards, weights, keys, strict=True
        ):
            total = total + weight * reward.reward(part, batch, step=step, key=key)
        return total

    def update(
        self, state: SumState, batch: Transition[Seen], *, key: PRNGKeyArray
    ) -> tuple[SumState, Metrics]:
        parts, metrics = [], {}
        keys = jr.split(key, len(self.rewards))
        for index, (reward, part, key) in enumerate(
            zip(self.rewards, state.rewards, keys, strict=True)
        ):
            updated = reward.update(part, batch, key=key)
            part, found = after_update(reward, part, updated)
            parts.append(part)
            metrics |= {f"{index}_{name}": value for name, value in found.items()}
        return SumState(tuple(parts)), metrics


Sum.__init__.__doc__ = """**Arguments:**

- `rewards`: at least one, such as an `eqrl.Discriminator`.
- `weights`: a factor for each, any finite number; `None` is 1 for all. They are leaves,
    which population based training can tune.
"""
