from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr

from .envs import AbstractEnv


def check_env(env: AbstractEnv[Any]) -> None:
    """Raises a `ValueError` where an environment does not do what its `spec` says.

    Nothing is run: only shapes and types are looked at.
    """
    spec = env.spec
    for name, size in (
        ("observation_size", spec.observation_size),
        ("action_size", spec.action_size),
    ):
        if size < 1:
            raise ValueError(f"`spec.{name}={size}` must be at least 1.")
    key = jax.eval_shape(lambda: jr.key(0))
    state, observation = eqx.filter_eval_shape(env.reset, key=key)
    _check_vector("`reset` gives an observation", observation, spec.observation_size)
    action = jax.ShapeDtypeStruct((spec.action_size,), jnp.result_type(float))
    next_state, outcome = eqx.filter_eval_shape(env.step, state, action, key=key)
    _check_vector(
        "`step` gives an observation", outcome.observation, spec.observation_size
    )
    _check_reward(outcome.reward, spec.reward_size)
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


def _check_vector(what: str, value: Any, size: int | None) -> None:
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    is_float = dtype is not None and jnp.issubdtype(dtype, jnp.floating)
    if shape != (size,) or not is_float:
        raise ValueError(
            f"{what} of shape {shape} and type {dtype}, but `spec` asks for a flat "
            f"vector of floats of shape {(size,)}; flatten and cast it in the "
            "environment."
        )


def _check_reward(reward: Any, reward_size: int | None) -> None:
    expected = () if reward_size is None else (reward_size,)
    if reward.shape != expected or not jnp.issubdtype(reward.dtype, jnp.floating):
        raise ValueError(
            f"The reward has shape {reward.shape} and type {reward.dtype}, but "
            f"`spec.reward_size={reward_size}` asks for floats of shape {expected}; a "
            "vector of length 1 is no scalar."
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
        if not eqx.is_array_like(old) and not hasattr(old, "shape"):
            continue
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise ValueError(
                f"The leaf `{jax.tree_util.keystr(path)}` of the environment's state is "
                f"{old.dtype}{list(old.shape)} after `reset` but {new.dtype}"
                f"{list(new.shape)} after `step`; `reset` must give what `step` gives."
            )
