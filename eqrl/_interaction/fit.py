from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from .._agents.base import AnyAgent
from .._types.data import EnvSpec


def action_shape(
    agent: AnyAgent, state: Any, spec: EnvSpec, *, hint: str
) -> tuple[int, ...]:
    """The shape of the actions of one agent in environments like this.

    Raises a `ValueError`, which ends with the `hint`, if the state does not fit.
    """

    def act(
        agent: AnyAgent, state: Any, observation: Float[Array, " obs"]
    ) -> Float[Array, "..."]:
        begin_key, act_key = jr.split(jr.key(0))
        zero = jnp.zeros((), int)
        memory = agent.begin(state, spec, index=zero, key=begin_key)
        action, _, _ = agent.act(state, memory, observation, mode="greedy", key=act_key)
        return action

    observation = jax.ShapeDtypeStruct((spec.observation_size,), jnp.result_type(float))
    try:
        return eqx.filter_eval_shape(act, agent, state, observation).shape
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"A {type(agent).__name__} in this state does not act on observations of "
            f"size {spec.observation_size}. {hint}"
        ) from error
