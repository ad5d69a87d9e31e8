import dataclasses
from typing import Generic

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import check_integer
from .._types.custom_types import EnvState
from .._types.data import EnvSpec
from ._base import AbstractEnv, Outcome


class TimeLimitState(eqx.Module, Generic[EnvState]):
    """The state of an environment and the number of steps since its reset."""

    inner: EnvState
    num_steps: Int[Array, ""]


class TimeLimit(AbstractEnv[TimeLimitState[EnvState]], Generic[EnvState]):
    """Truncates the episodes of an environment after a number of steps.

    An episode that terminates at the limit is terminated, and not truncated.
    """

    env: AbstractEnv[EnvState]
    max_steps: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        check_integer("max_steps", self.max_steps, least=1)

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
        action: Float[Array, " act"],
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
