import math
from typing import Generic

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray
from typing_extensions import TypeVar

from .._pytree.fields import check_fields, hyperparameter, static_integer
from .._pytree.tree import gradient_step, incremental_update, tree_copy
from .._types.custom_types import FloatLike, MakeOptimizer, Metrics
from .._types.data import Box, EnvSpec, Transition
from ..losses import sac_actor_loss, sac_next_value
from ..nn import (
    Critic,
    CriticFunction,
    Gaussian,
    MakeCritic,
    MakePolicy,
    StochasticPolicy,
)
from .actor_critic import (
    check_density,
    check_make_optimizer,
    check_scalar_reward,
    check_space,
    critic_step,
    init_optimizer,
    learning_rule,
    make_critics,
    make_network,
    reachable,
    read_temperature,
    temperature_step,
)
from .base import AbstractMarkovAgent


_PARTS = ("actor", "critic", "temperature")


Policy = TypeVar("Policy", default=StochasticPolicy)
Critics = TypeVar("Critics", default=CriticFunction)


class SACState(eqx.Module, Generic[Policy, Critics]):
    """What `SAC` and `DiscreteSAC` learn."""

    actor: Policy
    critics: Critics
    target_critics: Critics
    log_temperature: Float[Array, ""]
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    temperature_optimizer: optax.OptState


SACState.__init__.__doc__ = """**Arguments:**

- `actor`: from one observation to a distribution with a density; of `DiscreteSAC`, to
    a `Softmax`.
- `critics`: a stack, one more leading axis on every array.
- `target_critics`: a stack of slowly moving copies of the critics, from which the
    critics' targets are computed.
- `log_temperature`: logarithm of the weight of the entropy.
- `actor_optimizer`, `critic_optimizer`, `temperature_optimizer`: the optimizers'
    states.
"""


class SAC(AbstractMarkovAgent[SACState]):
    """Soft actor-critic: maximizes the return and the entropy of its policy.

    An update moves the critics first, then the actor along the gradient of the updated
    critics, and then the temperature by the entropy of the same sampled actions. The
    target entropy is a sum over the dimensions of the action; the authors' code takes
    it per dimension.

    ??? cite "Reference"

        ```bibtex
        @article{haarnoja2018soft,
            title={Soft Actor-Critic Algorithms and Applications},
            author={Haarnoja, Tuomas and Zhou, Aurick and Hartikainen, Kristian and
                Tucker, George and Ha, Sehoon and Tan, Jie and Kumar, Vikash and
                Zhu, Henry and Gupta, Abhishek and Abbeel, Pieter and Levine, Sergey},
            journal={arXiv:1812.05905},
            year={2018},
        }
        ```
    """

    actor_lr: FloatLike = hyperparameter(3e-4, low=0)
    critic_lr: FloatLike = hyperparameter(3e-4, low=0)
    temperature_lr: FloatLike = hyperparameter(3e-4, low=0)
    discount: FloatLike = hyperparameter(0.99, low=0, high=1)
    target_step_size: FloatLike = hyperparameter(0.005, low=0, high=1)
    reward_scale: FloatLike = hyperparameter(1.0)
    target_entropy: FloatLike | None = hyperparameter(None)
    initial_temperature: FloatLike = hyperparameter(
        1.0, low=0, low_open=True, init_only="learn_temperature"
    )
    learn_temperature: bool = eqx.field(default=True, static=True)
    num_critics: int = static_integer(2, least=1)
    make_actor: MakePolicy = eqx.field(default=Gaussian(), static=True)
    make_critic: MakeCritic = eqx.field(default=Critic(), static=True)
    make_optimizer: MakeOptimizer | tuple[MakeOptimizer, ...] = eqx.field(
        default=optax.adam, static=True
    )

    def __check_init__(self) -> None:
        check_fields(self)
        check_make_optimizer(self.make_optimizer, _PARTS)

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> SACState:
        check_space("SAC", spec, Box)
        check_scalar_reward("SAC", spec)
        actor_key, critic_key = jr.split(key)
        sizes = (spec.observation_size, spec.action_size)
        actor = make_network("make_actor", self.make_actor, *sizes, key=actor_key)
        check_density(actor, spec)
        critics = make_critics(self.make_critic, self.num_critics, spec, key=critic_key)
        log_temperature = jnp.log(self.initial_temperature)
        if self.learn_temperature:
            log_temperature = reachable(
                log_temperature,
                self.target_entropy,
                spec.action_size * math.log(2),
                what="actions that are uniform in [-1, 1]",
            )
        actor_rule, critic_rule, temperature_rule = self._learning_rules()
        return SACState(
            actor=actor,
            critics=critics,
            target_critics=tree_copy(critics),
            log_temperature=log_temperature,
            actor_optimizer=init_optimizer(actor_rule, actor),
            critic_optimizer=init_optimizer(critic_rule, critics),
            temperature_optimizer=init_optimizer(temperature_rule, log_temperature),
        )

    def policy(self, state: SACState) -> StochasticPolicy:
        return state.actor

    def update(
        self,
        state: SACState,
        batch: Transition[None],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[SACState, Metrics]:
        del step
        next_key, actor_key = jr.split(key)
        actor_rule, critic_rule, temperature_rule = self._learning_rules()
        log_temperature = read_temperature(
            state.log_temperature,
            self.initial_temperature,
            learn=self.learn_temperature,
        )
        temperature = jnp.exp(log_temperature)

        actor = self.policy(state)

        next_value = sac_next_value(
            actor,
            state.target_critics,
            batch.next_observation,
            temperature,
            key=next_key,
        )
        critics, critic_optimizer, critic_loss = critic_step(
            state.critics,
            state.critic_optimizer,
            critic_rule,
            batch,
            next_value,
            reward_scale=self.reward_scale,
            discount=self.discount,
        )

        (actor_loss, metrics), actor_gradient = eqx.filter_value_and_grad(
            sac_actor_loss, has_aux=True
        )(actor, critics, batch.observation, temperature, key=actor_key)
        actor, actor_optimizer = gradient_step(
            actor, actor_gradient, actor_rule, state.actor_optimizer
        )

        log_temperature, temperature_optimizer, temperature_loss = temperature_step(
            log_temperature,
            state.temperature_optimizer,
            temperature_rule,
            metrics["entropy"],
            self._target_entropy(batch.action.shape[-1]),
            learn=self.learn_temperature,
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
            "critic_loss": critic_loss,
            "actor_loss": actor_loss,
            "temperature_loss": temperature_loss,
            "temperature": temperature,
            "entropy": metrics["entropy"],
        }

    def _target_entropy(self, action_size: int) -> FloatLike:
        if self.target_entropy is None:
            return -float(action_size)
        return self.target_entropy

    def _learning_rules(self) -> tuple[optax.GradientTransformation, ...]:
        rates = (self.actor_lr, self.critic_lr, self.temperature_lr)
        return tuple(
            learning_rule(self.make_optimizer, index, rate)
            for index, rate in enumerate(rates)
        )


SAC.__init__.__doc__ = """**Arguments:**

- `actor_lr`, `critic_lr`, `temperature_lr`: learning rates, at least 0.
- `discount`: in [0, 1].
- `target_step_size`: how far the target critics move at each update, in [0, 1].
- `reward_scale`: factor by which rewards are multiplied.
- `target_entropy`: in nats, summed over the dimensions of the action, each of which has
    log 2 at most; `None` is minus the number of dimensions, as in the paper.
- `initial_temperature`: initial weight of the entropy, more than 0.
- `learn_temperature`: `False` keeps the temperature at `initial_temperature`, which
    each update then reads.
- `num_critics`: at least 1; targets take the minimum of their values.
- `make_actor`: a factory `(observation_size, action_size, *, key)` of a policy: from
    one observation to an `eqrl.nn.AbstractDensity`, such as `eqrl.nn.TanhNormal`.
- `make_critic`: a factory `(observation_size, action_size, *, key)` of one critic: from
    one observation and one action to a scalar.
- `make_optimizer`: from a learning rate to an Optax optimizer; or three such
    factories, for actor, critic and temperature.

Factories that define equality, as the library's own do, are compared by value, all
others by identity: a fresh lambda compiles everything again.
"""
