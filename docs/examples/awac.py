"""Advantage-weighted actor-critic (Nair et al., arXiv 2006.09359).

Unlike there, the policy is a tanh-normal, and weights have an upper bound.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array

import eqrl
from eqrl import losses, nn


class AWACState(eqx.Module):
    actor: nn.GaussianPolicy
    critics: nn.StateActionValue
    targets: nn.StateActionValue
    optimizers: tuple[optax.OptState, ...]


class AWAC(eqrl.AbstractMarkovAgent[AWACState]):
    learning_rate: eqrl.FloatLike = eqrl.hyperparameter(3e-4, low=0)
    discount: eqrl.FloatLike = eqrl.hyperparameter(0.99, low=0, high=1)
    temperature: eqrl.FloatLike = eqrl.hyperparameter(1.0, low=0, low_open=True)
    max_weight: eqrl.FloatLike = eqrl.hyperparameter(100.0, low=1)
    target_step_size: eqrl.FloatLike = eqrl.hyperparameter(0.005, low=0, high=1)
    hidden_sizes: tuple[int, ...] = eqx.field(default=(256, 256), static=True)

    def init(self, spec: eqrl.EnvSpec, *, key: Array) -> AWACState:
        actor_key, critic_key = jr.split(key)
        sizes = (spec.observation_size, spec.action_size)
        actor = nn.Gaussian(self.hidden_sizes)(*sizes, key=actor_key)
        make_critic = lambda key: nn.Critic(self.hidden_sizes)(*sizes, key=key)
        critics = eqx.filter_vmap(make_critic)(jr.split(critic_key, 2))
        init = optax.adam(self.learning_rate).init
        optimizers = tuple(init(eqx.filter(x, eqx.is_array)) for x in (actor, critics))
        return AWACState(actor, critics, eqrl.tree_copy(critics), optimizers)

    def policy(self, state: AWACState) -> nn.GaussianPolicy:
        return state.actor

    def update(
        self, state: AWACState, batch: eqrl.Transition, *, step: Array, key: Array
    ) -> tuple[AWACState, eqrl.Metrics]:
        next_key, key = jr.split(key)
        see, act = batch.observation, batch.action
        step_by = lambda gradient, part, index: eqrl.gradient_step(
            part, gradient, optax.adam(self.learning_rate), state.optimizers[index]
        )
        value = lambda critics, observation, key: losses.sac_next_value(
            state.actor, critics, observation, 0.0, key=key
        )
        next_value = value(state.targets, batch.next_observation, next_key)
        target = losses.bootstrapped_target(
            batch.reward, batch.terminated, next_value, self.discount
        )
        loss, gradient = jax.value_and_grad(losses.critic_loss)(
            state.critics, see, act, target
        )
        critics, critic_optimizer = step_by(gradient, state.critics, 1)
        advantage = jnp.min(losses.critic_values(critics, see, act), axis=0)
        advantage -= value(critics, see, key)
        weight = jnp.minimum(jnp.exp(advantage / self.temperature), self.max_weight)
        error, gradient = jax.value_and_grad(weighted_loss)(state.actor, batch, weight)
        actor, actor_optimizer = step_by(gradient, state.actor, 0)
        targets = eqrl.incremental_update(critics, state.targets, self.target_step_size)
        state = AWACState(actor, critics, targets, (actor_optimizer, critic_optimizer))
        return state, {"critic_loss": loss, "actor_loss": error}


def weighted_loss(
    actor: nn.GaussianPolicy, batch: eqrl.Transition, weight: Array
) -> Array:
    policy = jax.vmap(actor)(batch.observation)
    log_prob = jax.vmap(nn.TanhNormal.log_prob)(policy, batch.action)
    return -jnp.mean(weight * log_prob)
