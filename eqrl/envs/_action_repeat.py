import dataclasses
from typing import Generic

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.control_flow import filter_scan
from .._pytree.fields import check_fields, static_integer
from .._pytree.tree import tree_where
from .._types.custom_types import EnvState
from .._types.data import EnvSpec
from .._types.spaces import Action
from ._base import AbstractEnv, AbstractEnvWrapper, Outcome, check_is_env


class ActionRepeat(AbstractEnvWrapper[EnvState], Generic[EnvState]):
    """An environment that takes each action several times.

    A step ends early where the episode does, so a time limit inside is kept. Its reward
    is the sum of the rewards, without a discount: an agent's `discount` is that of a
    whole step, so `discount**num_repeats` in place of the `discount` that it would have
    without repeats.
    """

    env: AbstractEnv[EnvState]
    num_repeats: int = static_integer(least=1)

    def __check_init__(self) -> None:
        check_is_env("env", self.env)
        check_fields(self)

    @property
    def inner(self) -> AbstractEnv[EnvState]:
        return self.env

    def inner_state(self, state: EnvState) -> EnvState:
        return state

    @property
    def spec(self) -> EnvSpec:
        spec = self.env.spec
        if spec.max_steps is None:
            return spec
        # The last step may have fewer repeats.
        return dataclasses.replace(
            spec, max_steps=-(-spec.max_steps // self.num_repeats)
        )

    def reset(self, *, key: PRNGKeyArray) -> tuple[EnvState, Float[Array, " obs"]]:
        return self.env.reset(key=key)

    def step(
        self, state: EnvState, action: Action, *, key: PRNGKeyArray
    ) -> tuple[EnvState, Outcome]:
        def repeat(
            carry: tuple[EnvState, Outcome], index: Int[Array, ""]
        ) -> tuple[tuple[EnvState, Outcome], None]:
            state, so_far = carry
            after, outcome = self.env.step(state, action, key=jr.fold_in(key, index))
            outcome = eqx.tree_at(
                lambda outcome: outcome.reward, outcome, so_far.reward + outcome.reward
            )
            over = so_far.terminated | so_far.truncated
            return tree_where(over, carry, (after, outcome)), None

        _, shapes = eqx.filter_eval_shape(self.env.step, state, action, key=key)
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        (state, outcome), _ = filter_scan(
            repeat, (state, nothing), jnp.arange(self.num_repeats)
        )
        return state, outcome

    def state_descriptor(self, state: EnvState) -> Float[Array, " descriptor"] | None:
        return self.env.state_descriptor(state)


ActionRepeat.__init__.__doc__ = """**Arguments:**

- `env`: any environment.
- `num_repeats`: how often each action is taken, at least 1; fewer times where the
    episode ends.
"""
