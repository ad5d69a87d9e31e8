"""Behavior cloning: the actions of a data set, imitated by maximum likelihood."""

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array

import eqrl
from eqrl import nn


class BCState(eqx.Module):
    actor: nn.GaussianPolicy
    optimizer: optax.OptState


class BC(eqrl.AbstractMarkovAgent[BCState]):
    learning_rate: eqrl.FloatLike = eqrl.hyperparameter(3e-4, low=0)
    hidden_sizes: tuple[int, ...] = eqx.field(default=(256, 256), static=True)

    def init(self, spec: eqrl.EnvSpec, *, key: Array) -> BCState:
        make_actor = nn.Gaussian(self.hidden_sizes)
        actor = make_actor(spec.observation_size, spec.action_size, key=key)
        optimizer = optax.adam(self.learning_rate)
        return BCState(actor, optimizer.init(eqx.filter(actor, eqx.is_inexact_array)))

    def policy(self, state: BCState) -> nn.GaussianPolicy:
        return state.actor

    def update(
        self, state: BCState, batch: eqrl.Transition, *, step: Array, key: Array
    ) -> tuple[BCState, eqrl.Metrics]:
        (loss, error), gradient = eqx.filter_value_and_grad(actor_loss, has_aux=True)(
            state.actor, batch.observation, batch.action
        )
        actor, optimizer = eqrl.gradient_step(
            state.actor, gradient, optax.adam(self.learning_rate), state.optimizer
        )
        return BCState(actor, optimizer), {"actor_loss": loss, "action_error": error}


def actor_loss(
    actor: nn.GaussianPolicy, observation: Array, action: Array
) -> tuple[Array, Array]:
    policy = jax.vmap(actor)(observation)
    log_prob = jax.vmap(nn.TanhNormal.log_prob)(policy, action)
    error = jnp.mean(jnp.abs(jax.vmap(nn.TanhNormal.mode)(policy) - action))
    return -jnp.mean(log_prob), error
