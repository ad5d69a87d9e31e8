"""Whether an agent, its state and an environment belong together."""

import contextlib
from collections.abc import Iterator
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from .._agents.base import AbstractAgent, AnyAgent, after_act
from .._agents.ppo import PPO, PPOState
from .._agents.pqn import PQN, PQNState
from .._agents.wrappers.base import AbstractWrapper
from .._pytree.fields import check_instance, reusable_key, stack_of
from .._pytree.tree import described
from .._types.data import Discrete, EnvSpec
from ..envs._base import check_is_env


def check_arguments(
    agent: object, env: object, key: PRNGKeyArray, *, may_be_stack: bool = False
) -> PRNGKeyArray:
    """The key, which may be used again.

    Raises a `ValueError` unless these are an agent, an environment and a key.
    """
    check_is_agent(agent, may_be_stack=may_be_stack)
    check_is_env("env", env)
    return reusable_key(key)


def check_is_agent(agent: object, *, may_be_stack: bool = False) -> None:
    """Checks that `agent` is an agent, and a single one."""
    check_instance("agent", agent, AbstractAgent, such_as="`eqrl.SAC()`")
    if not may_be_stack and (stack := stack_of(agent)) is not None:
        name, size = stack
        raise ValueError(
            f"`agent` is a stack of {size}: its `{name}` has an axis of that length. "
            "Take one by `eqrl.member(agent, index)`, and its state likewise; or train "
            "them all by `eqrl.train_population`."
        )


def check_fits(agent: AnyAgent, state: Any, spec: EnvSpec, *, hint: str) -> None:
    """Checks that one agent in this state acts in such environments.

    The message ends with the `hint`.
    """

    def act(
        agent: AnyAgent, state: Any, observation: Float[Array, " obs"]
    ) -> tuple[object, object]:
        begin_key, act_key = jr.split(jr.key(0))
        zero = jnp.zeros((), int)
        memory = agent.begin(state, spec, index=zero, key=begin_key)
        chosen = agent.act(state, memory, observation, mode="greedy", key=act_key)
        return memory, chosen

    observation = jax.ShapeDtypeStruct((spec.observation_size,), jnp.result_type(float))
    try:
        memory, chosen = eqx.filter_eval_shape(act, agent, state, observation)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"A {type(agent).__name__} in this state does not act on observations of "
            f"size {spec.observation_size}. {hint}"
        ) from error
    action, _, _ = after_act(agent, memory, chosen)
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


def check_numbers(agent: AnyAgent, spec: EnvSpec) -> None:
    """Raises the `ValueError`s of `init` about numbers, which `jit` hides from it.

    These are target entropies, and `init` is traced only where one is given. `agent`
    may be a stack, of which the greatest of each number are looked at: a target entropy
    may only be too great.
    """
    paths = jax.tree_util.tree_leaves_with_path(agent)
    if not any("target_entropy" in jax.tree_util.keystr(path) for path, _ in paths):
        return
    if stack_of(agent) is not None:
        agent = jax.tree.map(_greatest, agent)
    eqx.filter_eval_shape(lambda key: agent.init(spec, key=key), jr.key(0))


def _greatest(leaf: Any) -> Any:
    if eqx.is_inexact_array(leaf):
        return jnp.max(leaf, axis=0)
    return leaf[0] if eqx.is_array(leaf) else leaf


def check_rate(agent: AnyAgent, state: Any, num_steps: int) -> None:
    """Checks that no rate of `agent_state` was annealed to 0.

    `num_steps` are those that it is to learn from.
    """
    while isinstance(agent, AbstractWrapper):
        agent, state = agent.inner, agent.inner_state(state)
    if not isinstance(agent, (PPO, PQN)) or agent.anneal_steps is None:
        return
    if not isinstance(state, (PPOState, PQNState)):
        return  # Its shapes are compared later.
    done, duration = int(state.num_steps), float(agent.anneal_steps)
    if done >= duration:
        raise ValueError(
            f"`agent_state` would learn nothing more: it has observed {done} steps, "
            f"and the learning rate of this {type(agent).__name__} is annealed to 0 "
            f"over `anneal_steps={duration:g}`, which count the steps of all trainings "
            f"together. Give the agent more, such as {done + num_steps}, or `None`."
        )


def check_action_fits(
    action: jax.ShapeDtypeStruct, spec: EnvSpec, *, hint: str = ""
) -> None:
    """Checks that an action is one that the environment takes."""
    asked = spec.action.struct
    if (action.shape, action.dtype) != (asked.shape, asked.dtype):
        raise ValueError(
            f"`act` gives actions of {described(action)}, but `spec.action="
            f"{spec.action}` asks for {described(asked)}. {hint}".rstrip()
        )


def check_action_taken(action: object, spec: EnvSpec) -> None:
    """Checks that an environment takes an action of this shape."""
    asked = spec.action.struct
    fits = (
        isinstance(action, (jax.Array, jax.ShapeDtypeStruct))
        and action.shape == asked.shape
        and jnp.issubdtype(action.dtype, jnp.floating)
        == jnp.issubdtype(asked.dtype, jnp.floating)
    )
    if not fits:
        raise ValueError(
            f"`act` gives actions of {described(action)}, but `spec.action="
            f"{spec.action}` asks for {described(asked)}: is the agent's state that of "
            "another environment?"
        )


@contextlib.contextmanager
def explaining_misfits(agent: AnyAgent, state: Any, spec: EnvSpec) -> Iterator[None]:
    """Replaces an error in tracing by a clearer one if the state does not fit.

    Only then is it looked at, since to trace `init` takes a while.
    """
    if isinstance(spec.action, Discrete):
        _check_choices(agent, state, spec, spec.action.num_actions)
    try:
        yield
    except (TypeError, ValueError, AttributeError, LookupError) as error:
        _check_state(agent, state, spec, error)
        raise


def _check_choices(
    agent: AnyAgent, state: Any, spec: EnvSpec, num_actions: int
) -> None:
    """Checks that a state was made for this number of choices.

    All choices have one shape, however many there are, so nothing else would fail.
    """
    wanted, given = _shapes(_initial(agent, spec)), _shapes(state)
    for path in wanted:
        if path not in given:
            continue
        pairs = list(zip(wanted[path], given[path], strict=False))
        if len(wanted[path]) == len(given[path]) and [
            x for x, y in pairs if x != y
        ] == [num_actions]:
            raise ValueError(
                f"`state` was not made for `spec.action={spec.action}`: the shape of "
                f"its `{path}` is {given[path]}, not {wanted[path]}. Give the state "
                "that this agent has learned in such an environment."
            )


def _initial(agent: AnyAgent, spec: EnvSpec) -> Any:
    """Shapes of the state that `init` makes; `None` if they cannot be known."""
    try:
        return eqx.filter_eval_shape(agent.init, spec, key=jr.key(0))
    except Exception:
        return None


def _shapes(tree: Any) -> dict[str, tuple[int, ...]]:
    paths = jax.tree_util.tree_flatten_with_path(tree)[0]
    return {
        jax.tree_util.keystr(path): x.shape for path, x in paths if hasattr(x, "shape")
    }


def _check_state(agent: AnyAgent, state: Any, spec: EnvSpec, cause: Exception) -> None:
    """Checks that a state is like that which `init` makes."""
    expected = _initial(agent, spec)
    kind, name = type(state).__name__, type(agent).__name__
    if expected is None or _shapes(expected) == _shapes(state):
        return
    size = _size_over(expected, state)
    if size is not None:
        raise ValueError(
            f"`state` is a stack of {size}, but `agent` is a single {name}. Take one "
            "by `eqrl.member(state, index)`, or map over both by "
            "`equinox.filter_vmap`."
        ) from cause
    if type(state) is not type(expected):
        raise ValueError(
            f"`state` is a {kind}, but the state of a {name} is a "
            f"{type(expected).__name__}; give what this agent has learned, such as "
            "`solution.state`."
        ) from cause
    raise ValueError(
        f"`state` does not fit: it is not like that which this {name} has in "
        f"environments with observations of size {spec.observation_size} and `action="
        f"{spec.action}`{_first_difference(expected, state)}. Give the state that this "
        "agent has learned in such an environment."
    ) from cause


def _size_over(expected: Any, given: Any) -> int | None:
    """Size of a stack whose elements are like `expected`; `None` if it is not one."""
    wanted, found = (
        [x for x in jax.tree.leaves(tree) if hasattr(x, "shape")]
        for tree in (expected, given)
    )
    if len(wanted) != len(found) or not found or found[0].ndim == 0:
        return None
    size = found[0].shape[0]
    same = all(x.shape == (size, *y.shape) for x, y in zip(found, wanted, strict=True))
    return size if same else None


def _first_difference(expected: Any, given: Any) -> str:
    wanted, found = _shapes(expected), _shapes(given)
    for path in wanted:
        if path in found and found[path] != wanted[path]:
            return f": the shape of `{path}` is {found[path]}, not {wanted[path]}"
    return ""
