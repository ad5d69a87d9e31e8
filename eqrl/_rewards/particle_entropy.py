import equinox as eqx
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import checked_by, hyperparameter, static_integer
from .._pytree.tree import init_optimizer
from .._types.custom_types import FloatLike, MakeOptimizer, Metrics, Seen
from .._types.data import EnvSpec, Transition
from ..losses import particle_entropy
from ..nn import Features, MakeNetwork, VectorFunction
from .base import AbstractReward, StateDescriptor, check_descriptor
from .icm import (
    CuriosityModel,
    curiosity_rows,
    learn_curiosity,
    make_curiosity_model,
)
from .running_statistics import RunningStatistics, mean_size, no_statistics


class ParticleEntropyState(eqx.Module):
    """State of `ParticleEntropy`."""

    model: CuriosityModel | None
    optimizer: optax.OptState
    distances: RunningStatistics
    num_actions: int | None = eqx.field(static=True)


ParticleEntropyState.__init__.__doc__ = """**Arguments:**

- `model`: the encoder and the networks that train it; `None` without an encoder.
- `optimizer`: the state of the model's optimizer; empty without a model.
- `distances`: statistics of the mean distances to neighbors in all batches.
- `num_actions`: number of discrete actions, which are seen as one-hot vectors.
"""


class ParticleEntropy(AbstractReward[ParticleEntropyState, Seen]):
    """The reward of APT: how far a state is from its nearest neighbors in the batch.

    It is `losses.particle_entropy` of the states reached, with distances divided by
    their running mean. Its sum grows with the entropy of the states visited. With an
    encoder, distances are between its features, which are learned as in `ICM`.

    The metric is `neighbor_distance`, the mean distance before scaling; with an
    encoder, those of `ICM` are added.

    Differences from URLB's code: the reward is for the state after a step, not before
    it; a state is not its own neighbor; and distances are divided by their running mean
    even without an encoder, a case that its code does not support.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{liu2021behavior,
            title={Behavior From the Void: Unsupervised Active Pre-Training},
            author={Liu, Hao and Abbeel, Pieter},
            booktitle={Advances in Neural Information Processing Systems},
            year={2021},
        }
        ```
    """

    lr: FloatLike = hyperparameter(1e-4, low=0)
    clip: FloatLike = hyperparameter(0.0, low=0)
    num_neighbors: int = static_integer(12, least=1)
    num_features: int = static_integer(64, least=1)
    descriptor: StateDescriptor = eqx.field(
        default="observation", static=True, metadata=checked_by(check_descriptor)
    )
    make_encoder: MakeNetwork[VectorFunction] | None = eqx.field(
        default=None, static=True
    )
    make_network: MakeNetwork[VectorFunction] = eqx.field(
        default=Features(), static=True
    )
    make_optimizer: MakeOptimizer = eqx.field(default=optax.adam, static=True)

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> ParticleEntropyState:
        model = make_curiosity_model(
            self.descriptor,
            spec,
            self.make_network,
            self.make_encoder,
            self.num_features,
            key=key,
        )
        optimizer: optax.OptState = ()
        if self.make_encoder is not None:
            optimizer = init_optimizer(self.make_optimizer(self.lr), model)
        return ParticleEntropyState(
            # Without an encoder nothing learns, and no weights are kept.
            model=None if self.make_encoder is None else model,
            optimizer=optimizer,
            distances=no_statistics(1),
            num_actions=model.num_actions,
        )

    def observe(
        self, state: ParticleEntropyState, transitions: Transition[Seen]
    ) -> ParticleEntropyState:
        del transitions
        return state

    def reward(
        self,
        state: ParticleEntropyState,
        batch: Transition[Seen],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        del step, key
        entropy = particle_entropy(
            self._features(state, batch),
            k=self.num_neighbors,
            scale=mean_size(state.distances),
            clip=self.clip,
        )
        return entropy.reshape(batch.timestep.shape)

    def update(
        self, state: ParticleEntropyState, batch: Transition[Seen], *, key: PRNGKeyArray
    ) -> tuple[ParticleEntropyState, Metrics]:
        del key
        features = self._features(state, batch)
        # The mean distance to the neighbors of each row.
        distance = jnp.expm1(particle_entropy(features, k=self.num_neighbors))
        metrics: Metrics = {"neighbor_distance": jnp.mean(distance)}
        model, optimizer = state.model, state.optimizer
        if model is not None:
            rows = curiosity_rows(self.descriptor, state.num_actions, batch)
            rule = self.make_optimizer(self.lr)
            model, optimizer, losses = learn_curiosity(model, optimizer, rule, rows)
            metrics |= losses
        state = ParticleEntropyState(
            model=model,
            optimizer=optimizer,
            distances=state.distances.update(distance[:, None]),
            num_actions=state.num_actions,
        )
        return state, metrics

    def _features(
        self, state: ParticleEntropyState, batch: Transition[Seen]
    ) -> Float[Array, "rows feature"]:
        _, _, after = curiosity_rows(self.descriptor, state.num_actions, batch)
        return after if state.model is None else state.model.features(after)


ParticleEntropy.__init__.__doc__ = """**Arguments:**

- `lr`: learning rate of the encoder and of the networks that train it, at least 0.
- `clip`: at least 0; subtracted from scaled distances, with a floor of 0.
- `num_neighbors`: at least 1 and less than the size of a batch.
- `num_features`: outputs of the encoder, at least 1.
- `descriptor`: the part of a state that is seen: `"observation"`, in full;
    `"state_descriptor"`, as the environment describes behavior; `"both"`, joined; or a
    function of one observation.
- `make_encoder`: a factory `(descriptor_size, num_features, *, key)` of the encoder;
    `None` measures distances between descriptors.
- `make_network`: a factory `(input_size, output_size, *, key)` of the networks that
    train the encoder.
- `make_optimizer`: from a learning rate to an Optax optimizer.
"""
