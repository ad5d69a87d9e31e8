from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Shaped

from .._agents.base import AnyAgent
from .._pytree.tree import described
from .._types.data import EnvSpec
from .._types.spaces import Discrete


def check_fits(agent: AnyAgent, state: Any, spec: EnvSpec, *, hint: str) -> None:
    """Raises a `ValueError` unless one agent in this state acts in such environments.

    The message ends with the `hint`.
    """

    def act(
        agent: AnyAgent, state: Any, observation: Float[Array, " obs"]
    ) -> Shaped[Array, "..."]:
        begin_key, act_key = jr.split(jr.key(0))
        zero = jnp.zeros((), int)
        memory = agent.begin(state, spec, index=zero, key=begin_key)
        action, _, _ = agent.act(state, memory, observation, mode="greedy", key=act_key)
        return action

    observation = jax.ShapeDtypeStruct((spec.observation_size,), jnp.result_type(float))
    try:
        action = eqx.filter_eval_shape(act, agent, state, observation)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"A {type(agent).__name__} in this state does not act on observations of "
            f"size {spec.observation_size}. {hint}"
        ) from error
    check_action_fits(action, spec, hint=hint)
    if isinstance(spec.action, Discrete):
        # All choices have one shape, however many there are.
        expected = eqx.filter_eval_shape(agent.init, spec, key=jr.key(0))
        given, wanted = (
            [x.shape for x in jax.tree.leaves(tree) if hasattr(x, "shape")]
            for tree in (state, expected)
        )
        if given != wanted:
            raise ValueError(
                f"A {type(agent).__name__} in this state was not made for `spec.action="
                f"{spec.action}` and observations of size {spec.observation_size}. "
                f"{hint}"
            )


def check_action_fits(
    action: jax.ShapeDtypeStruct, spec: EnvSpec, *, hint: str = ""
) -> None:
    """Raises a `ValueError` unless an action is one that the environment takes."""
    asked = spec.action.struct
    if (action.shape, action.dtype) != (asked.shape, asked.dtype):
        raise ValueError(
            f"`act` gives actions of {described(action)}, but `spec.action="
            f"{spec.action}` asks for {described(asked)}. {hint}".rstrip()
        )
