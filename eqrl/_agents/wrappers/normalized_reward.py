import dataclasses
from typing import Generic

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._pytree.fields import check_fields, hyperparameter
from ..._rewards.base import after_update
from ..._types.custom_types import Extras, FloatLike, Memory, Metrics, Mode, State
from ..._types.data import EnvSpec, Transition
from ..._types.spaces import Action
from ..base import AbstractAgent
from .base import AbstractWrapper, check_state
from .normalized import RunningStatistics


# Added to the mean square, which is 0 until the first reward that is not.
_EPSILON = 1e-8


class NormalizedRewardState(eqx.Module, Generic[State]):
    """State of `NormalizedReward`: its agent's state and the statistics of rewards."""

    agent: State
    statistics: RunningStatistics


class NormalizedReward(AbstractWrapper[NormalizedRewardState[State], Memory, Extras]):
    """An agent whose rewards are divided by their running root mean square.

    Rewards are only scaled: to subtract their mean would change what is best wherever
    an episode may end. Each dimension of a vector of rewards has a scale of its own.
    The replay holds the environment's own rewards, so a batch is always divided by the
    current scale, and so are old rewards in it; what is reported of episodes is not.

    Stable-Baselines' `VecNormalize`, and many implementations of PPO, divide by the
    standard deviation of the discounted return so far instead, at the moment at which a
    reward is given. In a replay that leaves rewards in the units of when they were
    stored, and a return is that of one environment, of which an agent does not know
    here: it learns from single transitions, also of data sets. Rewards that are all
    alike then have returns of up to `1 / (1 - discount)`; the agent's `reward_scale`
    makes them smaller.
    """

    agent: AbstractAgent[State, Memory, Extras]
    clip: FloatLike = hyperparameter(10.0, low=0, low_open=True)

    def __check_init__(self) -> None:
        check_fields(self)

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
        scale = _root_mean_square(state.statistics)
        if reward.ndim == transitions.timestep.ndim:
            scale = scale.reshape(())
        else:
            scale = scale.reshape(*(1,) * (reward.ndim - 1), -1)
        return dataclasses.replace(
            transitions, reward=jnp.clip(reward / scale, -self.clip, self.clip)
        )

    @property
    def sequence_length(self) -> int | None:
        return self.agent.sequence_length

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> NormalizedRewardState[State]:
        size = 1 if spec.reward_size is None else spec.reward_size
        statistics = RunningStatistics(
            count=jnp.zeros(()), mean=jnp.zeros(size), summed_squares=jnp.zeros(size)
        )
        return NormalizedRewardState(
            agent=self.agent.init(spec, key=key), statistics=statistics
        )

    def begin(
        self,
        state: NormalizedRewardState[State],
        spec: EnvSpec,
        *,
        index: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Memory:
        return self.agent.begin(state.agent, spec, index=index, key=key)

    def act(
        self,
        state: NormalizedRewardState[State],
        memory: Memory,
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Action, Memory, Extras]:
        return self.agent.act(state.agent, memory, observation, mode=mode, key=key)

    def observe(
        self, state: NormalizedRewardState[State], transitions: Transition[Extras]
    ) -> NormalizedRewardState[State]:
        # The agent sees these transitions scaled with themselves counted.
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
        scale = jnp.mean(_root_mean_square(state.statistics))
        return (
            NormalizedRewardState(agent=agent_state, statistics=state.statistics),
            metrics | {"reward_root_mean_square": scale},
        )


def _root_mean_square(statistics: RunningStatistics) -> Float[Array, " reward"]:
    """Of each dimension; one before the first reward."""
    return jnp.sqrt(statistics.variance() + statistics.mean**2 + _EPSILON)


NormalizedReward.__init__.__doc__ = """**Arguments:**

- `agent`: any agent. One that makes rewards of its own, such as `eqrl.Intrinsic`, has
    the environment's rewards scaled.
- `clip`: largest absolute value of a scaled reward, more than 0. A reward that is rare
    is far larger than the mean.
"""
