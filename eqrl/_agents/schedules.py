"""Schedules over the environment steps that an agent has observed."""

from abc import abstractmethod
from typing import Protocol, TypeVar, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._types.custom_types import ActionValueFunction, FloatLike
from .._types.data import AnyTransition, Transition
from ..nn import EpsilonGreedy, Policy
from .base import AbstractMemorylessAgent


def count_steps(
    num_steps: Int[Array, ""], transitions: AnyTransition
) -> Int[Array, ""]:
    """The number of steps after new transitions, one of each environment.

    It saturates at the largest integer instead of wrapping around; a schedule that is
    longer than that stays where it is then.
    """
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
    """Linear from `initial` to `final`, then constant.

    **Arguments:**

    - `num_steps`: steps so far.
    - `duration`: steps from the first value to the second, greater than 0.
    - `initial`, `final`: the two values.
    """
    done = jnp.clip(num_steps.astype(float) / duration, 0, 1)
    start = jnp.asarray(initial, float)
    return start + done * (final - start)


def annealed(
    lr: FloatLike,
    num_steps: Int[Array, ""],
    anneal_steps: FloatLike | None,
    *,
    counted: int,
) -> FloatLike:
    """The learning rate on its way to 0, which the last update does not reach.

    **Arguments:**

    - `lr`: at first.
    - `num_steps`: steps so far, those to be learned from included.
    - `anneal_steps`: steps of the whole training; `None` keeps the rate.
    - `counted`: the number of steps to be learned from.
    """
    if anneal_steps is None:
        return lr
    # `observe` has counted the steps to be learned from before.
    return linear_schedule(num_steps - counted, anneal_steps, initial=lr, final=0.0)


@runtime_checkable
class _ValueState(Protocol):
    """The state of an agent that values actions and counts the steps it observes."""

    @property
    def network(self) -> ActionValueFunction: ...

    @property
    def num_steps(self) -> Int[Array, ""]: ...


ValueState = TypeVar("ValueState", bound=_ValueState)


class AbstractEpsilonGreedyAgent(AbstractMemorylessAgent[ValueState]):
    """An agent that takes the action it values most, or at times a random one."""

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
