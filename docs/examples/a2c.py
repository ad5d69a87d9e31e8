"""Advantage actor-critic for discrete actions (Mnih et al., arXiv 1602.01783)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array

import eqrl
from eqrl import losses, nn


class A2CState(eqx.Module):
    actor: nn.ChoicePolicy
    critic: nn.StateValue
    optimizer: optax.OptState


class A2C(eqrl.AbstractOnPolicyAgent[A2CState]):
    learning_rate: eqrl.FloatLike = eqrl.hyperparameter(7e-4, low=0)
    discount: eqrl.FloatLike = eqrl.hyperparameter(0.99, low=0, high=1)
    entropy_weight: eqrl.FloatLike = eqrl.hyperparameter(0.01)
    hidden_sizes: tuple[int, ...] = eqx.field(default=(64, 64), static=True)

    def init(self, spec: eqrl.EnvSpec, *, key: Array) -> A2CState:
        actor_key, critic_key = jr.split(key)
        sizes = (spec.observation_size, spec.action.num_outputs)
        actor = nn.Choice(self.hidden_sizes)(*sizes, key=actor_key)
        critic = nn.Value(self.hidden_sizes)(spec.observation_size, key=critic_key)
        learned = eqx.filter((actor, critic), eqx.is_inexact_array)
        return A2CState(actor, critic, self._optimizer().init(learned))

    def policy(self, state: A2CState) -> nn.ChoicePolicy:
        return state.actor

    def update(
        self, state: A2CState, batch: eqrl.Transition, *, step: Array, key: Array
    ) -> tuple[A2CState, eqrl.Metrics]:
        next_value = jax.vmap(jax.vmap(state.critic))(batch.next_observation)
        returns = jax.vmap(losses.lambda_return, in_axes=(0, 0, 0, 0, None, None))(
            batch.reward,
            batch.terminated,
            batch.truncated,
            next_value,
            self.discount,
            1.0,  # Each return counts all rewards up to the end of the rollout.
        )

        def loss(
            networks: tuple[nn.ChoicePolicy, nn.StateValue],
        ) -> tuple[Array, eqrl.Metrics]:
            actor, critic = networks
            policies = jax.vmap(jax.vmap(actor))(batch.observation)
            log_prob = jax.vmap(jax.vmap(nn.Softmax.log_prob))(policies, batch.action)
            entropy = jnp.mean(jax.vmap(jax.vmap(nn.Softmax.entropy))(policies))
            error = returns - jax.vmap(jax.vmap(critic))(batch.observation)
            actor_loss = -jnp.mean(log_prob * jax.lax.stop_gradient(error))
            critic_loss = 0.5 * jnp.mean(error**2)
            total = actor_loss + 0.5 * critic_loss - self.entropy_weight * entropy
            return total, {"actor_loss": actor_loss, "critic_loss": critic_loss}

        networks = (state.actor, state.critic)
        gradient, metrics = eqx.filter_grad(loss, has_aux=True)(networks)
        (actor, critic), optimizer = eqrl.gradient_step(
            networks, gradient, self._optimizer(), state.optimizer
        )
        return A2CState(actor, critic, optimizer), metrics

    def _optimizer(self) -> optax.GradientTransformation:
        adam = optax.adam(self.learning_rate, eps=1e-5)
        return optax.chain(optax.clip_by_global_norm(0.5), adam)
