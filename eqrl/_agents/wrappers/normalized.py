import dataclasses
from typing import Generic

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._types.custom_types import Extras, Memory, Metrics, Mode, State
from ..._types.data import EnvSpec, Transition
from ..base import AbstractAgent


# Of the variance: an observation that never changes is divided by its square root.
_EPSILON = 1e-8


class RunningStatistics(eqx.Module):
    """Mean and spread of all observations so far."""

    count: Float[Array, ""]
    mean: Float[Array, " obs"]
    summed_squares: Float[Array, " obs"]

    def normalize(
        self, observation: Float[Array, "*batch obs"]
    ) -> Float[Array, "*batch obs"]:
        """Shifts and scales `observation` to mean zero and deviation one."""
        shape = (1,) * (observation.ndim - 1) + self.mean.shape
        scale = jnp.sqrt(self.variance() + _EPSILON)
        return (observation - self.mean.reshape(shape)) / scale.reshape(shape)

    def variance(self) -> Float[Array, " obs"]:
        """Of each element; one before anything has been seen."""
        return jnp.where(
            self.count > 0, self.summed_squares / jnp.maximum(self.count, 1), 1
        )

    def update(self, observation: Float[Array, "batch obs"]) -> "RunningStatistics":
        """With a batch of fresh observations added."""
        # Chan et al.'s combination of two samples, which does not cancel where the
        # mean is large beside the spread.
        size = float(observation.shape[0])
        batch_mean = jnp.mean(observation, axis=0)
        batch_squares = jnp.sum((observation - batch_mean[None]) ** 2, axis=0)
        count = self.count + size
        shift = batch_mean - self.mean
        return RunningStatistics(
            count=count,
            mean=self.mean + shift * (size / count),
            summed_squares=self.summed_squares
            + batch_squares
            + shift**2 * (self.count * size / count),
        )


class NormalizedState(eqx.Module, Generic[State]):
    """What `Normalized` learns: its agent's state and statistics."""

    agent: State
    statistics: RunningStatistics


class Normalized(AbstractAgent[NormalizedState[State], Memory, Extras]):
    """Any agent, on observations shifted and scaled to mean zero and deviation one.

    The statistics are those of every state acted in during training, the random phase
    included. The replay holds observations as the environment gave them, so a batch is
    always normalized by the statistics of the moment. Evaluation does not move them.
    """

    agent: AbstractAgent[State, Memory, Extras]

    @property
    def sequence_length(self) -> int:
        return self.agent.sequence_length

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> NormalizedState[State]:
        statistics = RunningStatistics(
            count=jnp.zeros(()),
            mean=jnp.zeros(spec.observation_size),
            summed_squares=jnp.zeros(spec.observation_size),
        )
        return NormalizedState(
            agent=self.agent.init(spec, key=key), statistics=statistics
        )

    def begin(
        self,
        state: NormalizedState[State],
        spec: EnvSpec,
        *,
        index: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Memory:
        return self.agent.begin(state.agent, spec, index=index, key=key)

    def act(
        self,
        state: NormalizedState[State],
        memory: Memory,
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], Memory, Extras]:
        normalized = state.statistics.normalize(observation)
        return self.agent.act(state.agent, memory, normalized, mode=mode, key=key)

    def observe(
        self, state: NormalizedState[State], transitions: Transition[Extras]
    ) -> NormalizedState[State]:
        statistics = state.statistics.update(transitions.observation)
        return NormalizedState(
            agent=self.agent.observe(
                state.agent, normalize_transitions(statistics, transitions)
            ),
            statistics=statistics,
        )

    def update(
        self,
        state: NormalizedState[State],
        batch: Transition[Extras],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[NormalizedState[State], Metrics]:
        agent_state, metrics = self.agent.update(
            state.agent,
            normalize_transitions(state.statistics, batch),
            step=step,
            key=key,
        )
        metrics = metrics | {
            "observation_mean": jnp.mean(state.statistics.mean),
            "observation_std": jnp.mean(jnp.sqrt(state.statistics.variance())),
        }
        return NormalizedState(agent=agent_state, statistics=state.statistics), metrics


Normalized.__init__.__doc__ = """**Arguments:**

- `agent`: any agent.
"""


def normalize_transitions(
    statistics: RunningStatistics, transitions: Transition[Extras]
) -> Transition[Extras]:
    """Transitions as an agent inside a `Normalized` is given them."""
    return dataclasses.replace(
        transitions,
        observation=statistics.normalize(transitions.observation),
        next_observation=statistics.normalize(transitions.next_observation),
    )
