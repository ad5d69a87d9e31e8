import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import (
    check_factory,
    checked_by,
    hyperparameter,
    static_integer,
)
from .._pytree.tree import gradient_step, init_optimizer
from .._types.custom_types import FloatLike, MakeOptimizer, Metrics, Seen
from .._types.data import EnvSpec, Transition
from ..nn import Features, MakeNetwork, VectorFunction
from .base import (
    AbstractReward,
    StateDescriptor,
    check_descriptor,
    describe,
    descriptor_size,
)
from .running_statistics import (
    RunningStatistics,
    no_statistics,
    root_mean_square,
)


class RNDState(eqx.Module):
    """State of `RND`."""

    network: VectorFunction
    target: VectorFunction
    optimizer: optax.OptState
    statistics: RunningStatistics
    errors: RunningStatistics


RNDState.__init__.__doc__ = """**Arguments:**

- `network`: the predictor, from one descriptor to a vector.
- `target`: the network whose outputs it predicts, which never changes.
- `optimizer`: the state of the predictor's optimizer.
- `statistics`: those of the descriptors of all states reached.
- `errors`: statistics of the errors of all batches.
"""


class RND(AbstractReward[RNDState, Seen]):
    """The reward of random network distillation: how new a state is.

    It is the mean squared error of a network that learns to predict the outputs of
    another one with random weights, at the state reached, divided by the running root
    mean square of errors. The error is large where the predictor has not learned yet.

    The metric is `predictor_loss`, the mean error of the batch before the update.

    Differences from the paper: errors are divided by their own running root mean
    square, not by the standard deviation of their discounted sum; the predictor learns
    from all rows; and, since critics bootstrap where an episode is truncated, returns
    are cut only where it terminates. The released code of URLB normalizes observations
    by the moments of the batch, so that a reward depends on the other rows, and rewards
    the state before a step: here the moments are running ones of all states reached,
    and the state reached is rewarded.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{burda2019exploration,
            title={Exploration by Random Network Distillation},
            author={Burda, Yuri and Edwards, Harrison and Storkey, Amos and Klimov,
                Oleg},
            booktitle={International Conference on Learning Representations},
            year={2019},
        }
        ```
    """

    lr: FloatLike = hyperparameter(1e-4, low=0)
    clip: FloatLike = hyperparameter(5.0, low=0, low_open=True)
    num_features: int = static_integer(512, least=1)
    descriptor: StateDescriptor = eqx.field(
        default="observation", static=True, metadata=checked_by(check_descriptor)
    )
    make_network: MakeNetwork[VectorFunction] = eqx.field(
        default=Features(), static=True
    )
    make_optimizer: MakeOptimizer = eqx.field(default=optax.adam, static=True)

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> RNDState:
        network_key, target_key = jr.split(key)
        sizes = (descriptor_size(self.descriptor, spec), self.num_features)
        check_factory("make_network", self.make_network, *sizes, key=key)
        # Made by the same factory, so that the predictor can match the target.
        network = self.make_network(*sizes, key=network_key)
        return RNDState(
            network=network,
            target=self.make_network(*sizes, key=target_key),
            optimizer=init_optimizer(self.make_optimizer(self.lr), network),
            statistics=no_statistics(sizes[0]),
            errors=no_statistics(1),
        )

    def observe(self, state: RNDState, transitions: Transition[Seen]) -> RNDState:
        seen = describe(self.descriptor, transitions)
        return eqx.tree_at(
            lambda state: state.statistics, state, state.statistics.update(seen)
        )

    def reward(
        self,
        state: RNDState,
        batch: Transition[Seen],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        del step, key
        error = self._errors(state.network, state, batch)
        return (error / root_mean_square(state.errors)).reshape(batch.timestep.shape)

    def update(
        self, state: RNDState, batch: Transition[Seen], *, key: PRNGKeyArray
    ) -> tuple[RNDState, Metrics]:
        del key

        def loss_of(
            network: VectorFunction,
        ) -> tuple[Float[Array, ""], Float[Array, " rows"]]:
            errors = self._errors(network, state, batch)
            return jnp.mean(errors), errors

        (loss, errors), gradient = eqx.filter_value_and_grad(loss_of, has_aux=True)(
            state.network
        )
        network, optimizer = gradient_step(
            state.network, gradient, self.make_optimizer(self.lr), state.optimizer
        )
        state = RNDState(
            network=network,
            target=state.target,
            optimizer=optimizer,
            statistics=state.statistics,
            # From before the step, like the reward of this batch.
            errors=state.errors.update(errors[:, None]),
        )
        return state, {"predictor_loss": loss}

    def _errors(
        self, network: VectorFunction, state: RNDState, batch: Transition[Seen]
    ) -> Float[Array, " rows"]:
        seen = state.statistics.normalize(describe(self.descriptor, batch))
        rows = jnp.clip(seen, -self.clip, self.clip).reshape(-1, seen.shape[-1])
        difference = jax.vmap(network)(rows) - jax.vmap(state.target)(rows)
        return jnp.mean(difference**2, axis=-1)


RND.__init__.__doc__ = """**Arguments:**

- `lr`: learning rate of the predictor, at least 0.
- `clip`: largest absolute value of an element of a normalized descriptor, above 0.
- `num_features`: outputs of both networks, at least 1.
- `descriptor`: the part of a state that is seen: `"observation"`, in full;
    `"state_descriptor"`, as the environment describes behavior; `"both"`, joined; or a
    function of one observation.
- `make_network`: a factory `(descriptor_size, num_features, *, key)` of both networks.
- `make_optimizer`: from a learning rate to an Optax optimizer.
"""
