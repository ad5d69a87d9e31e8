import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Protocol,
    Self,
    TypeAlias,
    get_args,
    runtime_checkable,
)

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray
from typing_extensions import TypeVar

from .._pytree.fields import check_arity, check_choice, check_fields, shown
from .._pytree.tree import check_kept, described, show_values
from .._types.custom_types import (
    ActionValueFunction,
    Extras,
    FloatLike,
    Memory,
    Metrics,
    Mode,
    Observation,
    PyTree,
    State,
)
from .._types.data import Action, AnyTransition, EnvSpec, Transition
from ..nn import AbstractDistribution, EpsilonGreedy, Policy


class AbstractAgent(eqx.Module, Generic[State, Memory, Extras]):
    """An algorithm: how to act and how to learn, as pure functions of a state.

    The agent holds hyperparameters only, and its state holds all that it learns. Its
    memory is carried from step to step within an episode, and its extras are stored
    with each transition; most agents have neither and use `None`.
    """

    if TYPE_CHECKING:
        # `AgentOfKind` infers the class from it.
        def _of_same_kind(self) -> Self: ...

    def __check_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        return show_values(self)

    @property
    @abstractmethod
    def sequence_length(self) -> int | None:
        """Number of consecutive steps in each element of a batch.

        If it is 1, the leading axes of a batch are `(batch,)`, otherwise
        `(batch, time)`. `None` means on-policy learning: a batch is all the steps of an
        iteration, each once and in order, with the axes `(envs, time)`.
        """

    @abstractmethod
    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> State:
        """The initial state, with finite numbers only.

        Raises a `ValueError` if the agent does not fit the environment.
        """

    @abstractmethod
    def begin(
        self, state: State, spec: EnvSpec, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> Memory:
        """The memory at the beginning of an episode.

        **Arguments:**

        - `state`: from `init`, `observe` or `update`.
        - `spec`: of the environment.
        - `index`: the index of the environment among those stepped together.
        - `key`: for random draws that are made once per episode.
        """

    @abstractmethod
    def act(
        self,
        state: State,
        memory: Memory,
        observation: Observation[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Action, Memory, Extras]:
        """Picks an action for one environment.

        **Arguments:**

        - `state`: from `init`, `observe` or `update`.
        - `memory`: from `begin`, or from the previous step of this episode.
        - `observation`: of the current state of the environment.
        - `mode`: `"random"` for exploration before the first update, `"sample"` in
            training, `"greedy"` in evaluation.
        - `key`: for the action.

        **Returns:**

        The action, out of `spec.action`; the memory for the next step; and the extras
        to store. If `state` has become nan, a vector action must be nan, too, which
        ends training. A discrete action cannot be nan; divergence then shows in the
        metrics, or in the state, which is checked after each row.
        """

    @abstractmethod
    def observe(self, state: State, transitions: Transition[Extras]) -> State:
        """The state after new transitions, with one leading axis, each seen once."""

    @abstractmethod
    def update(
        self,
        state: State,
        batch: Transition[Extras],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[State, Metrics]:
        """One update on a batch.

        **Arguments:**

        - `state`: from `init`, `observe` or `update`.
        - `batch`: from the replay; see `sequence_length` for its leading axes.
        - `step`: the number of updates made before this one, an integer scalar. It is
            never batched, so it may be the condition of a `jax.lax.cond`.
        - `key`: for random draws.

        **Returns:**

        The state after the update, and metrics with the same names at each call, in the
        order of computation. A metric is `nan` in an update that does not compute it.
        An infinite one ends training, and so does a state that is not finite.
        """


# A function that takes an `AgentOfKind` can return both the agent's class and that of
# its state; an `AbstractAgent[State, Memory, Extras]` reveals only the latter.
if TYPE_CHECKING:
    AgentState = TypeVar("AgentState", covariant=True)
    Agent = TypeVar("Agent", covariant=True)

    class AgentOfKind(Protocol[AgentState, Agent]):
        """Any agent; its class and that of its state are inferred."""

        def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> AgentState: ...

        def _of_same_kind(self) -> Agent: ...
else:
    AgentOfKind = AbstractAgent


AnyAgent: TypeAlias = AbstractAgent[Any, Any, Any]
"""Any agent; the types of its state, memory and extras are unknown."""


def after_observe(agent: AnyAgent, state: State, observed: State) -> State:
    """`observed`, checked to have the structure of the state before `observe`."""
    what = f"`observe` of {type(agent).__name__} gives another state"
    check_kept(what, state, observed, source="init")
    return observed


def after_act(
    agent: AnyAgent, memory: Memory, chosen: object
) -> tuple[PyTree, Memory, PyTree]:
    """`chosen`, checked to be these three, with a memory structured like the last."""
    name = type(agent).__name__
    # Unpacking another length would fail within a compiled loop, with an error that
    # does not name the agent.
    if not isinstance(chosen, tuple) or len(chosen) != 3:
        raise ValueError(
            f"`act` of {name} gives "
            f"{shown(eqx.tree_pformat(chosen, short_arrays=True))}; it must give the "
            "action, the memory and the extras, as `return action, None, None`."
        )
    what = f"`act` of {name} gives another memory"
    check_kept(what, memory, chosen[1], source="begin")
    for leaf in jax.tree.leaves(chosen[2]):
        if type(leaf) in (bool, int, float, complex):
            raise ValueError(
                f"`act` of {name} gives {leaf!r} in its extras, which must be arrays, "
                f"such as `jnp.asarray({leaf!r})`."
            )
    return chosen


class AbstractMemorylessAgent(AbstractAgent[State, None, None]):
    """An agent whose actions depend on the current observation only.

    It has no memory and no extras.
    """

    @abstractmethod
    def policy(self, state: State) -> Policy:
        """The policy to act with, such as an `eqrl.nn.AbstractPolicy`."""

    def begin(
        self, state: State, spec: EnvSpec, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> None:
        del state, spec, index, key
        return None

    def act(
        self,
        state: State,
        memory: None,
        observation: Observation[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Action, None, None]:
        del memory
        policy = self.policy(state)
        check_arity(f"{type(self).__name__}.policy(...)", policy, "observation")
        action = pick_action(policy(observation), mode=mode, key=key)
        return action, None, None


class AbstractMarkovAgent(AbstractMemorylessAgent[State]):
    """An agent whose actions depend on the current observation only.

    It has no memory and no extras, and learns from batches of single transitions. A
    subclass implements `init`, `policy` and `update`.
    """

    @property
    def sequence_length(self) -> int:
        return 1

    def observe(self, state: State, transitions: Transition[None]) -> State:
        del transitions
        return state


class AbstractOnPolicyAgent(AbstractMemorylessAgent[State]):
    """An agent that learns from rollouts and sees each rollout once.

    Its actions depend on the current observation only, and it has no extras. A subclass
    implements `init`, `policy` and `update`, whose batch has the axes `(envs, time)`.
    It is trained with `eqrl.Trainer.on_policy`.
    """

    @property
    def sequence_length(self) -> None:
        return None

    def observe(self, state: State, transitions: Transition[None]) -> State:
        del transitions
        return state


@runtime_checkable
class _ValueState(Protocol):
    """The state of an agent that values actions and counts the steps it observes."""

    @property
    def network(self) -> ActionValueFunction: ...

    @property
    def num_steps(self) -> Int[Array, ""]: ...


ValueState = TypeVar("ValueState", bound=_ValueState)


class AbstractEpsilonGreedyAgent(AbstractMemorylessAgent[ValueState]):
    """An agent that takes the action it values most, or sometimes a random one."""

    initial_epsilon: eqx.AbstractVar[FloatLike]
    final_epsilon: eqx.AbstractVar[FloatLike]
    epsilon_steps: eqx.AbstractVar[FloatLike]

    def epsilon(self, state: ValueState) -> Float[Array, ""]:
        """The probability of a random action in training, in [0, 1]."""
        return linear_schedule(
            state.num_steps,
            self.epsilon_steps,
            initial=self.initial_epsilon,
            final=self.final_epsilon,
        )

    def policy(self, state: ValueState) -> Policy:
        return lambda observation: EpsilonGreedy(
            values=state.network(observation), epsilon=self.epsilon(state)
        )

    def observe(self, state: ValueState, transitions: Transition[None]) -> ValueState:
        # Steps rather than updates, so that epsilon does not depend on how many updates
        # follow each step.
        num_steps = count_steps(state.num_steps, transitions)
        return eqx.tree_at(lambda x: x.num_steps, state, num_steps)


class AbstractWrapper(AbstractAgent[State, Memory, Extras]):
    """An agent around another agent.

    Its batches have the same axes as the inner agent's. Functions that look for
    something inside an agent, such as `eqrl.evaluate_skills` and `eqrl.fix_skill`, look
    inside every wrapper, including custom ones.
    """

    @property
    @abstractmethod
    def inner(self) -> AnyAgent:
        """The agent inside, which must be the value of a field."""

    @abstractmethod
    def inner_state(self, state: State) -> PyTree:
        """The state of the agent inside: a part of `state`, or all of it.

        Raises a `ValueError` if `state` does not belong to this wrapper.
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
        self, state: State, observation: Observation[Array, "*batch obs"]
    ) -> Observation[Array, "*batch inner_obs"]:
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
        observation: Observation[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Action, Memory, Extras]:
        seen = self.inner_observation(state, observation)
        return self.inner.act(self.inner_state(state), memory, seen, mode=mode, key=key)


def view_of(
    transitions: AnyTransition,
    see: Callable[[Array], Array],
    critic_sees: Callable[[Array], Array] | None = None,
) -> AnyTransition:
    """Transitions with `see` applied to both observations of each.

    `critic_sees`, by default `see`, is applied to the observations of critics, if there
    are any.
    """
    critic_sees = critic_sees or see
    before, after = (
        None if x is None else critic_sees(x)
        for x in (transitions.critic_observation, transitions.next_critic_observation)
    )
    return dataclasses.replace(
        transitions,
        observation=see(transitions.observation),
        next_observation=see(transitions.next_observation),
        critic_observation=before,
        next_critic_observation=after,
    )


def layers(agent: AnyAgent) -> Iterator[AnyAgent]:
    """An agent and those inside it, from the outermost to the innermost."""
    yield agent
    while isinstance(agent, AbstractWrapper):
        agent = agent.inner
        yield agent


def check_state(wrapper: AnyAgent, state: object, expected: type) -> None:
    """Checks that `state` is of the `expected` class."""
    if not isinstance(state, expected):
        raise ValueError(
            f"`state` is a {type(state).__name__}, but the state of a "
            f"{type(wrapper).__name__} is a {expected.__name__}; give what this agent "
            "has learned, such as `solution.state`."
        )


def pick_action(
    distribution: AbstractDistribution, *, mode: Mode, key: PRNGKeyArray
) -> Action:
    """The action that a policy picks in this mode."""
    check_choice("mode", mode, get_args(Mode))
    if not isinstance(distribution, AbstractDistribution):
        raise ValueError(
            f"The policy gives {described(distribution)} for one observation; it must "
            "give an `eqrl.nn.AbstractDistribution` of actions, as "
            "`eqrl.nn.GaussianPolicy` and `eqrl.nn.ExploringPolicy` do."
        )
    if mode == "greedy":
        return distribution.mode()
    if mode == "sample":
        return distribution.sample(key=key)
    # Uniform, regardless of the policy, so that the replay begins with all actions.
    return distribution.space.sample(key=key)


def count_steps(
    num_steps: Int[Array, ""], transitions: AnyTransition
) -> Int[Array, ""]:
    """The number of steps after new transitions, one from each environment.

    It saturates at the largest integer instead of wrapping around; a schedule longer
    than that then stays constant.
    """
    # Each environment contributes one transition, so rows count steps.
    added = transitions.timestep.shape[0]
    most = jnp.iinfo(num_steps.dtype).max - added
    return jnp.minimum(num_steps, most) + added


def linear_schedule(
    num_steps: Int[Array, ""],
    duration: FloatLike,
    *,
    initial: FloatLike,
    final: FloatLike,
) -> Float[Array, ""]:
    """Linear from `initial` to `final` over `duration` steps, then constant."""
    done = jnp.clip(num_steps.astype(float) / duration, 0, 1)
    # Strongly typed, so that a number and a leaf give the same program.
    start = jnp.asarray(initial, float)
    return start + done * (final - start)


def annealed(
    lr: FloatLike,
    num_steps: Int[Array, ""],
    anneal_steps: FloatLike | None,
    *,
    counted: int,
) -> FloatLike:
    """The annealed learning rate, which is still above 0 in the last update.

    `num_steps` counts all steps so far, including the `counted` ones of this update.
    """
    if anneal_steps is None:
        return lr
    # `observe` has already counted the steps of this update.
    return linear_schedule(num_steps - counted, anneal_steps, initial=lr, final=0.0)
