import dataclasses
from typing import Generic

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import check_fields, static_integer
from .._types.custom_types import EnvState
from .._types.data import EnvSpec
from .._types.spaces import Action
from ._base import (
    AbstractEnv,
    AbstractEnvWrapper,
    Outcome,
    check_is_env,
    check_step_limit,
)


class TimeLimitState(eqx.Module, Generic[EnvState]):
    """State of `TimeLimit`: that of its environment and the steps since the reset."""

    inner: EnvState
    num_steps: Int[Array, ""]


class TimeLimit(AbstractEnvWrapper[TimeLimitState[EnvState]], Generic[EnvState]):
    """Truncates the episodes of an environment after a number of steps.

    An episode that terminates at the limit is terminated, not truncated.
    """

    env: AbstractEnv[EnvState]
    max_steps: int = static_integer(least=1)

    def __check_init__(self) -> None:
        check_is_env("env", self.env)
        check_fields(self)
        check_step_limit(self.max_steps)

    @property
    def inner(self) -> AbstractEnv[EnvState]:
        return self.env

    def inner_state(self, state: TimeLimitState[EnvState]) -> EnvState:
        return state.inner

    @property
    def spec(self) -> EnvSpec:
        spec = self.env.spec
        max_steps = self.max_steps
        if spec.max_steps is not None:
            max_steps = min(max_steps, spec.max_steps)
        return dataclasses.replace(spec, max_steps=max_steps)

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[TimeLimitState[EnvState], Float[Array, " obs"]]:
        inner, observation = self.env.reset(key=key)
        num_steps = jnp.array(0, dtype=jnp.result_type(int))
        return TimeLimitState(inner=inner, num_steps=num_steps), observation

    def step(
        self,
        state: TimeLimitState[EnvState],
        action: Action,
        *,
        key: PRNGKeyArray,
    ) -> tuple[TimeLimitState[EnvState], Outcome]:
        inner, outcome = self.env.step(state.inner, action, key=key)
        num_steps = state.num_steps + 1
        limit_reached = outcome.truncated | (num_steps >= self.max_steps)
        outcome = Outcome(
            observation=outcome.observation,
            reward=outcome.reward,
            terminated=outcome.terminated,
            truncated=limit_reached & ~outcome.terminated,
        )
        return TimeLimitState(inner=inner, num_steps=num_steps), outcome

    def state_descriptor(
        self, state: TimeLimitState[EnvState]
    ) -> Float[Array, " descriptor"] | None:
        return self.env.state_descriptor(state.inner)


TimeLimit.__init__.__doc__ = """**Arguments:**

- `env`: any environment. If it has a time limit too, the shorter one counts.
- `max_steps`: length of the longest episode, at least 1.
"""
