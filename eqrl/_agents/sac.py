import functools
import math

import equinox as eqx
import jax.random as jr
from jaxtyping import Array, Int, PRNGKeyArray

from .._pytree.fields import hyperparameter, static_integer
from .._types.custom_types import FloatLike, MakeOptimizer, Metrics
from .._types.data import Box, EnvSpec, Transition
from ..losses import critic_loss, sac_actor_loss, sac_next_value
from ..nn import Critic, Gaussian, MakeCritic, MakePolicy, StochasticPolicy
from .actor_critic import AbstractSoftActorCritic, SACState, check_spec, optimizers
from .networks import DENSITY, critic, make_network


class SAC(AbstractSoftActorCritic):
    """Soft actor-critic: maximizes the return and the entropy of its policy.

    An update moves the critics first, then the actor along the gradient of the updated
    critics, and then the temperature by the entropy of the same sampled actions. The
    target entropy is a sum over the dimensions of the action.

    The metrics are `critic_loss`, `actor_loss`, `temperature_loss`, `temperature` and
    `entropy`, minus the mean log density of the sampled actions.

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
    make_optimizer: MakeOptimizer | tuple[MakeOptimizer, ...] = optimizers(
        "actor", "critic", "temperature"
    )

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> SACState:
        check_spec("SAC", spec, Box)
        actor_key, critic_key = jr.split(key)
        return self._init_soft(
            make_network(DENSITY, "make_actor", self.make_actor, spec, key=actor_key),
            make_network(
                critic(),
                "make_critic",
                self.make_critic,
                spec,
                number=self.num_critics,
                key=critic_key,
            ),
            most_entropy=spec.action_size * math.log(2),
            what="actions that are uniform in [-1, 1]",
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
        target_entropy = self.target_entropy
        if target_entropy is None:
            target_entropy = -float(batch.action.shape[-1])
        before, after = batch.critic_observation, batch.next_critic_observation
        return self._update_soft(
            state,
            batch,
            batch.for_critics,
            next_value=functools.partial(
                sac_next_value, critic_observation=after, key=next_key
            ),
            critic_loss=critic_loss,
            actor_loss=functools.partial(
                sac_actor_loss, critic_observation=before, key=actor_key
            ),
            target_entropy=target_entropy,
        )


SAC.__init__.__doc__ = """**Arguments:**

- `actor_lr`, `critic_lr`, `temperature_lr`: learning rates, at least 0.
- `discount`: in [0, 1].
- `target_step_size`: how far the target critics move at each update, in [0, 1].
- `reward_scale`: factor by which rewards are multiplied.
- `target_entropy`: in nats, summed over the dimensions of the action, at most log 2 for
    each unless the temperature is fixed; `None` is minus the number of dimensions, as
    in the paper.
- `initial_temperature`: initial weight of the entropy, more than 0.
- `learn_temperature`: `False` fixes the temperature at `initial_temperature`, which is
    read anew at each update.
- `num_critics`: at least 1; targets take the minimum of their values.
- `make_actor`: a factory `(observation_size, action_size, *, key)` of a policy: from
    one observation to an `eqrl.nn.AbstractDensity`, such as `eqrl.nn.TanhNormal`.
- `make_critic`: a factory `(observation_size, action_size, *, key)` of one critic: from
    one observation and one action to a scalar.
- `make_optimizer`: from a learning rate to an Optax optimizer; or three such
    factories, for actor, critic and temperature.
"""
