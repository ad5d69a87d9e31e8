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
                f"The leaf `{jax.tree_util.keystr(path)}` of the environment's state "
                f"is {old.dtype}{list(old.shape)} after `reset` but {new.dtype}"
                f"{list(new.shape)} after `step`; `reset` must give what `step` gives."
            )


def check_sizes(
    *,
    num_envs: int,
    batch_size: int,
    capacity: int,
    warmup_steps: int,
    sequence_length: int,
) -> None:
    """Raises a `ValueError` where the sizes of a trainer cannot work together."""
    rows = capacity // num_envs
    if rows < sequence_length:
        raise ValueError(
            f"`capacity={capacity}` gives each of `num_envs={num_envs}` "
            f"environments {rows} transitions, but the agent learns from "
            f"`sequence_length={sequence_length}` in a row; make it at least "
            f"{sequence_length * num_envs}."
        )
    if capacity < batch_size * sequence_length:
        raise ValueError(
            f"`capacity={capacity}` is less than one batch, of "
            f"batch_size * sequence_length = {batch_size} * {sequence_length} "
            "transitions; raise `capacity` or lower `batch_size`."
        )
    if warmup_steps < sequence_length * num_envs:
        raise ValueError(
            f"`warmup_steps={warmup_steps}` must be at least "
            f"sequence_length * num_envs = {sequence_length} * {num_envs}, so that "
            "there is something to sample at the first update."
        )
    if warmup_steps > capacity:
        raise ValueError(
            f"`warmup_steps={warmup_steps}` is more than `capacity="
            f"{capacity}`: the first of them would be overwritten before "
            "anything is learnt. Raise `capacity` or lower `warmup_steps`."
        )
