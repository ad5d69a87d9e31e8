"""Whether an agent, its state and an environment belong together."""

import contextlib
from collections.abc import Iterator

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array

from .._agents.base import AbstractAgent, AbstractWrapper, AnyAgent, after_act
from .._agents.ppo import PPO, PPOState
from .._agents.pqn import PQN, PQNState
from .._agents.wrappers.intrinsic import Intrinsic, IntrinsicState
from .._pytree.fields import check_instance, check_single, stack_of
from .._pytree.tree import described, difference, is_array_shape
from .._types.custom_types import Observation, PyTree
from .._types.data import Discrete, EnvSpec


_HINT = "Give what this agent has learned in such an environment, as `solution.state`."


def check_is_agent(agent: object) -> None:
    """Checks that `agent` is an agent, and a single one."""
    check_instance("agent", agent, AbstractAgent)
    check_single("agent", agent)


def check_fits(agent: AnyAgent, state: PyTree, spec: EnvSpec, *, hint: str) -> None:
    """Checks that one agent in this state acts in such environments.

    The message ends with the `hint`.
    """

    def act(
        agent: AnyAgent, state: PyTree, observation: Observation[Array, " obs"]
    ) -> tuple[object, object]:
        begin_key, act_key = jr.split(jr.key(0))
        zero = jnp.zeros((), int)
        memory = agent.begin(state, spec, index=zero, key=begin_key)
        chosen = agent.act(state, memory, observation, mode="greedy", key=act_key)
        return memory, chosen

    with explaining_misfits(agent, state, spec, hint=hint):
        memory, chosen = eqx.filter_eval_shape(
            act, agent, state, spec.observation_struct
        )
    action, _, _ = after_act(agent, memory, chosen)
    check_action_fits(action, spec, hint=hint)


def check_numbers(agent: AnyAgent, spec: EnvSpec) -> None:
    """Repeats the checks of `init` that need the values of hyperparameters.

    `jit` hides the values from `init`. These are target entropies, and `init` is traced
    only if one is given.
    """
    paths = jax.tree_util.tree_leaves_with_path(agent)
    if not any("target_entropy" in jax.tree_util.keystr(path) for path, _ in paths):
        return
    if stack_of(agent) is not None:
        # One agent with the largest value of each: a target entropy can only be too
        # large.
        greatest = lambda x: jnp.max(x, axis=0) if eqx.is_inexact_array(x) else x[0]
        agent = jax.tree.map(lambda x: greatest(x) if eqx.is_array(x) else x, agent)
    eqx.filter_eval_shape(lambda key: agent.init(spec, key=key), jr.key(0))


def check_rate(agent: AnyAgent, state: PyTree, num_steps: int) -> None:
    """Checks that no rate of `agent_state` was annealed to 0.

    `num_steps` are the steps that it will learn from.
    """
    while isinstance(agent, AbstractWrapper):
        agent, state = agent.inner, agent.inner_state(state)
    if not isinstance(agent, (PPO, PQN)) or agent.anneal_steps is None:
        return
    if not isinstance(state, (PPOState, PQNState)) or jnp.ndim(state.num_steps):
        return  # Its shapes are compared later.
    done, duration = int(state.num_steps), float(agent.anneal_steps)
    if done >= duration:
        raise ValueError(
            f"`agent_state` would learn nothing more: it has observed {done} steps, "
            f"and the learning rate of this {type(agent).__name__} is annealed to 0 "
            f"over `anneal_steps={duration:g}`, which count the steps of all training "
            f"together. Give the agent more, such as {done + num_steps}, or `None`."
        )


def check_action_fits(
    action: object, spec: EnvSpec, *, exact: bool = True, hint: str = ""
) -> None:
    """Checks that an action has the shape and type that the environment requires.

    The message ends with the `hint`. Unless `exact`, floats of any precision pass.
    """
    asked = spec.action.struct
    floating = lambda dtype: jnp.issubdtype(dtype, jnp.floating)
    fits = (
        isinstance(action, (jax.Array, jax.ShapeDtypeStruct))
        and action.shape == asked.shape
        and floating(action.dtype) == floating(asked.dtype)
        and (action.dtype == asked.dtype or not exact)
    )
    if not fits:
        raise ValueError(
            f"`act` gives actions of {described(action)}, but `spec.action="
            f"{spec.action}` asks for {described(asked)}. {hint}".rstrip()
        )


@contextlib.contextmanager
def explaining_misfits(
    agent: AnyAgent, state: PyTree, spec: EnvSpec, *, hint: str = _HINT
) -> Iterator[None]:
    """Replaces a tracing error with a clearer one if the state does not fit.

    The message ends with the `hint`.
    """
    # Discrete actions have the same shape, however many there are, so a state made for
    # another number of them may not cause an error. Otherwise the state is compared
    # only after an error, since tracing `init` takes a while.
    if isinstance(spec.action, Discrete):
        _check_state(agent, state, spec, hint)
    try:
        yield
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        try:
            _check_state(agent, state, spec, hint)
        except ValueError as misfit:
            raise misfit from error
        raise


def _check_state(agent: AnyAgent, state: PyTree, spec: EnvSpec, hint: str) -> None:
    """Checks that a state has the shapes of the one that `init` makes."""
    if isinstance(agent, Intrinsic) and isinstance(state, IntrinsicState):
        # Acting does not read what a reward remembers, which may have grown.
        agent, state, spec = agent.inner, state.agent, agent.inner_spec(spec)
    try:
        expected = eqx.filter_eval_shape(agent.init, spec, key=jr.key(0))
    except Exception:
        return  # The shapes are unknown if the agent does not fit either.
    state = eqx.filter_eval_shape(lambda tree: tree, state)
    wanted, given = (
        {
            path: leaf.shape
            for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
            if is_array_shape(leaf)
        }
        for tree in (expected, state)
    )
    if given == wanted:
        return
    size = next(iter(given.values()), ())[:1]
    if size and given == {path: (*size, *wanted[path]) for path in wanted}:
        raise ValueError(
            f"`state` is a stack of {size[0]}, but `agent` is a single "
            f"{type(agent).__name__}. Take one by `eqrl.member(state, index)`, or map "
            f"over both by `equinox.filter_vmap`. {hint}"
        )
    raise ValueError(
        f"`state` is not that of a {type(agent).__name__} in environments with "
        f"observations of size {spec.observation_size} and `action={spec.action}`: "
        f"{difference(expected, state)}. {hint}"
    )
