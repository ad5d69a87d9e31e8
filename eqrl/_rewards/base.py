from abc import abstractmethod
from typing import Any, Generic, TypeAlias

import equinox as eqx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._types.custom_types import Metrics, RewardState
from .._types.data import EnvSpec, Transition


class AbstractReward(eqx.Module, Generic[RewardState]):
    """A reward that is learnt rather than given by the environment.

    It holds hyperparameters only; what it learns is in its state. `Intrinsic` gives it
    to an agent.
    """

    @abstractmethod
    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> RewardState:
        """A state which has learnt nothing.

        Raises a `ValueError` where the reward does not fit the environment.
        """

    @abstractmethod
    def observe(self, state: RewardState, transitions: Transition[Any]) -> RewardState:
        """Takes note of fresh transitions, with one leading axis, each seen once."""

    @abstractmethod
    def reward(
        self,
        state: RewardState,
        batch: Transition[Any],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        """What each transition of a batch is worth.

        **Arguments:**

        - `state`: what has been learnt.
        - `batch`: with any leading axes.
        - `step`: the number of updates made before this one, never batched.
        - `key`: for whatever is drawn.
        """

    @abstractmethod
    def update(
        self, state: RewardState, batch: Transition[Any], *, key: PRNGKeyArray
    ) -> tuple[RewardState, Metrics]:
        """Learns from one batch, with any leading axes.

        **Returns:**

        The state after the update, and metrics with the same names at each call.
        """


AnyReward: TypeAlias = AbstractReward[Any]
"""A reward of which nothing is known but the protocol."""
