from typing import Generic

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._types.custom_types import Metrics, RewardState, Seen
from .._types.data import EnvSpec, Transition
from .base import AbstractReward, after_update
from .running_statistics import (
    RunningStatistics,
    no_statistics,
    root_mean_square,
)


class ScaledState(eqx.Module, Generic[RewardState]):
    """State of `Scaled`."""

    reward: RewardState
    rewards: RunningStatistics


ScaledState.__init__.__doc__ = """**Arguments:**

- `reward`: the state of the reward inside.
- `rewards`: statistics of the rewards of all batches.
"""


class Scaled(AbstractReward[ScaledState[RewardState], Seen]):
    """A reward divided by its running root mean square.

    This puts rewards of different sizes on one scale, such as in a `Sum`. The mean is
    not subtracted. All batches so far count alike, so a reward that shrinks during
    training still shrinks.
    """

    inner: AbstractReward[RewardState, Seen]

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> ScaledState[RewardState]:
        return ScaledState(self.inner.init(spec, key=key), no_statistics(1))

    def observe(
        self, state: ScaledState[RewardState], transitions: Transition[Seen]
    ) -> ScaledState[RewardState]:
        return ScaledState(self.inner.observe(state.reward, transitions), state.rewards)

    def reward(
        self,
        state: ScaledState[RewardState],
        batch: Transition[Seen],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        reward = self.inner.reward(state.reward, batch, step=step, key=key)
        return reward / root_mean_square(state.rewards)

    def update(
        self,
        state: ScaledState[RewardState],
        batch: Transition[Seen],
        *,
        key: PRNGKeyArray,
    ) -> tuple[ScaledState[RewardState], Metrics]:
        # With the state from before the update, as `Intrinsic` scores the batch.
        score_key, update_key = jr.split(key)
        score = self.inner.reward(
            state.reward, batch, step=jnp.zeros((), int), key=score_key
        )
        updated = self.inner.update(state.reward, batch, key=update_key)
        inner, metrics = after_update(self.inner, state.reward, updated)
        return ScaledState(inner, state.rewards.update(score.reshape(-1, 1))), metrics


Scaled.__init__.__doc__ = """**Arguments:**

- `inner`: any reward. One that depends on the number of updates is scaled by the values
    that it would have if each update were the first.
"""
