from collections.abc import Sequence
from typing import Generic

import jax.core
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._pytree.fields import converted
from .._types.custom_types import EnvState
from .._types.data import EnvSpec
from .._types.spaces import Box
from ._base import AbstractEnv, AbstractEnvWrapper, Outcome, check_is_env


class DisabledActions(AbstractEnvWrapper[EnvState], Generic[EnvState]):
    """An environment in which some elements of the action have no effect.

    The environment sees 0 for them, whatever the agent chooses; transitions hold the
    agent's choice. The mask is a leaf, so another one compiles nothing.
    """

    env: AbstractEnv[EnvState]
    disabled: Bool[Array, " act"]

    def __init__(
        self,
        env: AbstractEnv[EnvState],
        disabled: Bool[Array | np.ndarray, " act"]
        | Int[Array | np.ndarray, " disabled"]
        | Sequence[int],
    ) -> None:
        """**Arguments:**

        - `env`: an environment whose actions are vectors.
        - `disabled`: a mask of the elements of the action, true for those that are
            disabled; or their indices, from 0, possibly none.
        """
        check_is_env("env", env)
        self.env = env
        if not isinstance(env.spec.action, Box):
            raise ValueError(
                f"`env` has the actions `{env.spec.action}`, which have no elements to "
                "disable; `DisabledActions` needs an `eqrl.spaces.Box`."
            )
        self.disabled = _mask(disabled, env.spec.action_size)

    @property
    def inner(self) -> AbstractEnv[EnvState]:
        return self.env

    def inner_state(self, state: EnvState) -> EnvState:
        return state

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def reset(self, *, key: PRNGKeyArray) -> tuple[EnvState, Float[Array, " obs"]]:
        return self.env.reset(key=key)

    def step(
        self, state: EnvState, action: Float[Array, " act"], *, key: PRNGKeyArray
    ) -> tuple[EnvState, Outcome]:
        return self.env.step(state, jnp.where(self.disabled, 0.0, action), key=key)

    def state_descriptor(self, state: EnvState) -> Float[Array, " descriptor"] | None:
        return self.env.state_descriptor(state)


def _mask(
    disabled: Bool[Array | np.ndarray, "..."]
    | Int[Array | np.ndarray, "..."]
    | Sequence[int],
    size: int,
) -> Bool[Array, " act"]:
    what = f"must be the indices of elements of the action, or {size} bools."
    if converted("disabled", len, disabled, what) == 0:
        return jnp.zeros(size, bool)
    given = converted("disabled", jnp.asarray, disabled, what)
    if given.dtype == bool:
        if given.shape != (size,):
            raise ValueError(
                f"`disabled` has shape {given.shape}, but the environment's actions "
                f"have {size} elements; give {size} bools, or indices of elements."
            )
        return given
    if given.ndim != 1 or not jnp.issubdtype(given.dtype, jnp.integer):
        raise ValueError(
            f"`disabled` is of shape {given.shape} and type {given.dtype}; give the "
            f"indices of elements of the action, or {size} bools."
        )
    if not isinstance(given, jax.core.Tracer):
        wrong = [int(index) for index in given if not 0 <= index < size]
        if wrong:
            raise ValueError(
                f"`disabled` names {wrong}, but the environment's actions have {size} "
                f"elements, 0 to {size - 1}."
            )
    return jnp.zeros(size, bool).at[given].set(True)
