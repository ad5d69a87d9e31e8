"""What the agents with an actor and a stack of critics share in `init`."""

from collections.abc import Callable
from typing import Any, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, PRNGKeyArray, PyTree

from .._pytree.tree import gradient_step
from .._types.custom_types import FloatLike, MakeOptimizer
from .._types.data import EnvSpec, Transition
from ..losses import Critic, bootstrapped_target, critic_loss
from ..nn import AbstractDensity, Actor, StochasticPolicy


MakeNetwork = Callable[..., Any]
"""A factory `(observation_size, action_size, *, key)`."""

Model = TypeVar("Model")
Critics = TypeVar("Critics", bound=Critic)


def check_scalar_reward(agent_name: str, spec: EnvSpec) -> None:
    """Raises a `ValueError` where the environment's reward is a vector."""
    if spec.reward_size is not None:
        raise ValueError(
            f"`{agent_name}` learns from a scalar reward, but `spec.reward_size="
            f"{spec.reward_size}`: the environment gives a vector. Make it a scalar in "
            "the environment, or use an agent that takes vectors."
        )


def check_action(actor: Actor, spec: EnvSpec) -> None:
    """Raises a `ValueError` where an actor's output does not fit the action."""
    action = eqx.filter_eval_shape(actor, _observation(spec))
    if not isinstance(action, jax.ShapeDtypeStruct):
        raise ValueError(
            f"The actor of `make_actor` gives a {type(action).__name__}; it must give "
            "an action, from one observation, as `eqrl.nn.Deterministic` makes it."
        )
    _check_action_shape(action.shape, spec)


def check_density(policy: StochasticPolicy, spec: EnvSpec) -> None:
    """Raises a `ValueError` where a policy gives no density over actions that fit."""
    density = eqx.filter_eval_shape(policy, _observation(spec))
    if not isinstance(density, AbstractDensity):
        raise ValueError(
            f"The actor of `make_actor` gives a {type(density).__name__}; it must give "
            "an `eqrl.nn.AbstractDensity`, such as `eqrl.nn.TanhNormal`, from one "
            "observation, as `eqrl.nn.Gaussian` makes it."
        )
    action = eqx.filter_eval_shape(
        lambda observation: policy(observation).mode(), _observation(spec)
    )
    _check_action_shape(action.shape, spec)


def _observation(spec: EnvSpec) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((spec.observation_size,), jnp.result_type(float))


def _check_action_shape(shape: tuple[int, ...], spec: EnvSpec) -> None:
    if shape != (spec.action_size,):
        raise ValueError(
            f"The actor of `make_actor` gives actions of shape {shape} for one "
            f"observation of shape {(spec.observation_size,)}, but the environment "
            f"takes {(spec.action_size,)}. Write it for a single observation, and let "
            "its output follow the `action_size` it is made with."
        )


def make_critics(
    make_critic: MakeNetwork,
    num_critics: int,
    spec: EnvSpec,
    *,
    trajectory_size: int | None = None,
    key: PRNGKeyArray,
) -> Any:
    """A stack of critics, each with weights of its own.

    With a `trajectory_size` they value vectors of that length in place of actions, and
    give a value for each dimension of the reward.
    """
    sizes = (spec.observation_size, spec.action_size)
    if trajectory_size is None:
        options, valued_size, expected = {}, spec.action_size, ()
    else:
        options = {"trajectory_size": trajectory_size, "reward_size": spec.reward_size}
        valued_size = trajectory_size
        expected = () if spec.reward_size is None else (spec.reward_size,)

    def make(key: PRNGKeyArray) -> Any:
        return make_critic(*sizes, **options, key=key)

    critics = eqx.filter_vmap(make)(jr.split(key, num_critics))

    def values(observation: PyTree, action: PyTree) -> PyTree:
        return eqx.filter_vmap(lambda critic: critic(observation, action))(critics)

    dtype = jnp.result_type(float)
    value = eqx.filter_eval_shape(
        values,
        jax.ShapeDtypeStruct((spec.observation_size,), dtype),
        jax.ShapeDtypeStruct((valued_size,), dtype),
    )
    shape = getattr(value, "shape", (None,))[1:]
    if shape != expected:
        what = "a scalar, of shape ()" if expected == () else f"of shape {expected}"
        raise ValueError(
            f"A critic of `make_critic` gives a value of shape {shape} for one "
            f"observation and one action; it must be {what}."
        )
    return critics


def learning_rule(
    make_optimizer: MakeOptimizer | tuple[MakeOptimizer, ...],
    index: int,
    learning_rate: FloatLike,
) -> optax.GradientTransformation:
    """The optimizer of the part `index`: actor, critic, temperature."""
    if isinstance(make_optimizer, tuple):
        return make_optimizer[index](learning_rate)
    return make_optimizer(learning_rate)


def check_make_optimizer(
    make_optimizer: MakeOptimizer | tuple[MakeOptimizer, ...], parts: tuple[str, ...]
) -> None:
    """Raises a `ValueError` unless there is one factory, or one for each part."""
    is_tuple = isinstance(make_optimizer, tuple)
    factories = make_optimizer if is_tuple else (make_optimizer,) * len(parts)
    if len(factories) != len(parts) or not all(map(callable, factories)):
        raise ValueError(
            f"`make_optimizer={make_optimizer!r}` must be one factory, from a learning "
            f"rate to an optimizer, or a tuple of {len(parts)}, for {', '.join(parts)}."
        )


def init_optimizer(
    optimizer: optax.GradientTransformation, model: PyTree
) -> optax.OptState:
    """An optimizer's first state for the inexact arrays of `model`."""
    return optimizer.init(eqx.filter(model, eqx.is_inexact_array))


def critic_step(
    critics: Critics,
    optimizer_state: optax.OptState,
    optimizer: optax.GradientTransformation,
    batch: Transition[Any],
    next_value: Float[Array, " batch"],
    *,
    reward_scale: FloatLike,
    discount: FloatLike,
) -> tuple[Critics, optax.OptState, Float[Array, ""]]:
    """One step of a stack of critics towards one target, and the loss before it."""
    target = bootstrapped_target(
        reward_scale * batch.reward, batch.terminated, next_value, discount
    )
    loss, gradient = eqx.filter_value_and_grad(critic_loss)(
        critics, batch.observation, batch.action, target
    )
    critics, optimizer_state = gradient_step(
        critics, gradient, optimizer, optimizer_state
    )
    return critics, optimizer_state, loss
