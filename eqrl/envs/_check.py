"""Checks that an environment does what its `spec` says."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jax.extend.core import Var
from jaxtyping import Array, Bool, PRNGKeyArray

from .._pytree.fields import check_instance
from .._pytree.tree import described, is_array_shape, is_float_shape
from .._types.data import EnvSpec
from .._types.spaces import Action
from ._base import AnyEnv, Outcome, check_is_env


def check_env(env: AnyEnv) -> None:
    """Raises a `ValueError` unless an environment does what its `spec` says.

    Only shapes and types are checked; nothing is run.
    """
    check_is_env("env", env)
    spec = env.spec
    check_instance("spec", spec, EnvSpec)
    if spec.observation_size < 1:
        raise ValueError(
            f"`spec.observation_size={spec.observation_size}` must be at least 1."
        )
    key = jax.eval_shape(lambda: jr.key(0))
    state, observation = eqx.filter_eval_shape(env.reset, key=key)
    _check_vector("`reset` gives an observation", observation, spec.observation_size)
    same_flag: list[bool] = []

    def step(state: Any, action: Action, key: PRNGKeyArray) -> tuple[Any, Outcome]:
        after, outcome = env.step(state, action, key=key)
        same_flag[:] = [outcome.terminated is outcome.truncated]
        return after, outcome

    next_state, outcome = eqx.filter_eval_shape(step, state, spec.action.struct, key)
    _check_vector(
        "`step` gives an observation", outcome.observation, spec.observation_size
    )
    _check_reward(outcome.reward, spec.reward_size)
    _check_flag("terminated", outcome.terminated)
    _check_flag("truncated", outcome.truncated)
    if same_flag == [True] and _varies(env, state, key):
        raise ValueError(
            "`step` gives one array for both `terminated` and `truncated`, so they are "
            "true together; an episode either ends in a state without value or at a "
            "time limit. If there is but one `done`, give `jnp.array(False)` for the "
            "other."
        )
    _check_state(state, next_state)
    descriptor = eqx.filter_eval_shape(env.state_descriptor, state)
    if (descriptor is None) != (spec.state_descriptor_size is None):
        raise ValueError(
            f"`spec.state_descriptor_size={spec.state_descriptor_size}`, but "
            f"`state_descriptor` gives {descriptor}."
        )
    if descriptor is not None:
        _check_vector(
            "`state_descriptor` gives one", descriptor, spec.state_descriptor_size
        )


def _varies(env: AnyEnv, state: Any, key: Any) -> bool:
    """Whether `terminated` depends on anything at all."""

    def terminated(state: Any, action: Action, key: PRNGKeyArray) -> Bool[Array, ""]:
        return env.step(state, action, key=key)[1].terminated

    action: Any = env.spec.action.struct
    closed, _, _ = eqx.filter_make_jaxpr(terminated)(state, action, key)
    (flag,), known = closed.jaxpr.outvars, set(closed.jaxpr.invars)
    for equation in closed.jaxpr.eqns:
        if any(isinstance(x, Var) and x in known for x in equation.invars):
            known.update(equation.outvars)
    return isinstance(flag, Var) and flag in known


def _check_vector(what: str, value: Any, size: int | None) -> None:
    if not is_float_shape(value) or value.shape != (size,):
        raise ValueError(
            f"{what} of {described(value)}, but `spec` asks for a flat vector of "
            f"floats of shape {(size,)}; flatten and cast it in the environment."
        )


def _check_reward(reward: Any, reward_size: int | None) -> None:
    expected = () if reward_size is None else (reward_size,)
    if not is_float_shape(reward) or reward.shape != expected:
        raise ValueError(
            f"The reward is of {described(reward)}, but `spec.reward_size="
            f"{reward_size}` asks for an array of floats of shape {expected}; a vector "
            "of length 1 is no scalar."
        )


def _check_flag(name: str, flag: Any) -> None:
    if not is_array_shape(flag) or flag.shape != () or flag.dtype != jnp.bool_:
        raise ValueError(
            f"`step` gives a `{name}` of {described(flag)}; it must be an array of "
            "type bool and of shape ()."
        )


def _check_state(before: Any, after: Any) -> None:
    structure = jax.tree.structure(before)
    if structure != jax.tree.structure(after):
        raise ValueError(
            "The environment's state changes its structure in `step`: from "
            f"{structure} to {jax.tree.structure(after)}."
        )
    paths = jax.tree_util.tree_flatten_with_path(before)[0]
    for (path, old), new in zip(paths, jax.tree.leaves(after), strict=True):
        if is_array_shape(old) and is_array_shape(new):
            same = (old.shape, old.dtype) == (new.shape, new.dtype)
        else:
            # A function may be part of a state, a Python number may not: it would be
            # an array after the first step.
            same = callable(old) and old == new
        if not same:
            raise ValueError(
                f"The leaf `{jax.tree_util.keystr(path)}` of the environment's state "
                f"is of {described(old)} after `reset` but of {described(new)} after "
                "`step`; both must be arrays of the same type."
            )
