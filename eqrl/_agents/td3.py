import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.control_flow import filter_cond
from .._pytree.fields import hyperparameter, static_integer
from .._pytree.tree import (
    gradient_step,
    incremental_update,
    init_optimizer,
    take_element,
    tree_copy,
)
from .._types.custom_types import CriticFunction, FloatLike, MakeOptimizer, Metrics
from .._types.data import Box, EnvSpec, Transition
from ..losses import td3_actor_loss, td3_next_value
from ..nn import Actor, Critic, Deterministic, ExploringPolicy, MakeActor, MakeCritic
from .actor_critic import (
    check_spec,
    critic_step,
    learning_rules,
    optimizers,
)
from .base import AbstractMarkovAgent
from .networks import ACTOR, critic, make_network


class TD3State(eqx.Module):
    """State of `TD3`."""

    actor: Actor
    target_actor: Actor
    critics: CriticFunction
    target_critics: CriticFunction
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState


TD3State.__init__.__doc__ = """**Arguments:**

- `actor`: from one observation to one action.
- `target_actor`: a slowly moving copy of the actor.
- `critics`: a stack of critics; every array has one more leading axis.
- `target_critics`: a stack of slowly moving copies of the critics. The critics' targets
    are computed from these and the target actor.
- `actor_optimizer`, `critic_optimizer`: the optimizers' states.
"""


class TD3(AbstractMarkovAgent[TD3State]):
    """Twin delayed deep deterministic policy gradient.

    The critics and their targets move at every update. The actor's gradient is
    computed, and the actor and its target move, only at every `policy_delay`-th update.
    In the paper the target critics are delayed, too.

    The metrics are `critic_loss` and `actor_loss`.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{fujimoto2018addressing,
            title={Addressing Function Approximation Error in Actor-Critic Methods},
            author={Fujimoto, Scott and van Hoof, Herke and Meger, David},
            booktitle={International Conference on Machine Learning},
            year={2018},
        }
        ```
    """

    actor_lr: FloatLike = hyperparameter(3e-4, low=0)
    critic_lr: FloatLike = hyperparameter(3e-4, low=0)
    discount: FloatLike = hyperparameter(0.99, low=0, high=1)
    target_step_size: FloatLike = hyperparameter(0.005, low=0, high=1)
    reward_scale: FloatLike = hyperparameter(1.0)
    exploration_noise: FloatLike = hyperparameter(0.1, low=0)
    policy_noise: FloatLike = hyperparameter(0.2, low=0)
    noise_clip: FloatLike = hyperparameter(0.5, low=0)
    policy_delay: int = static_integer(2, least=1)
    num_critics: int = static_integer(2, least=1)
    make_actor: MakeActor = eqx.field(default=Deterministic(), static=True)
    make_critic: MakeCritic = eqx.field(default=Critic(), static=True)
    make_optimizer: MakeOptimizer | tuple[MakeOptimizer, ...] = optimizers(
        "actor", "critic"
    )

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> TD3State:
        check_spec("TD3", spec, Box)
        actor_key, critic_key = jr.split(key)
        actor = make_network(ACTOR, "make_actor", self.make_actor, spec, key=actor_key)
        critics = make_network(
            critic(),
            "make_critic",
            self.make_critic,
            spec,
            number=self.num_critics,
            key=critic_key,
        )
        actor_rule, critic_rule = learning_rules(
            self.make_optimizer, self.actor_lr, self.critic_lr
        )
        return TD3State(
            actor=actor,
            # Copies, since a state that holds one array twice cannot be donated.
            target_actor=tree_copy(actor),
            critics=critics,
            target_critics=tree_copy(critics),
            actor_optimizer=init_optimizer(actor_rule, actor),
            critic_optimizer=init_optimizer(critic_rule, critics),
        )

    def policy(self, state: TD3State) -> ExploringPolicy:
        return ExploringPolicy(
            actor=state.actor, noise=jnp.asarray(self.exploration_noise)
        )

    def update(
        self,
        state: TD3State,
        batch: Transition[None],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[TD3State, Metrics]:
        actor_rule, critic_rule = learning_rules(
            self.make_optimizer, self.actor_lr, self.critic_lr
        )
        before, after = batch.critic_observation, batch.next_critic_observation
        next_value = td3_next_value(
            state.target_actor,
            state.target_critics,
            batch.next_observation,
            self.policy_noise,
            self.noise_clip,
            critic_observation=after,
            key=key,
        )
        critics, critic_optimizer, critic_loss = critic_step(
            state.critics,
            state.critic_optimizer,
            critic_rule,
            batch.for_critics,
            next_value,
            reward_scale=self.reward_scale,
            discount=self.discount,
        )
        # The paper's actor learns from the first critic alone.
        first_critic = take_element(critics, 0)

        def actor_step(
            actor: Actor, target_actor: Actor, optimizer: optax.OptState
        ) -> tuple[Actor, Actor, optax.OptState, Float[Array, ""]]:
            loss, gradient = eqx.filter_value_and_grad(td3_actor_loss)(
                actor, first_critic, batch.observation, critic_observation=before
            )
            actor, optimizer = gradient_step(actor, gradient, actor_rule, optimizer)
            target_actor = incremental_update(
                actor, target_actor, self.target_step_size
            )
            # The same dtype as in the branch without a step.
            return actor, target_actor, optimizer, loss.astype(float)

        # `step` is never batched, so this stays a branch under `vmap` too. Where the
        # actor does not move, its loss is not computed but reported as `nan`.
        actor, target_actor, actor_optimizer, actor_loss = filter_cond(
            step % self.policy_delay == 0,
            actor_step,
            lambda *parts: (*parts, jnp.asarray(jnp.nan)),
            state.actor,
            state.target_actor,
            state.actor_optimizer,
        )
        state = TD3State(
            actor=actor,
            target_actor=target_actor,
            critics=critics,
            target_critics=incremental_update(
                critics, state.target_critics, self.target_step_size
            ),
            actor_optimizer=actor_optimizer,
            critic_optimizer=critic_optimizer,
        )
        return state, {"critic_loss": critic_loss, "actor_loss": actor_loss}


TD3.__init__.__doc__ = """**Arguments:**

- `actor_lr`, `critic_lr`: learning rates, at least 0.
- `discount`: in [0, 1].
- `target_step_size`: how far the targets move at each of their updates, in [0, 1].
- `reward_scale`: factor by which rewards are multiplied.
- `exploration_noise`: standard deviation of the noise on actions in training, at least
    0; actions are in [-1, 1].
- `policy_noise`: standard deviation of the noise on the target actor's actions, at
    least 0.
- `noise_clip`: bound on the absolute value of that noise, at least 0.
- `policy_delay`: at least 1; the actor moves at updates 0, `policy_delay`,
    `2 * policy_delay`...
- `num_critics`: at least 1; targets take the minimum of their values, the actor learns
    from the first.
- `make_actor`: a factory `(observation_size, action_size, *, key)` of an actor: from
    one observation to one action in [-1, 1].
- `make_critic`: a factory `(observation_size, action_size, *, key)` of one critic: from
    one observation and one action to a scalar.
- `make_optimizer`: from a learning rate to an Optax optimizer; or two such factories,
    for actor and critic.
"""
