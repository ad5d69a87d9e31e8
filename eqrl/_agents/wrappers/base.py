import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import TypeVar

import jax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._types.custom_types import Extras, Memory, Mode, PyTree, State
from ..._types.data import Action, AnyTransition, EnvSpec, Transition
from ..base import AbstractAgent, AnyAgent


Part = TypeVar("Part")


class AbstractWrapper(AbstractAgent[State, Memory, Extras]):
    """An agent around another agent.

    Its batches have the same axes as the inner agent's. Functions that look for
    something inside an agent, such as `eqrl.evaluate_skills` and `eqrl.fix_skill`, look
    inside every wrapper, including a custom one.
    """

    @property
    @abstractmethod
    def inner(self) -> AnyAgent:
        """The agent inside; the value of a field."""

    @abstractmethod
    def inner_state(self, state: State) -> PyTree:
        """The state of the agent inside: a part of `state`, or all of it.

        Raises a `ValueError` unless `state` is one of this wrapper.
        """

    @abstractmethod
    def inner_transitions(
        self, state: State, transitions: Transition[Extras]
    ) -> AnyTransition:
        """Fresh transitions, with any leading axes, as the agent inside sees them."""

    @property
    def sequence_length(self) -> int | None:
        return self.inner.sequence_length


class AbstractViewWrapper(AbstractWrapper[State, Memory, Extras]):
    """A wrapper that changes only how the agent inside sees the environment.

    Memory, actions and extras are the inner agent's.
    """

    @abstractmethod
    def inner_spec(self, spec: EnvSpec) -> EnvSpec:
        """The `spec` of the environment as the agent inside sees it."""

    @abstractmethod
    def inner_observation(
        self, state: State, observation: Float[Array, "*batch obs"]
    ) -> Float[Array, "*batch inner_obs"]:
        """Observations, with any leading axes, as the agent inside sees them."""

    def begin(
        self, state: State, spec: EnvSpec, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> Memory:
        return self.inner.begin(
            self.inner_state(state), self.inner_spec(spec), index=index, key=key
        )

    def act(
        self,
        state: State,
        memory: Memory,
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Action, Memory, Extras]:
        seen = self.inner_observation(state, observation)
        return self.inner.act(self.inner_state(state), memory, seen, mode=mode, key=key)


def view_of(transitions: AnyTransition, see: Callable[[Array], Array]) -> AnyTransition:
    """Transitions whose two observations are replaced by what `see` makes of them."""
    return dataclasses.replace(
        transitions,
        observation=see(transitions.observation),
        next_observation=see(transitions.next_observation),
    )


def layers(agent: AnyAgent) -> Iterator[AnyAgent]:
    """An agent and those inside it, from the outermost to the innermost."""
    yield agent
    while isinstance(agent, AbstractWrapper):
        agent = agent.inner
        yield agent


def parts(tree: PyTree, kind: type[Part]) -> list[Part]:
    """All parts of a pytree that are of one kind, such as wrappers in an agent."""
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kind))
    return [leaf for leaf in leaves if isinstance(leaf, kind)]


def check_state(wrapper: AnyAgent, state: object, expected: type) -> None:
    """Checks that `state` is of the `expected` class."""
    if not isinstance(state, expected):
        raise ValueError(
            f"`state` is a {type(state).__name__}, but the state of a "
            f"{type(wrapper).__name__} is a {expected.__name__}; give what this agent "
            "has learned, such as `solution.state`."
        )
