from abc import abstractmethod
from typing import Protocol, TypeVar, runtime_checkable

import equinox as eqx
from jaxtyping import Array, Float, Int

from .._types.custom_types import ActionValueFunction
from .._types.data import Transition
from ..nn import EpsilonGreedy, Policy
from .base import AbstractMemorylessAgent
from .schedules import count_steps


@runtime_checkable
class _ValueState(Protocol):
    """The state of an agent that values actions and counts the steps it observes."""

    @property
    def network(self) -> ActionValueFunction: ...

    @property
    def num_steps(self) -> Int[Array, ""]: ...


ValueState = TypeVar("ValueState", bound=_ValueState)


class AbstractEpsilonGreedyAgent(AbstractMemorylessAgent[ValueState]):
    """An agent that takes the action it values most, or with a probability any."""

    @abstractmethod
    def epsilon(self, state: ValueState) -> Float[Array, ""]:
        """The probability of a random action in training, in [0, 1]."""

    def policy(self, state: ValueState) -> Policy:
        return lambda observation: EpsilonGreedy(
            values=state.network(observation), epsilon=self.epsilon(state)
        )

    def observe(self, state: ValueState, transitions: Transition[None]) -> ValueState:
        num_steps = count_steps(state.num_steps, transitions)
        return eqx.tree_at(lambda x: x.num_steps, state, num_steps)
