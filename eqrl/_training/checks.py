from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PRNGKeyArray

from .._agents import AbstractAgent
from .._interaction.actors import Actors
from .._skills.prior import AbstractSkillPrior
from .._types.data import EnvSpec
from ..envs import AbstractEnv


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
    _check_flag("terminated", outcome.terminated)
    _check_flag("truncated", outcome.truncated)
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
    if not _is_float(value) or value.shape != (size,):
        raise ValueError(
            f"{what} of {_described(value)}, but `spec` asks for a flat vector of "
            f"floats of shape {(size,)}; flatten and cast it in the environment."
        )


def _check_reward(reward: Any, reward_size: int | None) -> None:
    expected = () if reward_size is None else (reward_size,)
    if not _is_float(reward) or reward.shape != expected:
        raise ValueError(
            f"The reward is of {_described(reward)}, but `spec.reward_size="
            f"{reward_size}` asks for an array of floats of shape {expected}; a vector "
            "of length 1 is no scalar."
        )


def _check_flag(name: str, flag: Any) -> None:
    if not _is_array(flag) or flag.shape != () or flag.dtype != jnp.bool_:
        raise ValueError(
            f"`step` gives a `{name}` of {_described(flag)}; it must be an array of "
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
        if _is_array(old) and _is_array(new):
            same = (old.shape, old.dtype) == (new.shape, new.dtype)
        else:
            # A function may be part of a state, a Python number may not: it would be
            # an array after the first step.
            same = callable(old) and old == new
        if not same:
            raise ValueError(
                f"The leaf `{jax.tree_util.keystr(path)}` of the environment's state "
                f"is of {_described(old)} after `reset` but of {_described(new)} after "
                "`step`; both must be arrays of the same type."
            )


def _is_array(value: Any) -> bool:
    return isinstance(value, jax.ShapeDtypeStruct)


def _is_float(value: Any) -> bool:
    return _is_array(value) and jnp.issubdtype(value.dtype, jnp.floating)


def _described(value: Any) -> str:
    if _is_array(value):
        return f"shape {value.shape} and type {value.dtype}"
    return f"the Python type {type(value).__name__}"


def check_action(
    agent: AbstractAgent[Any, Any, Any],
    state: Any,
    actors: Actors[Any, Any],
    spec: EnvSpec,
    *,
    key: PRNGKeyArray,
) -> None:
    """Raises a `ValueError` where an agent's actions do not fit the environment."""

    def act(actor: Actors[Any, Any]) -> Array:
        action, _, _ = agent.act(
            state, actor.memory, actor.observation, mode="sample", key=key
        )
        return action

    shape = eqx.filter_eval_shape(eqx.filter_vmap(act), actors).shape[1:]
    if shape != (spec.action_size,):
        raise ValueError(
            f"`act` gives actions of shape {shape}, but `spec.action_size="
            f"{spec.action_size}` asks for {(spec.action_size,)}."
        )


def check_metrics(metrics: dict[str, Any]) -> None:
    """Raises a `ValueError` where an agent's metrics are not scalars of free names."""
    for name, value in metrics.items():
        if name in ("step", "nonfinite"):
            raise ValueError(
                f"The metric `{name}` is the trainer's; name it otherwise."
            )
        if not _is_float(value) or value.shape != ():
            raise ValueError(
                f"The metric `{name}` is of {_described(value)}; it must be a scalar "
                "array of floats."
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
    held = rows * num_envs
    if rows < sequence_length:
        raise ValueError(
            f"`capacity={capacity}` gives each of `num_envs={num_envs}` environments "
            f"{rows} transitions, but the agent learns from `sequence_length="
            f"{sequence_length}` in a row; make it at least "
            f"{sequence_length * num_envs}."
        )
    if held < batch_size * sequence_length:
        raise ValueError(
            f"`capacity={capacity}` holds {held} transitions, less than one batch of "
            f"batch_size * sequence_length = {batch_size} * {sequence_length}; raise "
            "`capacity` or lower `batch_size`."
        )
    if warmup_steps < sequence_length * num_envs:
        raise ValueError(
            f"`warmup_steps={warmup_steps}` must be at least "
            f"sequence_length * num_envs = {sequence_length} * {num_envs}, so that "
            "there is something to sample at the first update."
        )
    if warmup_steps > held:
        raise ValueError(
            f"`warmup_steps={warmup_steps}` is more than the {held} transitions that "
            f"`capacity={capacity}` holds: the first of them would be overwritten "
            "before anything is learnt. Raise `capacity` or lower `warmup_steps`."
        )


def check_skills(agent: AbstractAgent[Any, Any, Any], num_envs: int) -> None:
    """Raises a `ValueError` where skills cannot be laid over the environments."""

    def is_prior(node: Any) -> bool:
        return isinstance(node, AbstractSkillPrior)

    for node in jax.tree.leaves(agent, is_leaf=is_prior):
        if is_prior(node):
            node.check_num_envs(num_envs)


def check_same_shapes(name: str, expected: Any, given: Any) -> None:
    """Raises a `ValueError` unless two trees have the same structure and shapes."""
    expected, given = (
        eqx.filter_eval_shape(lambda tree: tree, x) for x in (expected, given)
    )
    if jax.tree.structure(expected) != jax.tree.structure(given):
        raise ValueError(
            f"`{name}` is of another kind of agent or environment: it is a "
            f"{type(given).__name__} of another structure than the one of this agent "
            "here. Go on with what it was trained with."
        )
    paths = jax.tree_util.tree_flatten_with_path(expected)[0]
    for (path, wanted), found in zip(paths, jax.tree.leaves(given), strict=True):
        if isinstance(wanted, jax.ShapeDtypeStruct) and wanted != found:
            raise ValueError(
                f"`{name}` does not fit this agent, environment and trainer: its leaf "
                f"`{jax.tree_util.keystr(path)}` is {found.dtype}{list(found.shape)}, "
                f"but {wanted.dtype}{list(wanted.shape)} is needed. Go on with the "
                "sizes it was trained with."
            )
