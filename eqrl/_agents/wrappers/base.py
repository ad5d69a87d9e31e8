from abc import abstractmethod
from typing import Any

from ..._types.custom_types import Extras, Memory, State
from ..._types.data import Transition
from ..base import AbstractAgent, AnyAgent


class AbstractWrapper(AbstractAgent[State, Memory, Extras]):
    """An agent around another agent.

    What looks for something inside an agent, such as `eqrl.evaluate_skills` and
    `eqrl.fix_skill`, looks inside every wrapper, so also inside one of your own.
    """

    @property
    @abstractmethod
    def inner(self) -> AnyAgent:
        """The agent inside; the value of a field."""

    @abstractmethod
    def inner_state(self, state: State) -> Any:
        """The state of the agent inside: a part of `state`, or all of it.

        Raises a `ValueError` unless `state` is one of this wrapper.
        """

    @abstractmethod
    def inner_transitions(
        self, state: State, transitions: Transition[Extras]
    ) -> Transition[Any]:
        """Fresh transitions, with any leading axes, as the agent inside sees them."""


def check_state(wrapper: AnyAgent, state: object, expected: type) -> None:
    """Checks that `state` is of the `expected` class."""
    if not isinstance(state, expected):
        raise ValueError(
            f"`state` is a {type(state).__name__}, but the state of a "
            f"{type(wrapper).__name__} is a {expected.__name__}; give what this agent "
            "has learned, such as `solution.state`."
        )
