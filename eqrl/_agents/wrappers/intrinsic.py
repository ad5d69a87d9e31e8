import dataclasses
from typing import Any, Generic

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._pytree.fields import check_range, hyperparameter
from ..._rewards import AbstractReward
from ..._types.custom_types import (
    Extras,
    FloatLike,
    Memory,
    Metrics,
    Mode,
    RewardState,
    State,
)
from ..._types.data import EnvSpec, Transition
from ..base import AbstractAgent


class IntrinsicState(eqx.Module, Generic[State, RewardState]):
    """What `Intrinsic` learns: its agent's state and its reward's."""

    agent: State
    reward: RewardState


class Intrinsic(AbstractAgent[IntrinsicState[State, RewardState], Memory, Extras]):
    """Any agent, learning from a reward that is itself learnt.

    Each batch is scored by the reward as it was before the update; then reward and
    agent learn from it. The replay holds the environment's rewards, so that a batch is
    always scored by the reward of the moment. The agent is promised a scalar reward,
    whatever the environment gives.
    """

    agent: AbstractAgent[State, Memory, Extras]
    reward: AbstractReward[RewardState]
    environment_weight: FloatLike | None = hyperparameter(None)

    def __check_init__(self) -> None:
        check_range("environment_weight", self.environment_weight, optional=True)

    @property
    def sequence_length(self) -> int:
        return self.agent.sequence_length

    def init(
        self, spec: EnvSpec, *, key: PRNGKeyArray
    ) -> IntrinsicState[State, RewardState]:
        if self.environment_weight is not None and spec.reward_size is not None:
            raise ValueError(
                "`environment_weight` adds the environment's reward to the intrinsic "
                f"one, a scalar, but `spec.reward_size={spec.reward_size}`: it is a "
                "vector. Make it a scalar in the environment, or leave "
                "`environment_weight` out, which replaces it."
            )
        agent_key, reward_key = jr.split(key)
        return IntrinsicState(
            agent=self.agent.init(_with_scalar_reward(spec), key=agent_key),
            reward=self.reward.init(spec, key=reward_key),
        )

    def begin(
        self,
        state: IntrinsicState[State, RewardState],
        spec: EnvSpec,
        *,
        index: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Memory:
        spec = _with_scalar_reward(spec)
        return self.agent.begin(state.agent, spec, index=index, key=key)

    def act(
        self,
        state: IntrinsicState[State, RewardState],
        memory: Memory,
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], Memory, Extras]:
        return self.agent.act(state.agent, memory, observation, mode=mode, key=key)

    def observe(
        self,
        state: IntrinsicState[State, RewardState],
        transitions: Transition[Extras],
    ) -> IntrinsicState[State, RewardState]:
        # Fresh transitions have no intrinsic reward: it changes until they are learnt
        # from.
        known = self._total(jnp.zeros(transitions.timestep.shape), transitions)
        return IntrinsicState(
            agent=self.agent.observe(
                state.agent, dataclasses.replace(transitions, reward=known)
            ),
            reward=self.reward.observe(state.reward, transitions),
        )

    def update(
        self,
        state: IntrinsicState[State, RewardState],
        batch: Transition[Extras],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[IntrinsicState[State, RewardState], Metrics]:
        score_key, reward_key, agent_key = jr.split(key, 3)
        reward = self.reward.reward(state.reward, batch, step=step, key=score_key)
        reward_state, reward_metrics = self.reward.update(
            state.reward, batch, key=reward_key
        )
        agent_state, agent_metrics = self.agent.update(
            state.agent,
            dataclasses.replace(batch, reward=self._total(reward, batch)),
            step=step,
            key=agent_key,
        )
        state = IntrinsicState(agent=agent_state, reward=reward_state)
        intrinsic = {"intrinsic_reward": jnp.mean(reward)}
        return state, agent_metrics | reward_metrics | intrinsic

    def _total(
        self, reward: Float[Array, "*batch"], transitions: Transition[Extras]
    ) -> Float[Array, "*batch"]:
        if self.environment_weight is None:
            return reward
        return reward + self.environment_weight * transitions.reward


Intrinsic.__init__.__doc__ = """**Arguments:**

- `agent`: any agent that learns from a scalar reward.
- `reward`: such as `eqrl.Discriminator`.
- `environment_weight`: what the environment's reward is multiplied by before it is
    added; `None` replaces it.
"""

AnyIntrinsic = Intrinsic[Any, Any, Any, Any]
"""An `Intrinsic` around any agent, with any reward."""


def _with_scalar_reward(spec: EnvSpec) -> EnvSpec:
    return dataclasses.replace(spec, reward_size=None)
