from typing import Generic

import equinox as eqx
import jax.random as jr
from jaxtyping import Array, Float, Key, PRNGKeyArray

from .._pytree.fields import check_integer, check_key
from .._pytree.stack import take_element
from .._types.custom_types import EnvState
from .._types.data import EnvSpec
from .._types.spaces import Action
from ._base import AbstractEnv, AbstractEnvWrapper, Outcome, check_is_env


class PooledReset(AbstractEnvWrapper[EnvState], Generic[EnvState]):
    """Begins every episode in one of a fixed number of initial states.

    For environments with an expensive reset, such as those of brax's `generalized` and
    `mjx` backends: in a step in which any episode ends, a reset is computed for each
    environment; in training that `vmap` maps, as several seeds are, at every step.
    """

    env: AbstractEnv[EnvState]
    _states: EnvState
    _observations: Float[Array, "states obs"]

    def __init__(
        self, env: AbstractEnv[EnvState], num_states: int, *, key: PRNGKeyArray
    ) -> None:
        """**Arguments:**

        - `env`: any environment.
        - `num_states`: number of initial states, at least 1. An agent sees no others,
            so take many.
        - `key`: for the resets that compute them.
        """
        check_is_env("env", env)
        check_key(key)
        check_integer("num_states", num_states, least=1)
        self.env = env
        self._states, self._observations = _reset_many(env, jr.split(key, num_states))

    @property
    def inner(self) -> AbstractEnv[EnvState]:
        return self.env

    def inner_state(self, state: EnvState) -> EnvState:
        return state

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def reset(self, *, key: PRNGKeyArray) -> tuple[EnvState, Float[Array, " obs"]]:
        index = jr.randint(key, (), 0, self._observations.shape[0])
        return take_element((self._states, self._observations), index)

    def step(
        self, state: EnvState, action: Action, *, key: PRNGKeyArray
    ) -> tuple[EnvState, Outcome]:
        return self.env.step(state, action, key=key)

    def state_descriptor(self, state: EnvState) -> Float[Array, " descriptor"] | None:
        return self.env.state_descriptor(state)


@eqx.filter_jit
def _reset_many(
    env: AbstractEnv[EnvState], keys: Key[Array, " states"]
) -> tuple[EnvState, Float[Array, "states obs"]]:
    return eqx.filter_vmap(lambda key: env.reset(key=key))(keys)
