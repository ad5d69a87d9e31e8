import math

import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, Int, PRNGKeyArray

from .._pytree.fields import hyperparameter, static_integer
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
from .actor_critic import AbstractSoftActorCritic, SACState, check_spec, optimizers
from .networks import ACTION_VALUES, SOFTMAX, make_network


_State = SACState[ChoiceFunction, ActionValueFunction]

# Probability of all but the best action in a policy with the default target entropy.
_EXPLORATION = 0.1


class DiscreteSAC(AbstractSoftActorCritic[ChoiceFunction, ActionValueFunction]):
    """Soft actor-critic for discrete actions.

    Critics value all actions together, so expectations that `SAC` estimates from one
    action are exact. The actor's loss is a sum over actions; CleanRL takes the mean
    over them, which divides this loss and the temperature's by the number of actions.

    The paper's target entropy, 0.98 times the uniform policy's, asks for nearly random
    actions in every state: with two actions the worse one must have a probability of
    0.42, and the temperature grows until values no longer matter. Here the default is
    the entropy of a policy that takes its best action with probability 0.9 and the
    others with equal probability.

    The metrics are those of `SAC`.

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
    make_optimizer: MakeOptimizer | tuple[MakeOptimizer, ...] = optimizers(
        "actor", "critic", "temperature"
    )

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> _State:
        check_spec("DiscreteSAC", spec, Discrete)
        num_actions = spec.action.num_outputs
        if self.target_entropy is None and num_actions < 2:
            raise ValueError(
                f"`spec.action.num_actions={num_actions}` leaves nothing to choose, so "
                "there is no default target entropy; give `target_entropy`."
            )
        actor_key, critic_key = jr.split(key)
        return self._init_soft(
            make_network(SOFTMAX, "make_actor", self.make_actor, spec, key=actor_key),
            make_network(
                ACTION_VALUES,
                "make_critic",
                self.make_critic,
                spec,
                number=self.num_critics,
                key=critic_key,
            ),
            most_entropy=math.log(num_actions),
            what=f"{num_actions} actions that are equally likely",
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
        target_entropy = self.target_entropy
        # Only the policy knows how many actions there are: the batch holds indices.
        if target_entropy is None:
            softmax = eqx.filter_eval_shape(state.actor, batch.observation[0])
            target_entropy = default_target_entropy(softmax.logits.shape[0])
        return self._update_soft(
            state,
            batch,
            batch,
            next_value=discrete_sac_next_value,
            critic_loss=discrete_critic_loss,
            actor_loss=discrete_sac_actor_loss,
            target_entropy=target_entropy,
        )


def default_target_entropy(num_actions: int) -> float:
    """The entropy, in nats, of a policy that explores one step in ten."""
    # The other actions share their probability evenly.
    best, others = 1 - _EXPLORATION, _EXPLORATION
    return -best * math.log(best) - others * math.log(others / (num_actions - 1))


DiscreteSAC.__init__.__doc__ = """**Arguments:**

- `actor_lr`, `critic_lr`, `temperature_lr`: learning rates, at least 0.
- `discount`: in [0, 1].
- `target_step_size`: how far the target critics move at each update, in [0, 1].
- `reward_scale`: factor by which rewards are multiplied. Values of about 10 are learned
    faster than values of 100: on CartPole-v1 a factor of 0.1 is better than 1.
- `target_entropy`: in nats, at most the logarithm of the number of actions unless the
    temperature is fixed; `None` is the entropy of a policy that takes its best action
    with probability 0.9 and the others equally often: 0.325 for two, 0.394 for three.
- `initial_temperature`: initial weight of the entropy, more than 0.
- `learn_temperature`: `False` fixes the temperature at `initial_temperature`, which is
    read anew at each update.
- `num_critics`: at least 1; values are the minimum over the critics.
- `make_actor`: a factory `(observation_size, num_actions, *, key)` of a policy: from
    one observation to an `eqrl.nn.Softmax`.
- `make_critic`: a factory `(observation_size, num_actions, *, key)` of one critic: from
    one observation to a vector with the value of each action.
- `make_optimizer`: from a learning rate to an Optax optimizer; or three such
    factories, for actor, critic and temperature.
"""
