from abc import abstractmethod
from typing import Any, Generic, TypeAlias

import equinox as eqx
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import shown
from .._pytree.show import show_values
from .._pytree.tree import check_kept
from .._types.custom_types import Metrics, RewardState, Seen, State
from .._types.data import EnvSpec, Transition


class AbstractReward(eqx.Module, Generic[RewardState, Seen]):
    """A reward that is computed by the agent rather than given by the environment.

    The reward holds hyperparameters only; all that it learns is in its state.
    `Intrinsic` trains an agent on it, of which the extras are those that it needs;
    `AbstractReward[State]` needs none.
    """

    def __repr__(self) -> str:
        return show_values(self)

    @abstractmethod
    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> RewardState:
        """The initial state.

        Raises a `ValueError` unless the reward fits the environment.
        """

    @abstractmethod
    def observe(self, state: RewardState, transitions: Transition[Seen]) -> RewardState:
        """The state after new transitions, with one leading axis, each seen once."""

    @abstractmethod
    def reward(
        self,
        state: RewardState,
        batch: Transition[Seen],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        """The reward of each transition of a batch.

        **Arguments:**

        - `state`: from `init`, `observe` or `update`.
        - `batch`: with any leading axes.
        - `step`: the number of updates made before this one, never batched.
        - `key`: for random draws.
        """

    @abstractmethod
    def update(
        self, state: RewardState, batch: Transition[Seen], *, key: PRNGKeyArray
    ) -> tuple[RewardState, Metrics]:
        """One update on a batch, with any leading axes.

        **Returns:**

        The state after the update, and metrics with the same names at each call.
        """


AnyReward: TypeAlias = AbstractReward[Any, Any]
"""Any reward; what its state holds is not known."""


def after_update(
    learner: eqx.Module, state: State, updated: object
) -> tuple[State, dict[str, Any]]:
    """The state and the metrics that `update` of an agent or a reward gives.

    Raises a `ValueError` unless it gives these two, and a state like the one before.
    """
    name = type(learner).__name__
    if isinstance(updated, tuple) and len(updated) == 2:
        after, metrics = updated
        if isinstance(metrics, dict):
            what = f"`update` of {name} gives another state"
            check_kept(what, state, after, source="init")
            return after, metrics
    raise ValueError(
        f"`update` of {name} gives "
        f"{shown(eqx.tree_pformat(updated, short_arrays=True))}; it must give the "
        "state after the update and a dictionary of metrics, as `return state, {}`."
    )
