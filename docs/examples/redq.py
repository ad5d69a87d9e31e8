"""Randomized ensembled double Q-learning (Chen et al., arXiv 2101.05982)."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array

import eqrl
from eqrl import losses, nn


class REDQState(eqx.Module):
    actor: nn.GaussianPolicy
    critics: nn.StateActionValue
    targets: nn.StateActionValue
    optimizers: tuple[optax.OptState, ...]


class REDQ(eqrl.AbstractMarkovAgent[REDQState]):
    learning_rate: eqrl.FloatLike = eqrl.hyperparameter(3e-4)
    discount: eqrl.FloatLike = eqrl.hyperparameter(0.99)
    temperature: eqrl.FloatLike = eqrl.hyperparameter(0.1)
    target_step_size: eqrl.FloatLike = eqrl.hyperparameter(0.005)
    num_critics: int = eqx.field(default=10, static=True)
    hidden_sizes: tuple[int, ...] = eqx.field(default=(256, 256), static=True)

    def init(self, spec: eqrl.EnvSpec, *, key: Array) -> REDQState:
        actor_key, critic_key = jr.split(key)
        sizes = (spec.observation_size, spec.action_size)
        actor = nn.Gaussian(self.hidden_sizes)(*sizes, key=actor_key)
        make_critic = nn.Critic(self.hidden_sizes)
        keys = jr.split(critic_key, self.num_critics)
        critics = eqx.filter_vmap(lambda key: make_critic(*sizes, key=key))(keys)
        init = optax.adam(self.learning_rate).init
        optimizers = [init(eqx.filter(x, eqx.is_array)) for x in (actor, critics)]
        targets = eqrl.tree_copy(critics)
        return REDQState(actor, critics, targets, tuple(optimizers))

    def policy(self, state: REDQState) -> nn.GaussianPolicy:
        return state.actor

    def update(
        self, state: REDQState, batch: eqrl.Transition, *, step: Array, key: Array
    ) -> tuple[REDQState, eqrl.Metrics]:
        choice_key, next_key, actor_key = jr.split(key, 3)
        chosen = jr.choice(choice_key, self.num_critics, (2,), replace=False)
        subset = jax.tree.map(lambda x: x[chosen], state.targets)
        next_value = losses.sac_next_value(
            state.actor, subset, batch.next_observation, self.temperature, key=next_key
        )
        target = losses.bootstrapped_target(
            batch.reward, batch.terminated, next_value, self.discount
        )
        loss, gradient = jax.value_and_grad(losses.critic_loss)(
            state.critics, batch.observation, batch.action, target
        )
        adam = optax.adam(self.learning_rate)
        critics, critic_optimizer = eqrl.gradient_step(
            state.critics, gradient, adam, state.optimizers[1]
        )

        def actor_loss(actor: nn.GaussianPolicy) -> Array:
            draw = lambda x, key: actor(x).sample_and_log_prob(key=key)
            keys = jr.split(actor_key, batch.reward.shape[0])
            action, log_prob = jax.vmap(draw)(batch.observation, keys)
            values = losses.critic_values(critics, batch.observation, action)
            return jnp.mean(self.temperature * log_prob - jnp.mean(values, axis=0))

        gradient = jax.grad(actor_loss)(state.actor)
        actor, actor_optimizer = eqrl.gradient_step(
            state.actor, gradient, adam, state.optimizers[0]
        )
        targets = eqrl.incremental_update(critics, state.targets, self.target_step_size)
        state = REDQState(actor, critics, targets, (actor_optimizer, critic_optimizer))
        return state, {"critic_loss": loss}
