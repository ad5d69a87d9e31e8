import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import hyperparameter, static_integer
from .._pytree.tree import gradient_step, init_optimizer
from .._types.custom_types import (
    ActionValueFunction,
    FloatLike,
    MakeOptimizer,
    Metrics,
    Observation,
)
from .._types.data import Discrete, EnvSpec, Transition, flatten_batch
from ..losses import dqn_loss
from ..nn import ActionValues, MakeActionValues
from .actor_critic import check_spec, clipped, optimizers
from .base import AbstractEpsilonGreedyAgent, annealed
from .networks import ACTION_VALUES, make_network
from .on_policy import learn_in_minibatches, rollout_returns


class PQNState(eqx.Module):
    """State of `PQN`."""

    network: ActionValueFunction
    optimizer: optax.OptState
    num_steps: Int[Array, ""]


PQNState.__init__.__doc__ = """**Arguments:**

- `network`: from one observation to the value of each action.
- `optimizer`: the optimizer's state.
- `num_steps`: environment steps observed, summed over all environments.
"""


class _Row(eqx.Module):
    """A step of the rollout, as the loss needs it, or a stack of such steps."""

    observation: Observation[Array, "*batch obs"]
    action: Int[Array, "*batch"]
    target: Float[Array, "*batch"]


class PQN(AbstractEpsilonGreedyAgent[PQNState]):
    """Parallelized Q-network, for discrete actions: no replay and no target network.

    It learns on-policy: in several epochs from the steps of an iteration, and then
    discards them. Train it with `eqrl.Trainer.on_policy`, in many environments. Layer
    normalization keeps it stable; a convolution that reads images is not normalized
    here.

    An episode that a time limit ends is bootstrapped from the state it reached; the
    reference implementation assumes a value of 0 there.

    The metrics are those of `DQN`.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{gallici2025simplifying,
            title={Simplifying Deep Temporal Difference Learning},
            author={Gallici, Matteo and Fellows, Mattie and Ellis, Benjamin and Pou,
                Bartomeu and Masmitja, Ivan and Foerster, Jakob Nicolaus and Martin,
                Mario},
            booktitle={International Conference on Learning Representations},
            year={2025},
        }
        ```
    """

    lr: FloatLike = hyperparameter(5e-4, low=0)
    discount: FloatLike = hyperparameter(0.99, low=0, high=1)
    decay: FloatLike = hyperparameter(0.65, low=0, high=1)
    initial_epsilon: FloatLike = hyperparameter(1.0, low=0, high=1)
    final_epsilon: FloatLike = hyperparameter(0.05, low=0, high=1)
    epsilon_steps: FloatLike = hyperparameter(100_000.0, low=0, low_open=True)
    max_gradient_norm: FloatLike = hyperparameter(10.0, low=0, low_open=True)
    anneal_steps: FloatLike | None = hyperparameter(None, low=0, low_open=True)
    reward_scale: FloatLike = hyperparameter(1.0)
    num_epochs: int = static_integer(2, least=1)
    num_minibatches: int = static_integer(32, least=1)
    make_network: MakeActionValues = eqx.field(
        default=ActionValues((128, 128), layer_norm=True), static=True
    )
    # The optimizer of the reference implementation.
    make_optimizer: MakeOptimizer = optimizers("network", default=optax.radam)

    @property
    def sequence_length(self) -> None:
        return None

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> PQNState:
        check_spec("PQN", spec, Discrete)
        network = make_network(
            ACTION_VALUES, "make_network", self.make_network, spec, key=key
        )
        return PQNState(
            network=network,
            optimizer=init_optimizer(self._learning_rule(self.lr), network),
            num_steps=jnp.zeros((), int),
        )

    def update(
        self,
        state: PQNState,
        batch: Transition[None],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[PQNState, Metrics]:
        del step
        rows = flatten_batch(batch)
        # The same network as in the loss: normalized layers make a target network
        # unnecessary. Targets stay fixed during the epochs.
        next_value = jnp.max(jax.vmap(state.network)(rows.next_observation), axis=-1)
        target = rollout_returns(
            batch,
            next_value,
            reward_scale=self.reward_scale,
            discount=self.discount,
            decay=self.decay,
        )
        lr = annealed(self.lr, state.num_steps, self.anneal_steps, counted=target.size)
        rule = self._learning_rule(lr)

        def learn(
            carry: tuple[ActionValueFunction, optax.OptState],
            minibatch: _Row,
            key: PRNGKeyArray,
        ) -> tuple[tuple[ActionValueFunction, optax.OptState], Metrics]:
            del key
            network, optimizer = carry
            (loss, value), gradient = eqx.filter_value_and_grad(dqn_loss, has_aux=True)(
                network,
                minibatch.observation,
                minibatch.action,
                minibatch.target,
                huber=False,
            )
            metrics = {"critic_loss": loss, "value": value}
            return gradient_step(network, gradient, rule, optimizer), metrics

        (network, optimizer), metrics = learn_in_minibatches(
            learn,
            (state.network, state.optimizer),
            _Row(observation=rows.observation, action=rows.action, target=target),
            num_epochs=self.num_epochs,
            num_minibatches=self.num_minibatches,
            key=key,
        )
        epsilon = self.epsilon(state)
        state = PQNState(
            network=network, optimizer=optimizer, num_steps=state.num_steps
        )
        return state, {**metrics, "epsilon": epsilon}

    def _learning_rule(self, lr: FloatLike) -> optax.GradientTransformation:
        return clipped(self.make_optimizer(lr), self.max_gradient_norm)


PQN.__init__.__doc__ = """**Arguments:**

- `lr`: learning rate, at least 0.
- `discount`: in [0, 1].
- `decay`: lambda of the returns, in [0, 1]: 0 counts one reward, 1 all of them.
- `initial_epsilon`, `final_epsilon`: probability of a random action in training, at the
    first step and from `epsilon_steps` on, in [0, 1].
- `epsilon_steps`: environment steps, summed over all environments, from the first to
    the second, greater than 0.
- `max_gradient_norm`: norm to which a larger gradient is scaled down; greater than 0.
- `anneal_steps`: environment steps, summed over all environments, until the learning
    rate has decayed linearly to 0, greater than 0; usually the whole training. `None`
    keeps it constant. A state trained further, through `initial` or `agent_state`,
    keeps its count: pass the total over all calls. An `agent_state` whose rate is
    already 0 is refused; with `initial` it learns nothing more.
- `reward_scale`: factor by which rewards are multiplied.
- `num_epochs`: number of passes over each rollout, at least 1.
- `num_minibatches`: gradient steps in an epoch, at least 1; it must divide the steps of
    an iteration.
- `make_network`: a factory `(observation_size, num_actions, *, key)` of a network: from
    one observation to a vector with the value of each action.
- `make_optimizer`: from a learning rate to an Optax optimizer.
"""
