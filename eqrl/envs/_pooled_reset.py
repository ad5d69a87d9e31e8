from typing import Generic

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, Float, Key, PRNGKeyArray

from .._types.custom_types import EnvState
from .._types.data import EnvSpec
from ._base import AbstractEnv, Outcome


class PooledReset(AbstractEnv[EnvState], Generic[EnvState]):
    """Begins every episode in one of a number of initial states, made once.

    For environments whose reset costs much of a step, such as brax's `generalized` and
    `mjx` backends: whoever maps over environments computes a reset with every step.
    """

    env: AbstractEnv[EnvState]
    _states: EnvState
    _observations: Float[Array, "states obs"]

    def __init__(
        self, env: AbstractEnv[EnvState], num_states: int, *, key: PRNGKeyArray
    ) -> None:
        """**Arguments:**

        - `env`: any environment.
        - `num_states`: how many initial states to keep, at least 1. An agent sees no
            others, so take many.
        - `key`: for the resets that make them.
        """
        if num_states < 1:
            raise ValueError(
                f"`num_states={num_states}` must be at least 1, so that there is a "
                "state to begin in."
            )
        self.env = env
        self._states, self._observations = _reset_many(env, jr.split(key, num_states))

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def reset(self, *, key: PRNGKeyArray) -> tuple[EnvState, Float[Array, " obs"]]:
        index = jr.randint(key, (), 0, self._observations.shape[0])
        return jax.tree.map(
            lambda leaf: leaf[index] if eqx.is_array(leaf) else leaf,
            (self._states, self._observations),
        )

    def step(
        self, state: EnvState, action: Float[Array, " act"], *, key: PRNGKeyArray
    ) -> tuple[EnvState, Outcome]:
        return self.env.step(state, action, key=key)

    def state_descriptor(self, state: EnvState) -> Float[Array, " descriptor"] | None:
        return self.env.state_descriptor(state)


@eqx.filter_jit
def _reset_many(
    env: AbstractEnv[EnvState], keys: Key[Array, " states"]
) -> tuple[EnvState, Float[Array, "states obs"]]:
    return eqx.filter_vmap(lambda key: env.reset(key=key))(keys)
