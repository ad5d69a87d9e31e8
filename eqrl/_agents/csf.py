import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import hyperparameter, static_integer
from .._pytree.tree import gradient_step, incremental_update, init_optimizer, tree_copy
from .._types.custom_types import FloatLike, MakeOptimizer, Metrics
from .._types.data import Box, EnvSpec, Transition
from ..losses import (
    csf_actor_loss,
    csf_critic_loss,
    csf_loss,
    csf_next_features,
    sac_temperature_loss,
)
from ..nn import (
    Features,
    Gaussian,
    MakeNetwork,
    MakePolicy,
    StochasticPolicy,
    VectorFunction,
)
from .actor_critic import (
    check_spec,
    learning_rules,
    optimizers,
    reachable,
)
from .base import AbstractMarkovAgent
from .networks import DENSITY, features, make_network


class CSFState(eqx.Module):
    """State of `CSF`."""

    actor: StochasticPolicy
    critics: VectorFunction
    target_critics: VectorFunction
    phi: VectorFunction
    log_temperature: Float[Array, ""]
    actor_optimizer: optax.OptState
    critic_optimizer: optax.OptState
    temperature_optimizer: optax.OptState
    phi_optimizer: optax.OptState


CSFState.__init__.__doc__ = """**Arguments:**

- `actor`: from one observation with its skill to a distribution with a density.
- `critics`: a stack of critics, each from an observation with its skill and an action
    to successor features; every array has one more leading axis.
- `target_critics`: a stack of slowly moving copies of the critics.
- `phi`: the representation, from one observation without skill.
- `log_temperature`: logarithm of the weight of the entropy.
- `actor_optimizer`, `critic_optimizer`, `temperature_optimizer`, `phi_optimizer`: the
    optimizers' states.
"""


class CSF(AbstractMarkovAgent[CSFState]):
    """Contrastive successor features, an agent that learns skills without a reward.

    A representation phi is learned contrastively, so that it moves further along the
    current skill than along others. Critics predict successor features, the discounted
    sum of future steps of phi; their product with a skill is the value of that skill.
    The policy maximizes it, with an entropy bonus. The environment's reward is not
    used.

    The last `num_dimensions` elements of an observation must be the skill, as in
    `eqrl.SkillConditioned(eqrl.CSF(2), eqrl.SphereSkills(2))`. The notes on positions
    in `METRA` apply to this phi, too.

    The metrics are those of SAC, `phi_loss`, and `intrinsic_reward`, the mean step of
    phi along the skill.

    Differences from the released code: targets do not bootstrap where an episode
    terminates, while the code treats no state as terminal; and the loss of the
    temperature is SAC's, in the temperature itself, while the code's is linear in its
    logarithm.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{zheng2025can,
            title={Can a {MISL} Fly? Analysis and Ingredients for Mutual Information
                Skill Learning},
            author={Zheng, Chongyi and Tuyls, Jens and Peng, Joanne and Eysenbach,
                Benjamin},
            booktitle={International Conference on Learning Representations},
            year={2025},
        }
        ```
    """

    num_dimensions: int = static_integer(2, least=2)
    actor_lr: FloatLike = hyperparameter(1e-4, low=0)
    critic_lr: FloatLike = hyperparameter(1e-4, low=0)
    temperature_lr: FloatLike = hyperparameter(1e-4, low=0)
    phi_lr: FloatLike = hyperparameter(1e-4, low=0)
    discount: FloatLike = hyperparameter(0.99, low=0, high=1)
    target_step_size: FloatLike = hyperparameter(0.005, low=0, high=1)
    contrastive_weight: FloatLike = hyperparameter(5.0, low=0)
    target_entropy: FloatLike | None = hyperparameter(None)
    initial_temperature: FloatLike = hyperparameter(
        0.01, low=0, low_open=True, init_only=True
    )
    num_negatives: int = static_integer(256, least=1)
    num_critics: int = static_integer(2, least=1)
    make_actor: MakePolicy = eqx.field(default=Gaussian(), static=True)
    make_critic: MakeNetwork[VectorFunction] = eqx.field(
        default=Features(), static=True
    )
    make_phi: MakeNetwork[VectorFunction] = eqx.field(default=Features(), static=True)
    make_optimizer: MakeOptimizer | tuple[MakeOptimizer, ...] = optimizers(
        "actor", "critic", "temperature", "phi"
    )

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> CSFState:
        check_spec("CSF", spec, Box, vector_reward=True)
        state_size = spec.observation_size - self.num_dimensions
        if state_size < 1:
            raise ValueError(
                f"`CSF({self.num_dimensions})` takes the last {self.num_dimensions} "
                f"elements of an observation for the skill, but there are only "
                f"{spec.observation_size}. Put it into `eqrl.SkillConditioned(eqrl.CSF("
                f"{self.num_dimensions}), eqrl.SphereSkills({self.num_dimensions}))`."
            )
        actor_key, critic_key, phi_key = jr.split(key, 3)
        kind = features(state_size, self.num_dimensions)
        phi = make_network(kind, "make_phi", self.make_phi, spec, key=phi_key)
        kind = features(spec.observation_size + spec.action_size, self.num_dimensions)
        critics = make_network(
            kind,
            "make_critic",
            self.make_critic,
            spec,
            number=self.num_critics,
            key=critic_key,
        )
        actor = make_network(
            DENSITY, "make_actor", self.make_actor, spec, key=actor_key
        )
        log_temperature = reachable(
            jnp.log(self.initial_temperature),
            self.target_entropy,
            spec.action_size * math.log(2),
            what="actions that are uniform in [-1, 1]",
        )
        actor_rule, critic_rule, temperature_rule, phi_rule = self._learning_rules()
        return CSFState(
            actor=actor,
            critics=critics,
            # A state that holds one array twice cannot be donated.
            target_critics=tree_copy(critics),
            phi=phi,
            log_temperature=log_temperature,
            actor_optimizer=init_optimizer(actor_rule, actor),
            critic_optimizer=init_optimizer(critic_rule, critics),
            temperature_optimizer=init_optimizer(temperature_rule, log_temperature),
            phi_optimizer=init_optimizer(phi_rule, phi),
        )

    def policy(self, state: CSFState) -> StochasticPolicy:
        return state.actor

    def update(
        self,
        state: CSFState,
        batch: Transition[None],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[CSFState, Metrics]:
        del step
        phi_key, next_key, actor_key = jr.split(key, 3)
        actor_rule, critic_rule, temperature_rule, _ = self._learning_rules()
        observation, reached = batch.observation, batch.next_observation
        skill = observation[:, -self.num_dimensions :]
        phi, phi_optimizer, phi_error = self._phi_step(state, batch, key=phi_key)
        # Everything below uses the updated representation.
        difference = self._steps(phi, batch)
        following = csf_next_features(
            state.actor, state.target_critics, reached, skill, key=next_key
        )
        going_on = jnp.where(batch.terminated[:, None], 0, self.discount * following)
        critic_error, gradient = eqx.filter_value_and_grad(csf_critic_loss)(
            state.critics, observation, batch.action, difference + going_on
        )
        critics, critic_optimizer = gradient_step(
            state.critics, gradient, critic_rule, state.critic_optimizer
        )
        temperature = jnp.exp(state.log_temperature)
        (actor_error, metrics), gradient = eqx.filter_value_and_grad(
            csf_actor_loss, has_aux=True
        )(state.actor, critics, observation, skill, temperature, key=actor_key)
        actor, actor_optimizer = gradient_step(
            state.actor, gradient, actor_rule, state.actor_optimizer
        )
        target_entropy = self.target_entropy
        if target_entropy is None:
            target_entropy = -batch.action.shape[-1] / 2
        temperature_error, gradient = eqx.filter_value_and_grad(sac_temperature_loss)(
            state.log_temperature, metrics["entropy"], target_entropy
        )
        log_temperature, temperature_optimizer = gradient_step(
            state.log_temperature,
            gradient,
            temperature_rule,
            state.temperature_optimizer,
        )
        state = CSFState(
            actor=actor,
            critics=critics,
            target_critics=incremental_update(
                critics, state.target_critics, self.target_step_size
            ),
            phi=phi,
            log_temperature=log_temperature,
            actor_optimizer=actor_optimizer,
            critic_optimizer=critic_optimizer,
            temperature_optimizer=temperature_optimizer,
            phi_optimizer=phi_optimizer,
        )
        return state, metrics | {
            "phi_loss": phi_error,
            "critic_loss": critic_error,
            "actor_loss": actor_error,
            "temperature_loss": temperature_error,
            "temperature": temperature,
            "intrinsic_reward": jnp.mean(jnp.sum(difference * skill, axis=1)),
        }

    def _steps(
        self, phi: VectorFunction, batch: Transition[None]
    ) -> Float[Array, "batch skill"]:
        seen = lambda observation: jax.vmap(phi)(observation[:, : -self.num_dimensions])
        return seen(batch.next_observation) - seen(batch.observation)

    def _phi_step(
        self, state: CSFState, batch: Transition[None], *, key: PRNGKeyArray
    ) -> tuple[VectorFunction, optax.OptState, Float[Array, ""]]:
        """The representation and optimizer after a step, and the loss before it."""
        size = self.num_dimensions
        drawn = jr.normal(key, (self.num_negatives, size))
        negatives = drawn / jnp.linalg.norm(drawn, axis=1, keepdims=True)
        # All rows share the negatives, which do not include a row's own skill.
        skill, weight = batch.observation[:, -size:], self.contrastive_weight
        loss = lambda phi: csf_loss(self._steps(phi, batch), skill, negatives, weight)
        error, gradient = eqx.filter_value_and_grad(loss)(state.phi)
        rule = self._learning_rules()[-1]
        return *gradient_step(state.phi, gradient, rule, state.phi_optimizer), error

    def _learning_rules(self) -> tuple[optax.GradientTransformation, ...]:
        rates = (self.actor_lr, self.critic_lr, self.temperature_lr, self.phi_lr)
        return learning_rules(self.make_optimizer, *rates)


CSF.__init__.__doc__ = """**Arguments:**

- `num_dimensions`: length of a skill and of the representation, at least 2.
- `actor_lr`, `critic_lr`, `temperature_lr`, `phi_lr`: learning rates, at least 0. The
    defaults are the paper's, chosen for millions of updates.
- `discount`: in [0, 1].
- `target_step_size`: how far the target critics move at each update, in [0, 1].
- `contrastive_weight`: weight of the other skills in the loss of the representation, at
    least 0.
- `target_entropy`: in nats, summed over the dimensions of the action; `None` is minus
    half the number of dimensions, as in the paper.
- `initial_temperature`: initial weight of the entropy, more than 0.
- `num_negatives`: number of other skills, drawn at each update and shared by the batch.
- `num_critics`: at least 1; values are the minimum over the critics.
- `make_actor`: a factory `(observation_size, action_size, *, key)` of a policy.
- `make_critic`: a factory `(input_size, num_dimensions, *, key)` of one critic: from an
    observation with its skill, followed by an action, to successor features.
- `make_phi`: a factory `(observation_size, num_dimensions, *, key)` of the
    representation of an observation without skill. Since two of these are subtracted,
    `precision="bfloat16"` would round much of the reward away.
- `make_optimizer`: from a learning rate to an Optax optimizer; or four such factories,
    for actor, critic, temperature and phi.
"""
