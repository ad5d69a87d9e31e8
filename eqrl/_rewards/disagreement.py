import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import checked_by, hyperparameter, static_integer
from .._pytree.tree import gradient_step, init_optimizer
from .._types.custom_types import FloatLike, MakeOptimizer, Metrics, Seen
from .._types.data import EnvSpec, Transition
from ..losses import disagreement
from ..losses._critic import outputs_of_stack
from ..nn import Features, MakeNetwork, VectorFunction
from .base import AbstractReward, StateDescriptor, check_descriptor
from .icm import curiosity_rows, lengths, make_curiosity_model
from .running_statistics import RunningStatistics, no_statistics, root_mean_square


class DisagreementState(eqx.Module):
    """State of `Disagreement`."""

    models: VectorFunction
    optimizer: optax.OptState
    variances: RunningStatistics
    num_actions: int | None = eqx.field(static=True)


DisagreementState.__init__.__doc__ = """**Arguments:**

- `models`: a stack of networks, each from a state and an action, joined, to the state
    reached; every array has one more leading axis.
- `optimizer`: the state of the models' optimizer.
- `variances`: statistics of the variances of all batches.
- `num_actions`: number of discrete actions, which are seen as one-hot vectors.
"""


class Disagreement(AbstractReward[DisagreementState, Seen]):
    """The reward of disagreement: how differently models predict the state reached.

    It is the variance of the predictions of several networks, averaged over the
    elements of the state, divided by its running root mean square. Unpredictable noise
    is not rewarded, since all networks come to agree on it.

    The metric is `forward_loss`, the mean distance of predictions from the states
    reached before the update.

    Difference from the released code: the variance is divided by its running root mean
    square, since its size depends on the environment. All batches so far count alike,
    so the reward still shrinks as the models learn.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{pathak2019self,
            title={Self-Supervised Exploration via Disagreement},
            author={Pathak, Deepak and Gandhi, Dhiraj and Gupta, Abhinav},
            booktitle={International Conference on Machine Learning},
            year={2019},
        }
        ```
    """

    lr: FloatLike = hyperparameter(1e-4, low=0)
    num_models: int = static_integer(5, least=2)
    descriptor: StateDescriptor = eqx.field(
        default="observation", static=True, metadata=checked_by(check_descriptor)
    )
    make_network: MakeNetwork[VectorFunction] = eqx.field(
        default=Features(), static=True
    )
    make_optimizer: MakeOptimizer = eqx.field(default=optax.adam, static=True)

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> DisagreementState:
        make = lambda key: make_curiosity_model(
            self.descriptor, spec, self.make_network, None, 1, key=key
        )
        # All learn from the same rows, and differ only in their initial weights.
        made = eqx.filter_vmap(make)(jr.split(key, self.num_models))
        return DisagreementState(
            models=made.forward,
            optimizer=init_optimizer(self.make_optimizer(self.lr), made.forward),
            variances=no_statistics(1),
            num_actions=made.num_actions,
        )

    def observe(
        self, state: DisagreementState, transitions: Transition[Seen]
    ) -> DisagreementState:
        del transitions
        return state

    def reward(
        self,
        state: DisagreementState,
        batch: Transition[Seen],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        del step, key
        before, action, _ = curiosity_rows(self.descriptor, state.num_actions, batch)
        variance = disagreement(outputs_of_stack(state.models, before, action))
        scaled = variance / root_mean_square(state.variances)
        return scaled.reshape(batch.timestep.shape)

    def update(
        self, state: DisagreementState, batch: Transition[Seen], *, key: PRNGKeyArray
    ) -> tuple[DisagreementState, Metrics]:
        del key
        rows = curiosity_rows(self.descriptor, state.num_actions, batch)
        before, action, after = rows

        def loss_of(
            models: VectorFunction,
        ) -> tuple[Float[Array, ""], Float[Array, " rows"]]:
            predicted = outputs_of_stack(models, before, action)
            errors = jax.vmap(lambda each: lengths(after - each))(predicted)
            return jnp.mean(errors), disagreement(predicted)

        (loss, variance), gradient = eqx.filter_value_and_grad(loss_of, has_aux=True)(
            state.models
        )
        models, optimizer = gradient_step(
            state.models, gradient, self.make_optimizer(self.lr), state.optimizer
        )
        state = DisagreementState(
            models=models,
            optimizer=optimizer,
            variances=state.variances.update(variance[:, None]),
            num_actions=state.num_actions,
        )
        return state, {"forward_loss": loss}


Disagreement.__init__.__doc__ = """**Arguments:**

- `lr`: learning rate of all models, at least 0.
- `num_models`: at least 2.
- `descriptor`, `make_network`, `make_optimizer`: as in `ICM`.
"""
