import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import check_fields, hyperparameter, static_integer
from .._pytree.tree import gradient_step, incremental_update, take_element, tree_copy
from .._types.custom_types import FloatLike, MakeOptimizer, Metrics
from .._types.data import Discrete, EnvSpec, Transition
from ..losses import (
    discrete_critic_loss,
    discrete_sac_actor_loss,
    discrete_sac_next_value,
)
from ..nn import (
    ActionValueFunction,
    ActionValues,
    Choice,
    ChoiceFunction,
    MakeActionValues,
    MakeChoice,
)
from .actor_critic import (
    check_action_values,
    check_make_optimizer,
    check_scalar_reward,
    check_softmax,
    check_space,
    critic_step,
    init_optimizer,
    learning_rule,
    make_network,
    make_stack,
    reachable,
    read_temperature,
    temperature_step,
)
from .base import AbstractMarkovAgent
from .sac import SACState


_State = SACState[ChoiceFunction, ActionValueFunction]

_PARTS = ("actor", "critic", "temperature")

# How often the policy whose entropy is the target takes another than its best action.
_EXPLORATION = 0.1


class DiscreteSAC(AbstractMarkovAgent[_State]):
    """Soft actor-critic for discrete actions.

    All actions are valued at once, so that what `SAC` estimates from one action is an
    exact expectation. The actor's loss is a sum over actions; CleanRL takes the mean
    over them too, which divides it, and the temperature's, by their number.

    The target entropy of the paper, 0.98 of that of the uniform policy, asks for random
    actions in every state: with two actions the worse one must have a probability of
    0.42, and the temperature grows until values do not matter. Here the default is the
    entropy of a policy that takes its best action with probability 0.9 and the others
    alike.

    ??? cite "Reference"

        ```bibtex
        @article{christodoulou2019soft,
            title={Soft Actor-Critic for Discrete Action Settings},
            author={Christodoulou, Petros},
            journal={arXiv:1910.07207},
            year={2019},
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
    make_actor: MakeChoice = eqx.field(
        default=Choice((256, 256), jax.nn.relu), static=True
    )
    make_critic: MakeActionValues = eqx.field(
        default=ActionValues((256, 256)), static=True
    )
    make_optimizer: MakeOptimizer | tuple[MakeOptimizer, ...] = eqx.field(
        default=optax.adam, static=True
    )

    def __check_init__(self) -> None:
        check_fields(self)
        check_make_optimizer(self.make_optimizer, _PARTS)

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> _State:
        check_space("DiscreteSAC", spec, Discrete)
        check_scalar_reward("DiscreteSAC", spec)
        actor_key, critic_key = jr.split(key)
        sizes = (spec.observation_size, spec.action.num_outputs)
        actor = make_network("make_actor", self.make_actor, *sizes, key=actor_key)
        check_softmax(actor, spec)
        critics = make_stack(
            "make_critic",
            lambda key: make_network("make_critic", self.make_critic, *sizes, key=key),
            self.num_critics,
            key=critic_key,
        )
        check_action_values("make_critic", take_element(critics, 0), spec)
        num_actions = spec.action.num_outputs
        if self.target_entropy is None and num_actions < 2:
            raise ValueError(
                f"`spec.action.num_actions={num_actions}` leaves nothing to choose, so "
                "there is no default target entropy; give `target_entropy`."
            )
        log_temperature = jnp.log(self.initial_temperature)
        if self.learn_temperature:
            log_temperature = reachable(
                log_temperature,
                self.target_entropy,
                math.log(num_actions),
                what=f"{num_actions} actions that are equally likely",
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

    def policy(self, state: _State) -> ChoiceFunction:
        return state.actor

    def update(
        self,
        state: _State,
        batch: Transition[None],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[_State, Metrics]:
        del step, key
        actor_rule, critic_rule, temperature_rule = self._learning_rules()
        log_temperature = read_temperature(
            state.log_temperature,
            self.initial_temperature,
            learn=self.learn_temperature,
        )
        temperature = jnp.exp(log_temperature)
        actor = self.policy(state)
        next_value = discrete_sac_next_value(
            actor, state.target_critics, batch.next_observation, temperature
        )
        critics, critic_optimizer, critic_loss = critic_step(
            state.critics,
            state.critic_optimizer,
            critic_rule,
            batch,
            next_value,
            reward_scale=self.reward_scale,
            discount=self.discount,
            loss=discrete_critic_loss,
        )
        (actor_loss, metrics), gradient = eqx.filter_value_and_grad(
            discrete_sac_actor_loss, has_aux=True
        )(actor, critics, batch.observation, temperature)
        target_entropy = self._target_entropy(actor, batch.observation[0])
        actor, actor_optimizer = gradient_step(
            actor, gradient, actor_rule, state.actor_optimizer
        )
        log_temperature, temperature_optimizer, temperature_loss = temperature_step(
            log_temperature,
            state.temperature_optimizer,
            temperature_rule,
            metrics["entropy"],
            target_entropy,
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

    def _target_entropy(
        self, actor: ChoiceFunction, observation: Float[Array, " obs"]
    ) -> FloatLike:
        if self.target_entropy is not None:
            return self.target_entropy
        softmax = eqx.filter_eval_shape(actor, observation)
        return default_target_entropy(softmax.logits.shape[0])

    def _learning_rules(self) -> tuple[optax.GradientTransformation, ...]:
        rates = (self.actor_lr, self.critic_lr, self.temperature_lr)
        return tuple(
            learning_rule(self.make_optimizer, index, rate)
            for index, rate in enumerate(rates)
        )


def default_target_entropy(num_actions: int) -> float:
    """The entropy, in nats, of a policy that explores one step in ten."""
    best, others = 1 - _EXPLORATION, _EXPLORATION
    return -best * math.log(best) - others * math.log(others / (num_actions - 1))


DiscreteSAC.__init__.__doc__ = """**Arguments:**

- `actor_lr`, `critic_lr`, `temperature_lr`: learning rates, at least 0.
- `discount`: in [0, 1].
- `target_step_size`: how far the target critics move at each update, in [0, 1].
- `reward_scale`: factor by which rewards are multiplied. Values of about 10 are learned
    sooner than of 100: on CartPole-v1 0.1 is better than 1.
- `target_entropy`: in nats, at most the logarithm of the number of actions unless the
    temperature is fixed; `None` is that of a policy that takes its best action with
    probability 0.9 and the others alike: 0.325 of two, 0.394 of three.
- `initial_temperature`: initial weight of the entropy, more than 0.
- `learn_temperature`: `False` keeps the temperature at `initial_temperature`, which
    each update then reads.
- `num_critics`: at least 1; values are the minimum over the critics.
- `make_actor`: a factory `(observation_size, num_actions, *, key)` of a policy: from
    one observation to an `eqrl.nn.Softmax`.
- `make_critic`: a factory `(observation_size, num_actions, *, key)` of one critic: from
    one observation to a vector of the value of each action.
- `make_optimizer`: from a learning rate to an Optax optimizer; or three such
    factories, for actor, critic and temperature.

Factories that define equality, as the library's own do, are compared by value, all
others by identity: a fresh lambda compiles everything again.
"""
