"""Interfaces of factories of networks."""

from typing import Protocol, TypeAlias, TypeVar, runtime_checkable

from jaxtyping import PRNGKeyArray

from .._types.custom_types import ActionValueFunction, CriticFunction
from ._critic import ValueFunction
from ._discriminator import SkillDiscriminator
from ._policy import Actor, ChoiceFunction, LikelihoodPolicy, StochasticPolicy


Network = TypeVar("Network", covariant=True)


@runtime_checkable
class MakeNetwork(Protocol[Network]):
    """A factory of networks: any callable with these arguments, by position.

    The first size is that of an observation or descriptor, the second that of an action
    or skill, or the number of actions.
    """

    def __call__(
        self, input_size: int, output_size: int, /, *, key: PRNGKeyArray
    ) -> Network:
        """One network with fresh weights."""
        ...


MakeActor: TypeAlias = MakeNetwork[Actor]
"""A factory `(observation_size, action_size, *, key)` of an actor without noise."""

MakePolicy: TypeAlias = MakeNetwork[StochasticPolicy]
"""A factory `(observation_size, action_size, *, key)` of a policy with a density."""

MakeLikelihoodPolicy: TypeAlias = MakeNetwork[LikelihoodPolicy]
"""A factory of a policy that knows how probable its actions are."""

MakeChoice: TypeAlias = MakeNetwork[ChoiceFunction]
"""A factory `(observation_size, num_actions, *, key)` of a policy over actions."""

MakeActionValues: TypeAlias = MakeNetwork[ActionValueFunction]
"""A factory `(observation_size, num_actions, *, key)` of the values of all actions."""

MakeCritic: TypeAlias = MakeNetwork[CriticFunction]
"""A factory `(observation_size, action_size, *, key)` of one critic."""

MakeDiscriminator: TypeAlias = MakeNetwork[SkillDiscriminator]
"""A factory `(descriptor_size, skill_size, *, key)` of a discriminator of skills."""


@runtime_checkable
class MakeTrajectoryCritic(Protocol):
    """A factory of critics that take a trajectory in place of an action."""

    def __call__(
        self,
        observation_size: int,
        action_size: int,
        /,
        *,
        trajectory_size: int,
        reward_size: int | None,
        key: PRNGKeyArray,
    ) -> CriticFunction:
        """One critic with fresh weights.

        Its second argument is a vector of `trajectory_size`, its value a vector of
        `reward_size`, or a scalar if that is `None`.
        """
        ...


@runtime_checkable
class MakeValue(Protocol):
    """A factory of critics that value observations."""

    def __call__(self, observation_size: int, /, *, key: PRNGKeyArray) -> ValueFunction:
        """One critic with fresh weights."""
        ...
