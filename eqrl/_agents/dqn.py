import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Int, PRNGKeyArray

from .._pytree.fields import hyperparameter, static_integer
from .._pytree.tree import gradient_step, init_optimizer, tree_copy
from .._types.custom_types import ActionValueFunction, FloatLike, MakeOptimizer, Metrics
from .._types.data import Discrete, EnvSpec, Transition
from ..losses import bootstrapped_target, dqn_loss, dqn_next_value, multi_step_return
from ..nn import ActionValues, MakeActionValues
from .actor_critic import check_spec, optimizers, periodic_update
from .base import AbstractEpsilonGreedyAgent
from .networks import ACTION_VALUES, make_network


class DQNState(eqx.Module):
    """State of `DQN`."""

    network: ActionValueFunction
    target_network: ActionValueFunction
    optimizer: optax.OptState
    num_steps: Int[Array, ""]


DQNState.__init__.__doc__ = """**Arguments:**

- `network`: from one observation to the value of each action.
- `target_network`: an earlier copy of `network`, used to compute targets.
- `optimizer`: the optimizer's state.
- `num_steps`: environment steps observed, summed over all environments.
"""


class DQN(AbstractEpsilonGreedyAgent[DQNState]):
    """Deep Q-network, for discrete actions.

    In training it picks a random action with a probability, epsilon, that changes
    linearly with the number of environment steps. By default the online network chooses
    the action to bootstrap from, and the target network values it (double DQN, [van
    Hasselt et al. 2016](https://arxiv.org/abs/1509.06461)). Targets may span several
    steps, without off-policy correction, as in Rainbow ([Hessel et al.
    2018](https://arxiv.org/abs/1710.02298)).

    The paper clips errors and rewards; here `huber` and `reward_scale` are options
    instead. Targets bootstrap where a time limit ends an episode.

    The metrics are `critic_loss`; `value`, the mean value of the stored actions; and
    `epsilon`.

    ??? cite "Reference"

        ```bibtex
        @article{mnih2015human,
            title={Human-level control through deep reinforcement learning},
            author={Mnih, Volodymyr and Kavukcuoglu, Koray and Silver, David and
                others},
            journal={Nature},
            volume={518},
            pages={529--533},
            year={2015},
        }
        ```
    """

    lr: FloatLike = hyperparameter(2.5e-4, low=0)
    discount: FloatLike = hyperparameter(0.99, low=0, high=1)
    target_step_size: FloatLike = hyperparameter(1.0, low=0, high=1)
    target_period: int = static_integer(50, least=1)
    initial_epsilon: FloatLike = hyperparameter(1.0, low=0, high=1)
    final_epsilon: FloatLike = hyperparameter(0.05, low=0, high=1)
    epsilon_steps: FloatLike = hyperparameter(10_000.0, low=0, low_open=True)
    reward_scale: FloatLike = hyperparameter(1.0)
    return_steps: int = static_integer(1, least=1)
    double: bool = eqx.field(default=True, static=True)
    huber: bool = eqx.field(default=False, static=True)
    make_network: MakeActionValues = eqx.field(default=ActionValues(), static=True)
    make_optimizer: MakeOptimizer = optimizers("network")

    @property
    def sequence_length(self) -> int:
        # A window of the replay holds as many steps as a target has rewards.
        return self.return_steps

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> DQNState:
        check_spec("DQN", spec, Discrete)
        network = make_network(
            ACTION_VALUES, "make_network", self.make_network, spec, key=key
        )
        return DQNState(
            network=network,
            target_network=tree_copy(network),
            optimizer=init_optimizer(self.make_optimizer(self.lr), network),
            num_steps=jnp.zeros((), int),
        )

    def update(
        self,
        state: DQNState,
        batch: Transition[None],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[DQNState, Metrics]:
        del key
        # A replay returns windows of one step without a time axis.
        if self.return_steps == 1:
            batch = jax.tree.map(lambda x: x[:, None], batch)
        returns, last, discount = jax.vmap(multi_step_return, in_axes=(0, 0, 0, None))(
            self.reward_scale * batch.reward,
            batch.terminated,
            batch.truncated,
            self.discount,
        )
        # Targets bootstrap from the state that their last step reached.
        end, terminated = jax.tree.map(
            lambda x: jax.vmap(lambda run, index: run[index])(x, last),
            (batch.next_observation, batch.terminated),
        )
        next_value = dqn_next_value(
            state.network, state.target_network, end, double=self.double
        )
        target = bootstrapped_target(returns, terminated, next_value, discount)
        # Later steps only contribute rewards to the value of the first action.
        observation, action = batch.observation[:, 0], batch.action[:, 0]
        (loss, value), gradient = eqx.filter_value_and_grad(dqn_loss, has_aux=True)(
            state.network, observation, action, target, huber=self.huber
        )
        network, optimizer = gradient_step(
            state.network, gradient, self.make_optimizer(self.lr), state.optimizer
        )
        metrics = {"critic_loss": loss, "value": value, "epsilon": self.epsilon(state)}
        state = DQNState(
            network=network,
            target_network=periodic_update(
                network,
                state.target_network,
                self.target_step_size,
                period=self.target_period,
                step=step,
            ),
            optimizer=optimizer,
            num_steps=state.num_steps,
        )
        return state, metrics


DQN.__init__.__doc__ = """**Arguments:**

- `lr`: learning rate, at least 0.
- `discount`: in [0, 1].
- `target_step_size`: weight of the network when the target network moves, in [0, 1].
- `target_period`: number of updates between such moves, at least 1.
- `initial_epsilon`, `final_epsilon`: probability of a random action in training, at the
    first step and from `epsilon_steps` on, in [0, 1].
- `epsilon_steps`: environment steps, summed over all environments, from the first to
    the second, greater than 0. Random steps of the warm-up count.
- `reward_scale`: factor by which rewards are multiplied.
- `return_steps`: number of rewards in a target before the value of a later state, at
    least 1; fewer where the episode ends.
- `double`: whether the network, rather than the target network, chooses the action to
    bootstrap from.
- `huber`: whether the loss is linear in errors beyond 1.
- `make_network`: a factory `(observation_size, num_actions, *, key)` of a network: from
    one observation to a vector with the value of each action.
- `make_optimizer`: from a learning rate to an Optax optimizer.
"""
