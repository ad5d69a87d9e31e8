"""Parts shared by the agents with an actor and a stack of critics."""

from collections.abc import Callable
from typing import Any, Generic

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float, Int
from typing_extensions import TypeVar

from .._pytree.control_flow import filter_cond
from .._pytree.fields import checked_by, shown
from .._pytree.tree import (
    gradient_step,
    incremental_update,
    init_optimizer,
    tree_copy,
)
from .._types.custom_types import (
    CriticFunction,
    FloatLike,
    MakeOptimizer,
    Metrics,
    PyTree,
)
from .._types.data import AbstractActionSpace, AnyTransition, Box, Discrete, EnvSpec
from ..losses import bootstrapped_target, critic_loss, sac_temperature_loss
from ..nn import StochasticPolicy
from .base import AbstractMarkovAgent


# The agents for each kind of actions.
_FITTING: dict[type[AbstractActionSpace], tuple[str, ...]] = {
    Box: ("SAC", "TD3", "TAAC", "PPO"),
    Discrete: ("DQN", "DiscreteSAC", "PPO", "PQN"),
}

Network = TypeVar("Network")
Policy = TypeVar("Policy", default=StochasticPolicy)
Critics = TypeVar("Critics", default=CriticFunction)


def check_spec(
    agent_name: str,
    spec: EnvSpec,
    space: type[AbstractActionSpace],
    *,
    vector_reward: bool = False,
) -> None:
    """Checks an environment's actions and, unless `vector_reward`, its reward."""
    if not isinstance(spec.action, space):
        names = [f"`eqrl.{name}`" for name in _FITTING.get(type(spec.action), ())]
        advice = f"use {' or '.join(names)}" if names else "write an agent of your own"
        raise ValueError(
            f"`{agent_name}` picks actions out of a `{space.__name__}`, but "
            f"`spec.action={spec.action}`; {advice}."
        )
    if spec.reward_size is not None and not vector_reward:
        raise ValueError(
            f"`{agent_name}` learns from a scalar reward, but `spec.reward_size="
            f"{spec.reward_size}`: the environment gives a vector. Make it a scalar in "
            "the environment, or use an agent that takes vectors."
        )


def optimizers(*parts: str, default: MakeOptimizer = optax.adam) -> Any:
    """A field for an optimizer factory, or for a tuple with one for each part."""

    def check(name: str, value: object) -> None:
        # An optimizer is itself a tuple, of two functions.
        is_optimizer = isinstance(value, optax.GradientTransformation)
        factories: tuple[object, ...] = (value,) * len(parts)
        if isinstance(value, tuple) and not is_optimizer and len(parts) > 1:
            factories = value
        if len(factories) != len(parts) or not all(map(callable, factories)):
            several = f", or a tuple of {len(parts)}, for {', '.join(parts)}"
            raise ValueError(
                f"`{name}={shown(value)}` must be one factory, from a learning rate to "
                f"an optimizer{several if len(parts) > 1 else ''}."
            )

    # Typed like the result of `equinox.field`, which fits a field of any type.
    return eqx.field(default=default, static=True, metadata=checked_by(check))


def learning_rules(
    make_optimizer: MakeOptimizer | tuple[MakeOptimizer, ...], *rates: FloatLike
) -> tuple[optax.GradientTransformation, ...]:
    """The optimizers of an agent's parts, one for each learning rate."""
    # Called at every update, since a rate is a leaf that may have changed. The
    # optimizer's state does not hold it.
    if not isinstance(make_optimizer, tuple):
        make_optimizer = (make_optimizer,) * len(rates)
    return tuple(make(rate) for make, rate in zip(make_optimizer, rates, strict=True))


def reachable(
    log_temperature: Float[Array, ""],
    target: FloatLike | None,
    most: float,
    *,
    name: str = "target_entropy",
    what: str,
) -> Float[Array, ""]:
    """The initial `log_temperature`, if a policy can have the entropy `target`.

    `most` is the largest possible entropy, that of `what`, in nats. A larger `target`,
    passed by the user as `name`, raises a `ValueError`. If it is traced, Equinox raises
    an error when the program runs, unless several processes run it.
    """
    if target is None:
        return log_temperature
    limit = (
        f"more than {most:.3g}, the entropy of {what}: the temperature would grow "
        "without end. Lower it."
    )
    if isinstance(target, jax.core.Tracer):
        # An error in one of several processes would leave the others waiting for it.
        if jax.process_count() > 1:
            return log_temperature
        return eqx.error_if(log_temperature, target > most, f"`{name}` is {limit}")
    # The target has been rounded, and may be the largest possible.
    if float(target) > max(most, float(np.float32(most))):
        raise ValueError(f"`{name}={float(target):.3g}` is {limit}")
    return log_temperature


def clipped(
    optimizer: optax.GradientTransformation, max_norm: FloatLike
) -> optax.GradientTransformation:
    """The optimizer, with gradients first scaled to a norm of at most `max_norm`."""

    def scaled(gradient: PyTree, params: PyTree) -> PyTree:
        del params
        # In single precision, since squares of float16 overflow above 256.
        squares = [jnp.sum(x.astype(float) ** 2) for x in jax.tree.leaves(gradient)]
        norm = jnp.sqrt(jnp.sum(jnp.stack(squares)))
        # Zero gradients stay zero.
        factor = jnp.where(norm > max_norm, max_norm / jnp.maximum(norm, max_norm), 1)
        # Back to the dtype of each leaf, since they may differ.
        return jax.tree.map(lambda x: (factor * x).astype(x.dtype), gradient)

    return optax.chain(optax.stateless(scaled), optimizer)


def periodic_update(
    new: Network,
    old: Network,
    step_size: FloatLike,
    *,
    period: int,
    step: Int[Array, ""],
) -> Network:
    """Target networks after an update, moved toward `new` at every `period`-th one."""
    move = lambda new, old: incremental_update(new, old, step_size)
    if period == 1:
        return move(new, old)
    # `step` is never batched, so this stays a branch under `vmap` too.
    return filter_cond((step + 1) % period == 0, move, lambda new, old: old, new, old)


def critic_step(
    critics: Network,
    optimizer_state: optax.OptState,
    optimizer: optax.GradientTransformation,
    batch: AnyTransition,
    next_value: Float[Array, " batch"],
    *,
    reward_scale: FloatLike,
    discount: FloatLike,
    loss: Callable[..., Float[Array, ""]] = critic_loss,
) -> tuple[Network, optax.OptState, Float[Array, ""]]:
    """One gradient step of a stack of critics toward one target.

    `loss` takes the critics, observations, actions and targets; its value before the
    step is returned, too.
    """
    # A truncated transition bootstraps like any other: its next state has a value, even
    # though the time limit ended the episode.
    target = bootstrapped_target(
        reward_scale * batch.reward, batch.terminated, next_value, discount
    )
    error, gradient = eqx.filter_value_and_grad(loss)(
        critics, batch.observation, batch.action, target
    )
    critics, optimizer_state = gradient_step(
        critics, gradient, optimizer, optimizer_state
    )
    return critics, optimizer_state, error


class SACState(eqx.Module, Generic[Policy, Critics]):
    """State of `SAC` and `DiscreteSAC`."""

    actor: Policy
    critics: Critics
    target_critics: Critics
    log_temperature: Float[Array, ""]
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    temperature_optimizer: optax.OptState


SACState.__init__.__doc__ = """**Arguments:**

- `actor`: from one observation to a distribution with a density; in `DiscreteSAC`, to a
    `Softmax`.
- `critics`: a stack of critics; every array has one more leading axis.
- `target_critics`: a stack of slowly moving copies of the critics, used to compute
    the critics' targets.
- `log_temperature`: logarithm of the weight of the entropy.
- `actor_optimizer`, `critic_optimizer`, `temperature_optimizer`: the optimizers'
    states.
"""


class AbstractSoftActorCritic(
    AbstractMarkovAgent[SACState[Policy, Critics]], Generic[Policy, Critics]
):
    """An agent with the hyperparameters that `SAC` and `DiscreteSAC` share."""

    actor_lr: eqx.AbstractVar[FloatLike]
    critic_lr: eqx.AbstractVar[FloatLike]
    temperature_lr: eqx.AbstractVar[FloatLike]
    discount: eqx.AbstractVar[FloatLike]
    target_step_size: eqx.AbstractVar[FloatLike]
    reward_scale: eqx.AbstractVar[FloatLike]
    target_entropy: eqx.AbstractVar[FloatLike | None]
    initial_temperature: eqx.AbstractVar[FloatLike]
    learn_temperature: eqx.AbstractVar[bool]
    make_optimizer: eqx.AbstractVar[MakeOptimizer | tuple[MakeOptimizer, ...]]

    def _init_soft(
        self, actor: Policy, critics: Critics, *, most_entropy: float, what: str
    ) -> SACState[Policy, Critics]:
        """The initial state.

        If the temperature is learned, the target entropy must be at most
        `most_entropy`, in nats, the entropy of `what`.
        """
        # Learned by its logarithm, the temperature stays positive.
        log_temperature = jnp.log(self.initial_temperature)
        if self.learn_temperature:
            log_temperature = reachable(
                log_temperature, self.target_entropy, most_entropy, what=what
            )
        actor_rule, critic_rule, temperature_rule = self._learning_rules()
        return SACState(
            actor=actor,
            critics=critics,
            # A state that holds one array twice cannot be donated.
            target_critics=tree_copy(critics),
            log_temperature=log_temperature,
            actor_optimizer=init_optimizer(actor_rule, actor),
            critic_optimizer=init_optimizer(critic_rule, critics),
            temperature_optimizer=init_optimizer(temperature_rule, log_temperature),
        )

    def _update_soft(
        self,
        state: SACState[Policy, Critics],
        batch: AnyTransition,
        critic_batch: AnyTransition,
        *,
        next_value: Callable[..., Float[Array, " batch"]],
        critic_loss: Callable[..., Float[Array, ""]],
        actor_loss: Callable[..., tuple[Float[Array, ""], Metrics]],
        target_entropy: FloatLike,
    ) -> tuple[SACState[Policy, Critics], Metrics]:
        """A step of the critics, then of the actor, then of the temperature.

        - `batch`, `critic_batch`: the batch as the actor and as the critics see it.
        - `next_value`: function of actor, target critics, observations and temperature.
        - `critic_loss`: function of critics, observations, actions and targets.
        - `actor_loss`: function of actor, critics, observations and temperature, with
            the policy's entropy among its metrics.
        """
        actor_rule, critic_rule, temperature_rule = self._learning_rules()
        # A fixed temperature is read at each update, so changing it takes effect.
        log_temperature = state.log_temperature
        if not self.learn_temperature:
            log_temperature = jnp.log(self.initial_temperature)
        temperature = jnp.exp(log_temperature)

        critics, critic_optimizer, critic_error = critic_step(
            state.critics,
            state.critic_optimizer,
            critic_rule,
            critic_batch,
            next_value(
                state.actor, state.target_critics, batch.next_observation, temperature
            ),
            reward_scale=self.reward_scale,
            discount=self.discount,
            loss=critic_loss,
        )

        # The actor's step uses the updated critics, and the temperature's step the
        # entropy of the actions sampled for it.
        (actor_error, metrics), gradient = eqx.filter_value_and_grad(
            actor_loss, has_aux=True
        )(state.actor, critics, batch.observation, temperature)
        actor, actor_optimizer = gradient_step(
            state.actor, gradient, actor_rule, state.actor_optimizer
        )

        # Computed even if the temperature is fixed, so that the metrics are the same.
        temperature_error, gradient = eqx.filter_value_and_grad(sac_temperature_loss)(
            log_temperature, metrics["entropy"], target_entropy
        )
        temperature_optimizer = state.temperature_optimizer
        if self.learn_temperature:
            log_temperature, temperature_optimizer = gradient_step(
                log_temperature, gradient, temperature_rule, temperature_optimizer
            )

        state = SACState(
            actor=actor,
            critics=critics,
            target_critics=incremental_update(
                critics, state.target_critics, self.target_step_size
            ),
            log_temperature=log_temperature,
            actor_optimizer=actor_optimizer,
            critic_optimizer=critic_optimizer,
            temperature_optimizer=temperature_optimizer,
        )
        return state, {
            "critic_loss": critic_error,
            "actor_loss": actor_error,
            "temperature_loss": temperature_error,
            "temperature": temperature,
            "entropy": metrics["entropy"],
        }

    def _learning_rules(self) -> tuple[optax.GradientTransformation, ...]:
        rates = (self.actor_lr, self.critic_lr, self.temperature_lr)
        return learning_rules(self.make_optimizer, *rates)
