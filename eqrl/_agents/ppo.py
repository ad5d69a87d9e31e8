from typing import get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import check_choice, hyperparameter, static_integer
from .._pytree.tree import gradient_step, init_optimizer
from .._types.custom_types import FloatLike, MakeOptimizer, Metrics, Mode, Observation
from .._types.data import (
    AbstractActionSpace,
    Action,
    Discrete,
    EnvSpec,
    Transition,
    flatten_batch,
)
from ..losses import ppo_actor_loss, ppo_critic_loss
from ..nn import (
    Choice,
    LikelihoodPolicy,
    MakeLikelihoodPolicy,
    MakeValue,
    Normal,
    Value,
    ValueFunction,
)
from .actor_critic import check_spec, clipped, optimizers
from .base import AbstractAgent, annealed, count_steps, pick_action
from .networks import LIKELIHOOD, VALUE, make_network
from .on_policy import learn_in_minibatches, rollout_returns, rollout_values


def ppo_adam(learning_rate: FloatLike) -> optax.GradientTransformation:
    """Adam with an epsilon of 1e-5, as is usual for PPO."""
    return optax.adam(learning_rate, eps=1e-5)


class PPOState(eqx.Module):
    """State of `PPO`."""

    actor: LikelihoodPolicy
    critic: ValueFunction
    optimizer: optax.OptState
    num_steps: Int[Array, ""]


PPOState.__init__.__doc__ = """**Arguments:**

- `actor`: from one observation to an `eqrl.nn.AbstractLikelihood`.
- `critic`: from one observation to the value of its state.
- `optimizer`: the state of the optimizer that both networks share.
- `num_steps`: environment steps observed, summed over all environments.
"""


class _Row(eqx.Module):
    """A step of the rollout, as the losses need it, or a stack of such steps."""

    observation: Observation[Array, "*batch obs"]
    critic_observation: Float[Array, "*batch critic_obs"] | None
    drawn: Float[Array, "*batch act"] | Int[Array, "*batch"]
    log_prob: Float[Array, "*batch"]
    value: Float[Array, "*batch"]
    target: Float[Array, "*batch"]


_Networks = tuple[LikelihoodPolicy, ValueFunction]
_Learned = tuple[_Networks, optax.OptState]


class PPO(AbstractAgent[PPOState, None, Action]):
    """Proximal policy optimization, for actions of either kind.

    It learns on-policy: in several epochs from the steps of an iteration, and then
    discards them. Train it with `eqrl.Trainer.on_policy`.

    An episode that a time limit ends is bootstrapped from the state it reached; the
    reference implementations assume a value of 0 there. The probabilities of the
    actions under the policy that took them are recomputed before the first step. So the
    ratio is 1 then, even inside `eqrl.Normalized`, whose statistics change while the
    rollout is collected.

    Values are not clipped by default, since a useful limit depends on the scale of
    rewards. On CartPole and Acrobot a `value_clip` of 0.2 is better.

    Two options that Andrychowicz et al. (2021) recommend help if there are few steps,
    but are not the default: `recompute_advantages`, and
    `eqrl.nn.Normal(initial_scale=0.5)`.

    The metrics, means over all gradient steps, are `critic_loss`, `actor_loss`,
    `entropy`, `kl`, an estimate of the divergence of the policy of the rollout from the
    one that learns, and `clip_fraction`, the share of ratios beyond the limit.

    ??? cite "References"

        ```bibtex
        @article{schulman2017proximal,
            title={Proximal Policy Optimization Algorithms},
            author={Schulman, John and Wolski, Filip and Dhariwal, Prafulla and
                Radford, Alec and Klimov, Oleg},
            journal={arXiv:1707.06347},
            year={2017},
        }

        @inproceedings{andrychowicz2021matters,
            title={What Matters for On-Policy Deep Actor-Critic Methods? A Large-Scale
                Study},
            author={Andrychowicz, Marcin and Raichuk, Anton and Sta{\'n}czyk, Piotr and
                others},
            booktitle={International Conference on Learning Representations},
            year={2021},
        }
        ```
    """

    lr: FloatLike = hyperparameter(2.5e-4, low=0)
    discount: FloatLike = hyperparameter(0.99, low=0, high=1)
    decay: FloatLike = hyperparameter(0.95, low=0, high=1)
    clip: FloatLike = hyperparameter(0.2, low=0, low_open=True)
    value_clip: FloatLike | None = hyperparameter(None, low=0, low_open=True)
    value_weight: FloatLike = hyperparameter(0.5, low=0)
    entropy_weight: FloatLike = hyperparameter(0.01)
    max_gradient_norm: FloatLike = hyperparameter(0.5, low=0, low_open=True)
    anneal_steps: FloatLike | None = hyperparameter(None, low=0, low_open=True)
    reward_scale: FloatLike = hyperparameter(1.0)
    num_epochs: int = static_integer(4, least=1)
    num_minibatches: int = static_integer(4, least=1)
    normalize_advantage: bool = eqx.field(default=True, static=True)
    make_actor: MakeLikelihoodPolicy | None = eqx.field(default=None, static=True)
    make_critic: MakeValue = eqx.field(default=Value(), static=True)
    make_optimizer: MakeOptimizer = optimizers("actor and critic", default=ppo_adam)
    recompute_advantages: bool = eqx.field(default=False, static=True)

    @property
    def sequence_length(self) -> None:
        return None

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> PPOState:
        check_spec("PPO", spec, AbstractActionSpace)
        actor_key, critic_key = jr.split(key)
        make_actor = self.make_actor
        if make_actor is None:
            make_actor = Choice() if isinstance(spec.action, Discrete) else Normal()
        actor = make_network(LIKELIHOOD, "make_actor", make_actor, spec, key=actor_key)
        critic = make_network(
            VALUE, "make_critic", self.make_critic, spec, key=critic_key
        )
        # One optimizer, since the gradients of both networks are clipped together.
        return PPOState(
            actor=actor,
            critic=critic,
            optimizer=init_optimizer(self._learning_rule(self.lr), (actor, critic)),
            num_steps=jnp.zeros((), int),
        )

    def begin(
        self,
        state: PPOState,
        spec: EnvSpec,
        *,
        index: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> None:
        del state, spec, index, key
        return None

    def act(
        self,
        state: PPOState,
        memory: None,
        observation: Observation[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Action, None, Action]:
        """See `AbstractAgent.act`.

        The extras are the draw that the action is made from, such as the vector before
        clipping or `tanh`. For a random action they are the draw of the greedy one.
        """
        del memory
        policy = state.actor(observation)
        drawn = policy.draw(key=key) if mode == "sample" else policy.most_likely()
        if mode == "random":
            return pick_action(policy, mode=mode, key=key), None, drawn
        check_choice("mode", mode, get_args(Mode))
        return policy.action(drawn), None, drawn

    def observe(self, state: PPOState, transitions: Transition[Action]) -> PPOState:
        num_steps = count_steps(state.num_steps, transitions)
        return eqx.tree_at(lambda x: x.num_steps, state, num_steps)

    def update(
        self,
        state: PPOState,
        batch: Transition[Action],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[PPOState, Metrics]:
        del step
        rows = self._rows(state, batch)
        lr = annealed(
            self.lr, state.num_steps, self.anneal_steps, counted=rows.value.size
        )
        rule = self._learning_rule(lr)

        def valued(carry: _Learned, rows: _Row) -> _Row:
            (_, critic), _ = carry
            # From the whole rollout: a return needs the steps that follow, but a
            # minibatch is out of order.
            returns = self._values_and_targets(critic, batch)
            return eqx.tree_at(lambda x: (x.value, x.target), rows, returns)

        def learn(
            carry: _Learned, minibatch: _Row, key: PRNGKeyArray
        ) -> tuple[_Learned, Metrics]:
            del key
            networks, optimizer = carry
            (_, metrics), gradient = eqx.filter_value_and_grad(
                self._loss, has_aux=True
            )(networks, minibatch)
            return gradient_step(networks, gradient, rule, optimizer), metrics

        (networks, optimizer), metrics = learn_in_minibatches(
            learn,
            ((state.actor, state.critic), state.optimizer),
            rows,
            num_epochs=self.num_epochs,
            num_minibatches=self.num_minibatches,
            before_epoch=valued if self.recompute_advantages else None,
            key=key,
        )
        actor, critic = networks
        state = PPOState(
            actor=actor, critic=critic, optimizer=optimizer, num_steps=state.num_steps
        )
        return state, metrics

    def _rows(self, state: PPOState, batch: Transition[Action]) -> _Row:
        """The rollout with its returns, with one leading axis."""
        rows = flatten_batch(batch)
        value, target = self._values_and_targets(state.critic, batch)
        # Not stored by `act`, so that the first ratio is 1 even if the statistics that
        # normalize observations have changed since.
        log_prob = jax.vmap(lambda x, drawn: state.actor(x).log_prob(drawn))
        return _Row(
            observation=rows.observation,
            critic_observation=rows.critic_observation,
            drawn=rows.extras,
            log_prob=log_prob(rows.observation, rows.extras),
            value=value,
            target=target,
        )

    def _values_and_targets(
        self, critic: ValueFunction, batch: Transition[Action]
    ) -> tuple[Float[Array, " rows"], Float[Array, " rows"]]:
        """The value of the state before each step, and its return."""
        value, next_value = rollout_values(critic, batch.for_critics)
        target = rollout_returns(
            batch,
            next_value,
            reward_scale=self.reward_scale,
            discount=self.discount,
            decay=self.decay,
        )
        return value, target

    def _loss(
        self, networks: _Networks, rows: _Row
    ) -> tuple[Float[Array, ""], Metrics]:
        actor, critic = networks

        def probability(
            observation: Observation[Array, " obs"], drawn: Action
        ) -> tuple[Float[Array, ""], Float[Array, ""]]:
            policy = actor(observation)
            return policy.log_prob(drawn), policy.entropy()

        log_prob, entropies = jax.vmap(probability)(rows.observation, rows.drawn)
        # The lambda-return minus the value, both from the critic before these steps, is
        # the generalized advantage estimate.
        advantage = rows.target - rows.value
        if self.normalize_advantage:
            # A single row is its own mean, so its normalized advantage would be 0.
            if advantage.shape[0] < 2:
                raise ValueError(
                    f"`num_minibatches={self.num_minibatches}` leaves one transition "
                    "to a minibatch, whose advantage cannot be normalized. Lower it, "
                    "lengthen the rollout, or give `normalize_advantage=False`."
                )
            # Advantages that are all equal become exactly 0 and stay so. Their mean, as
            # it is rounded, could be another number.
            advantage -= advantage[:1]
            # A product rather than a division, as in `RunningStatistics.normalize`.
            inverse = 1 / (jnp.std(advantage) + 1e-8)
            advantage = (advantage - jnp.mean(advantage)) * inverse
        actor_loss, metrics = ppo_actor_loss(
            log_prob, rows.log_prob, advantage, self.clip
        )
        seen = rows.critic_observation
        value = jax.vmap(critic)(rows.observation if seen is None else seen)
        critic_loss = ppo_critic_loss(value, rows.value, rows.target, self.value_clip)
        entropy = jnp.mean(entropies)
        # The paper's equation 9, with the sign of a loss.
        loss = (
            actor_loss + self.value_weight * critic_loss - self.entropy_weight * entropy
        )
        return loss, {
            "actor_loss": actor_loss,
            "critic_loss": critic_loss,
            "entropy": entropy,
            **metrics,
        }

    def _learning_rule(self, lr: FloatLike) -> optax.GradientTransformation:
        return clipped(self.make_optimizer(lr), self.max_gradient_norm)


PPO.__init__.__doc__ = """**Arguments:**

- `lr`: learning rate, at least 0.
- `discount`: in [0, 1].
- `decay`: lambda of generalized advantage estimation, in [0, 1].
- `clip`: how far the ratio of probabilities may move from 1, greater than 0.
- `value_clip`: how far a value may move in an update, in units of returns scaled by
    `reward_scale`, greater than 0; `None` for no limit.
- `value_weight`: weight of the critic's loss in the sum of the losses, at least 0.
- `entropy_weight`: weight of the policy's entropy, which is also maximized.
- `max_gradient_norm`: norm to which a larger gradient, of both networks together, is
    scaled down; greater than 0.
- `anneal_steps`: environment steps, summed over all environments, until the learning
    rate has decayed linearly to 0, greater than 0; usually the whole training. `None`
    keeps it constant. A state trained further, through `initial` or `agent_state`,
    keeps its count: pass the total over all calls. An `agent_state` whose rate is
    already 0 is refused; with `initial` it learns nothing more.
- `reward_scale`: factor by which rewards are multiplied.
- `num_epochs`: number of passes over each rollout, at least 1.
- `num_minibatches`: gradient steps in an epoch, at least 1; it must divide the steps of
    an iteration, with at least two per minibatch if advantages are normalized.
- `normalize_advantage`: whether advantages are shifted and scaled to mean 0 and
    standard deviation 1, in each minibatch.
- `make_actor`: a factory `(observation_size, action_size, *, key)`, or with the number
    of actions as second argument, of a policy: from one observation to an
    `eqrl.nn.AbstractLikelihood`. `None` takes `eqrl.nn.Choice()` or `eqrl.nn.Normal()`,
    whichever fits.
- `make_critic`: a factory `(observation_size, *, key)` of a network: from one
    observation to a scalar.
- `make_optimizer`: from a learning rate to an Optax optimizer; by default Adam with an
    epsilon of 1e-5.
- `recompute_advantages`: whether values, returns and advantages are recomputed before
    each epoch with the current critic, as Andrychowicz et al. (2021) recommend; each
    epoch takes one more pass of the critic. A `value_clip` then limits how far a value
    may move in an epoch.
"""
