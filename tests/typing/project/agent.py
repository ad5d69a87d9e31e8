"""An agent that moves its policy towards actions that were better than expected."""

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

import eqrl
from eqrl import losses, nn


class ImitatorState(eqx.Module):
    """What `Imitator` learns."""

    actor: nn.GaussianPolicy
    critics: nn.StateActionValue
    target_critics: nn.StateActionValue
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState


class Imitator(eqrl.AbstractMarkovAgent[ImitatorState]):
    """Imitates the actions of the replay, the more the better they were."""

    lr: eqrl.FloatLike = eqrl.hyperparameter(1e-3, low=0)
    discount: eqrl.FloatLike = eqrl.hyperparameter(0.97, low=0, high=1)
    sharpness: eqrl.FloatLike = eqrl.hyperparameter(2.0, low=0)
    num_critics: int = eqx.field(default=2, static=True)
    make_actor: nn.Gaussian = eqx.field(default=nn.Gaussian((16,)), static=True)
    make_critic: nn.Critic = eqx.field(default=nn.Critic((16,)), static=True)

    def __check_init__(self) -> None:
        eqrl.check_fields(self)

    def init(self, spec: eqrl.EnvSpec, *, key: PRNGKeyArray) -> ImitatorState:
        actor_key, critic_key = jr.split(key)
        sizes = (spec.observation_size, spec.action_size)
        actor = self.make_actor(*sizes, key=actor_key)

        def make(key: PRNGKeyArray) -> nn.StateActionValue:
            return self.make_critic(*sizes, key=key)

        critics: eqrl.Stacked[nn.StateActionValue, "critics"] = eqx.filter_vmap(make)(
            jr.split(critic_key, self.num_critics)
        )
        return ImitatorState(
            actor=actor,
            critics=critics,
            target_critics=eqrl.tree_copy(critics),
            actor_optimizer=self._rule().init(eqx.filter(actor, eqx.is_array)),
            critic_optimizer=self._rule().init(eqx.filter(critics, eqx.is_array)),
        )

    def policy(self, state: ImitatorState) -> nn.GaussianPolicy:
        return state.actor

    def update(
        self,
        state: ImitatorState,
        batch: eqrl.Transition[None],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[ImitatorState, eqrl.Metrics]:
        del step
        next_key, compare_key = jr.split(key)
        next_action = drawn(state.actor, batch.next_observation, key=next_key)
        next_value = jnp.min(
            losses.critic_values(
                state.target_critics, batch.next_observation, next_action
            ),
            axis=0,
        )
        target = losses.bootstrapped_target(
            batch.reward, batch.terminated, next_value, self.discount
        )
        critic_loss, gradient = eqx.filter_value_and_grad(losses.critic_loss)(
            state.critics, batch.observation, batch.action, target
        )
        critics, critic_optimizer = eqrl.gradient_step(
            state.critics, gradient, self._rule(), state.critic_optimizer
        )
        usual = drawn(state.actor, batch.observation, key=compare_key)
        weights = self._weights(critics, batch, usual)
        actor_loss, gradient = eqx.filter_value_and_grad(imitation_loss)(
            state.actor, batch.observation, batch.action, weights
        )
        actor, actor_optimizer = eqrl.gradient_step(
            state.actor, gradient, self._rule(), state.actor_optimizer
        )
        return ImitatorState(
            actor=actor,
            critics=critics,
            target_critics=eqrl.incremental_update(critics, state.target_critics, 0.01),
            actor_optimizer=actor_optimizer,
            critic_optimizer=critic_optimizer,
        ), {"critic_loss": critic_loss, "actor_loss": actor_loss}

    def _rule(self) -> optax.GradientTransformation:
        return optax.adam(self.lr)

    def _weights(
        self,
        critics: eqrl.Stacked[nn.StateActionValue, "critics"],
        batch: eqrl.Transition[None],
        usual: Float[Array, "batch act"],
    ) -> Float[Array, " batch"]:
        taken, expected = (
            jnp.min(losses.critic_values(critics, batch.observation, action), axis=0)
            for action in (batch.action, usual)
        )
        return jax.nn.softmax(self.sharpness * (taken - expected))


def drawn(
    policy: nn.StochasticPolicy,
    observation: Float[Array, "batch obs"],
    *,
    key: PRNGKeyArray,
) -> Float[Array, "batch act"]:
    """An action of the policy for each observation."""

    def draw(
        observation: Float[Array, " obs"], key: PRNGKeyArray
    ) -> Float[Array, " act"]:
        return policy(observation).sample(key=key)

    return jax.vmap(draw)(observation, jr.split(key, observation.shape[0]))


def imitation_loss(
    policy: nn.GaussianPolicy,
    observation: Float[Array, "batch obs"],
    action: Float[Array, "batch act"],
    weights: Float[Array, " batch"],
) -> Float[Array, ""]:
    """Squared distance of the policy's means to the weighted actions."""
    means = jax.vmap(lambda x: policy(x).mode())(observation)
    return jnp.sum(weights * jnp.sum((means - action) ** 2, axis=-1))
