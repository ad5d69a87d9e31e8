from abc import abstractmethod
from typing import Any, Generic, TypeAlias

import equinox as eqx
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._types.custom_types import Extras, Memory, Metrics, Mode, State
from .._types.data import EnvSpec, Transition
from ..nn import Policy


class AbstractAgent(eqx.Module, Generic[State, Memory, Extras]):
    """How to act and how to learn, as pure functions of what has been learnt.

    The agent holds hyperparameters only. What it learns is in its state. What it
    carries along an episode is in its memory, and what it wants stored beside each
    transition are its extras; most agents have neither and use `None`.
    """

    @property
    @abstractmethod
    def sequence_length(self) -> int:
        """Consecutive steps in each element of a batch.

        With 1 the leading axes of a batch are `(batch,)`, else `(batch, time)`.
        """

    @abstractmethod
    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> State:
        """A state which has learnt nothing.

        Raises a `ValueError` where the agent does not fit the environment.
        """

    @abstractmethod
    def begin(
        self, state: State, spec: EnvSpec, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> Memory:
        """The memory with which an episode begins.

        **Arguments:**

        - `state`: what has been learnt.
        - `spec`: of the environment.
        - `index`: which of the environments it is.
        - `key`: for whatever is drawn once an episode.
        """

    @abstractmethod
    def act(
        self,
        state: State,
        memory: Memory,
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], Memory, Extras]:
        """Picks an action for one environment.

        **Arguments:**

        - `state`: what has been learnt.
        - `memory`: from `begin`, or from the last step of this episode.
        - `observation`: of the state to act in.
        - `mode`: `"random"` to explore before anything is learnt, `"sample"` while
            learning, `"greedy"` to be judged.
        - `key`: for the action.

        **Returns:**

        The action, in [-1, 1]; the memory for the next step; and what to store.
        """

    @abstractmethod
    def observe(self, state: State, transitions: Transition[Extras]) -> State:
        """Takes note of fresh transitions, with one leading axis, each seen once."""

    @abstractmethod
    def update(
        self,
        state: State,
        batch: Transition[Extras],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[State, Metrics]:
        """Learns from one batch.

        **Arguments:**

        - `state`: what has been learnt.
        - `batch`: from the replay; see `sequence_length` for its leading axes.
        - `step`: the number of updates made before this one. It is never batched, so
            it may decide a `jax.lax.cond`.
        - `key`: for whatever is drawn in the update.

        **Returns:**

        The state after the update, and metrics with the same names at each call.
        """


AnyAgent: TypeAlias = AbstractAgent[Any, Any, Any]
"""An agent of which nothing is known but the protocol."""


class AbstractMarkovAgent(AbstractAgent[State, None, None]):
    """An agent whose actions depend on the observation alone.

    It has no memory and stores nothing, takes single transitions and learns from
    batches only. A new one implements `init`, `policy` and `update`.
    """

    @property
    def sequence_length(self) -> int:
        return 1

    @abstractmethod
    def policy(self, state: State) -> Policy:
        """The policy which has been learnt, such as an `eqrl.nn.AbstractPolicy`."""

    def begin(
        self, state: State, spec: EnvSpec, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> None:
        del state, spec, index, key
        return None

    def act(
        self,
        state: State,
        memory: None,
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], None, None]:
        del memory
        distribution = self.policy(state)(observation)
        greedy = distribution.mode()
        if mode == "greedy":
            action = greedy
        elif mode == "sample":
            action = distribution.sample(key=key)
        elif mode == "random":
            action = jr.uniform(key, greedy.shape, minval=-1, maxval=1)
        else:
            raise ValueError(
                f"`mode={mode!r}` must be one of 'random', 'sample', 'greedy'."
            )
        return action, None, None

    def observe(self, state: State, transitions: Transition[None]) -> State:
        del transitions
        return state
