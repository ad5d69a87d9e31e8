import dataclasses
from typing import Generic

import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._pytree.fields import hyperparameter
from ..._rewards.base import after_update
from ..._rewards.running_statistics import RunningStatistics, no_statistics
from ..._types.custom_types import (
    Extras,
    FloatLike,
    Memory,
    Metrics,
    Observation,
    State,
)
from ..._types.data import EnvSpec, Transition
from ..base import AbstractAgent, AbstractViewWrapper, check_state, view_of


class NormalizedState(eqx.Module, Generic[State]):
    """State of `Normalized`: its agent's state and the statistics."""

    agent: State
    statistics: RunningStatistics
    critic_statistics: RunningStatistics | None = None


NormalizedState.__init__.__doc__ = """**Arguments:**

- `agent`: the state of the agent.
- `statistics`: running statistics of the observations.
- `critic_statistics`: those of the observations of critics, if there are any.
"""


class Normalized(AbstractViewWrapper[NormalizedState[State], Memory, Extras]):
    """An agent that sees observations normalized by their running mean and variance.

    The statistics are those of every state acted in during training, including the
    random warm-up. Separate observations of critics, if the environment gives them,
    have their own statistics. The replay holds the environment's own observations, so a
    batch is always normalized by the current statistics. Evaluation does not change
    them.

    Observations of `uint8` or `bool`, such as images, are left as they are. It belongs
    around a `SkillConditioned` agent: inside, it would normalize the skill too, and
    images, which are floats beside a skill.

    The metrics are those of the agent, and `observation_mean` and `observation_std`,
    means over the elements, or 0 and 1 for what is left as it is.
    """

    agent: AbstractAgent[State, Memory, Extras]
    clip: FloatLike | None = hyperparameter(None, low=0, low_open=True)

    @property
    def inner(self) -> AbstractAgent[State, Memory, Extras]:
        return self.agent

    def inner_state(self, state: NormalizedState[State]) -> State:
        check_state(self, state, NormalizedState)
        return state.agent

    def inner_transitions(
        self, state: NormalizedState[State], transitions: Transition[Extras]
    ) -> Transition[Extras]:
        return view_of(
            transitions,
            lambda x: self.inner_observation(state, x),
            lambda x: self._normalize(state.critic_statistics, x),
        )

    def inner_spec(self, spec: EnvSpec) -> EnvSpec:
        return spec

    def inner_observation(
        self,
        state: NormalizedState[State],
        observation: Observation[Array, "*batch obs"],
    ) -> Observation[Array, "*batch obs"]:
        return self._normalize(state.statistics, observation)

    def _normalize(
        self,
        statistics: RunningStatistics | None,
        observation: Observation[Array, "*batch obs"],
    ) -> Observation[Array, "*batch obs"]:
        if statistics is None or not _is_normalized(observation):
            return observation
        normalized = statistics.normalize(observation)
        if self.clip is None:
            return normalized
        return jnp.clip(normalized, -self.clip, self.clip)

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> NormalizedState[State]:
        critic_size = spec.critic_observation_size
        return NormalizedState(
            agent=self.agent.init(spec, key=key),
            statistics=no_statistics(spec.observation_size),
            critic_statistics=None
            if critic_size is None
            else no_statistics(critic_size),
        )

    def observe(
        self, state: NormalizedState[State], transitions: Transition[Extras]
    ) -> NormalizedState[State]:
        # Counted before they are normalized, so that the first have statistics, too.
        statistics = state.statistics
        if _is_normalized(transitions.observation):
            statistics = statistics.update(transitions.observation)
        critic_statistics = state.critic_statistics
        seen = transitions.critic_observation
        if critic_statistics is not None and seen is not None:
            critic_statistics = critic_statistics.update(seen)
        state = NormalizedState(state.agent, statistics, critic_statistics)
        agent_state = self.agent.observe(
            state.agent, self.inner_transitions(state, transitions)
        )
        return dataclasses.replace(state, agent=agent_state)

    def update(
        self,
        state: NormalizedState[State],
        batch: Transition[Extras],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[NormalizedState[State], Metrics]:
        inner_batch = self.inner_transitions(state, batch)
        updated = self.agent.update(state.agent, inner_batch, step=step, key=key)
        agent_state, metrics = after_update(self.agent, state.agent, updated)
        metrics = metrics | {
            "observation_mean": jnp.mean(state.statistics.mean),
            "observation_std": jnp.mean(jnp.sqrt(state.statistics.variance())),
        }
        # Batches change no statistics: the replay gives the same transition many times.
        return dataclasses.replace(state, agent=agent_state), metrics


def _is_normalized(observation: Observation[Array, "*batch obs"]) -> bool:
    # Networks scale images themselves, all elements alike.
    return jnp.issubdtype(observation.dtype, jnp.floating)


Normalized.__init__.__doc__ = """**Arguments:**

- `agent`: any agent.
- `clip`: largest absolute value of a normalized element, more than 0; `None` for no
    bound. An element with little variance so far can become very large.
"""


class NormalizedRewardState(eqx.Module, Generic[State]):
    """State of `NormalizedReward`: its agent's state and the statistics of rewards."""

    agent: State
    statistics: RunningStatistics


NormalizedRewardState.__init__.__doc__ = """**Arguments:**

- `agent`: the state of the agent.
- `statistics`: running statistics of the rewards.
"""


class NormalizedReward(
    AbstractViewWrapper[NormalizedRewardState[State], Memory, Extras]
):
    """An agent whose rewards are divided by their running root mean square.

    By default rewards are only scaled: subtracting their mean changes which policy is
    best wherever an episode may end. With `subtract_mean` they are shifted by their
    running mean and divided by their standard deviation, as in the experiments of
    `eqrl.TAAC`'s paper. Each dimension of a vector of rewards has its own mean and
    scale. The replay holds the environment's own rewards, so a batch, with its old
    rewards, is always divided by the current scale. Reported returns are not scaled.

    Stable-Baselines' `VecNormalize`, and many implementations of PPO, divide a reward
    by the standard deviation of the discounted return so far, when it is received. In a
    replay, rewards would then keep the scale from when they were stored. Moreover, a
    return belongs to one environment, while agents here learn from single transitions,
    including those of data sets. With the scale used here, constant rewards have
    returns of up to `1 / (1 - discount)`; the agent's `reward_scale` can reduce them.

    The metrics are those of the agent, and the scale: `reward_root_mean_square`, or
    with `subtract_mean` `reward_std`.
    """

    agent: AbstractAgent[State, Memory, Extras]
    clip: FloatLike = hyperparameter(10.0, low=0, low_open=True)
    subtract_mean: bool = eqx.field(default=False, static=True)

    @property
    def inner(self) -> AbstractAgent[State, Memory, Extras]:
        return self.agent

    def inner_state(self, state: NormalizedRewardState[State]) -> State:
        check_state(self, state, NormalizedRewardState)
        return state.agent

    def inner_transitions(
        self, state: NormalizedRewardState[State], transitions: Transition[Extras]
    ) -> Transition[Extras]:
        reward = transitions.reward
        # A scalar reward has no axis of its own.
        is_scalar = reward.ndim == transitions.timestep.ndim
        shape = () if is_scalar else (*(1,) * (reward.ndim - 1), -1)
        if self.subtract_mean:
            reward = reward - state.statistics.mean.reshape(shape)
        # A product, as in `RunningStatistics.normalize`.
        inverse = lax.rsqrt(self._square(state.statistics)).reshape(shape)
        return dataclasses.replace(
            transitions, reward=jnp.clip(reward * inverse, -self.clip, self.clip)
        )

    def _square(self, statistics: RunningStatistics) -> Float[Array, " reward"]:
        """Square of the scale of each dimension; one before the first reward."""
        # The mean of squares is the variance plus the square of the mean. If the mean
        # is subtracted, a small share of it stays: equal rewards differ by rounding.
        share = 1e-12 if self.subtract_mean else 1.0
        square = statistics.variance() + share * statistics.mean**2
        # While all rewards were 0, there is no scale yet.
        return jnp.where(square == 0, 1, square)

    def inner_spec(self, spec: EnvSpec) -> EnvSpec:
        return spec

    def inner_observation(
        self,
        state: NormalizedRewardState[State],
        observation: Observation[Array, "*batch obs"],
    ) -> Observation[Array, "*batch obs"]:
        del state
        return observation

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> NormalizedRewardState[State]:
        return NormalizedRewardState(
            agent=self.agent.init(spec, key=key),
            statistics=no_statistics(spec.reward_size or 1),
        )

    def observe(
        self, state: NormalizedRewardState[State], transitions: Transition[Extras]
    ) -> NormalizedRewardState[State]:
        # Counted before they are scaled, so that the first have statistics, too.
        reward = transitions.reward.reshape(transitions.reward.shape[0], -1)
        statistics = state.statistics.update(reward)
        state = NormalizedRewardState(agent=state.agent, statistics=statistics)
        agent_state = self.agent.observe(
            state.agent, self.inner_transitions(state, transitions)
        )
        return NormalizedRewardState(agent=agent_state, statistics=statistics)

    def update(
        self,
        state: NormalizedRewardState[State],
        batch: Transition[Extras],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[NormalizedRewardState[State], Metrics]:
        updated = self.agent.update(
            state.agent, self.inner_transitions(state, batch), step=step, key=key
        )
        agent_state, metrics = after_update(self.agent, state.agent, updated)
        scale = jnp.mean(jnp.sqrt(self._square(state.statistics)))
        name = "reward_std" if self.subtract_mean else "reward_root_mean_square"
        return (
            NormalizedRewardState(agent=agent_state, statistics=state.statistics),
            metrics | {name: scale},
        )


NormalizedReward.__init__.__doc__ = """**Arguments:**

- `agent`: any agent. For one with its own reward, such as `eqrl.Intrinsic`, only the
    environment's rewards are scaled.
- `clip`: largest absolute value of a scaled reward, more than 0. Rare rewards can
    far exceed the root mean square.
- `subtract_mean`: whether the running mean is subtracted first, and the rest divided by
    the standard deviation. If episodes can end early, this rewards or punishes
    survival: a constant reward then becomes worthless.
"""
