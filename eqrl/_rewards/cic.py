import math
from typing import TYPE_CHECKING, Any

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
from .._skills.prior import AbstractSkillPrior, SkillExtras, as_skill_prior
from .._types.custom_types import FloatLike, MakeOptimizer, Metrics
from .._types.data import EnvSpec, Transition
from ..losses import contrastive_loss, particle_entropy
from ..nn import Features, MakeNetwork, VectorFunction
from .base import (
    AbstractSkillReward,
    StateDescriptor,
    as_if_left,
    check_descriptor,
    describe,
    descriptor_size,
    skill_rows,
)
from .running_statistics import RunningStatistics, mean_size, no_statistics


_Transition = Transition[SkillExtras[Any]]


class CICNetworks(eqx.Module):
    """Networks of `CIC`.

    **Attributes:**

    - `state`: from one descriptor to features.
    - `pair`: from the features of the states before and after a step to features.
    - `skill`: from a skill to features.
    """

    state: VectorFunction
    pair: VectorFunction
    skill: VectorFunction


class CICState(eqx.Module):
    """State of `CIC`."""

    networks: CICNetworks
    optimizer: optax.OptState
    distances: RunningStatistics


CICState.__init__.__doc__ = """**Arguments:**

- `networks`: the networks that the contrastive loss trains.
- `optimizer`: the state of the networks' optimizer.
- `distances`: statistics of the mean distances to neighbors in all batches.
"""


class CIC(AbstractSkillReward[CICState]):
    """The reward of contrastive intrinsic control: state entropy and distinct skills.

    It is `entropy_weight` times the particle entropy of the states reached, in learned
    features, plus `contrastive_weight` times `log(batch) - loss`. This contrastive
    loss, for telling the steps of a skill from those of the others in the batch, trains
    the features.

    The metrics are `contrastive_loss` and `neighbor_distance`, the mean distance to
    neighbors before scaling.

    Differences from the released code: the loss is InfoNCE with the positive among the
    candidates, while the code subtracts a constant that is right for one value only and
    clamps the rest; distances are divided by their running mean, not by their variance;
    and a state is not its own neighbor, so that 15 neighbors correspond to 16 in the
    code. By default only the entropy is rewarded, as in the code; the paper weighs both
    equally. To draw a skill every 50 steps, as the code does, use
    `SkillConditioned(agent, skills, resample_every=50)`.

    ??? cite "Reference"

        ```bibtex
        @article{laskin2022cic,
            title={{CIC}: Contrastive Intrinsic Control for Unsupervised Skill
                Discovery},
            author={Laskin, Michael and Liu, Hao and Peng, Xue Bin and Yarats, Denis
                and Rajeswaran, Aravind and Abbeel, Pieter},
            journal={arXiv:2202.00161},
            year={2022},
        }
        ```
    """

    skills: AbstractSkillPrior = eqx.field(converter=as_skill_prior)
    lr: FloatLike = hyperparameter(1e-4, low=0)
    temperature: FloatLike = hyperparameter(0.5, low=0, low_open=True)
    entropy_weight: FloatLike = hyperparameter(1.0)
    contrastive_weight: FloatLike = hyperparameter(0.0)
    clip: FloatLike = hyperparameter(0.0, low=0)
    num_neighbors: int = static_integer(15, least=1)
    num_features: int = static_integer(64, least=1)
    descriptor: StateDescriptor = eqx.field(
        default="observation", static=True, metadata=checked_by(check_descriptor)
    )
    make_network: MakeNetwork[VectorFunction] = eqx.field(
        default=Features(), static=True
    )
    make_optimizer: MakeOptimizer = eqx.field(default=optax.adam, static=True)

    if TYPE_CHECKING:
        # Not all static type checkers know what the converter takes.
        def __init__(
            self,
            skills: AbstractSkillPrior | int,
            lr: FloatLike = ...,
            temperature: FloatLike = ...,
            entropy_weight: FloatLike = ...,
            contrastive_weight: FloatLike = ...,
            clip: FloatLike = ...,
            num_neighbors: int = ...,
            num_features: int = ...,
            descriptor: StateDescriptor = ...,
            make_network: MakeNetwork[VectorFunction] = ...,
            make_optimizer: MakeOptimizer = ...,
        ) -> None: ...

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> CICState:
        features = self.num_features
        inputs = (descriptor_size(self.descriptor, spec), 2 * features)
        check_factory("make_network", self.make_network, *inputs, key=key)
        state, pair, skill = (
            self.make_network(size, features, key=key)
            for size, key in zip(
                (*inputs, self.skills.size), jr.split(key, 3), strict=True
            )
        )
        networks = CICNetworks(state=state, pair=pair, skill=skill)
        return CICState(
            networks=networks,
            optimizer=init_optimizer(self.make_optimizer(self.lr), networks),
            distances=no_statistics(1),
        )

    def observe(self, state: CICState, transitions: _Transition) -> CICState:
        del transitions
        return state

    def reward(
        self,
        state: CICState,
        batch: _Transition,
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        del step, key
        loss, features = self._losses(state.networks, batch)
        entropy = particle_entropy(
            features,
            k=self.num_neighbors,
            scale=mean_size(state.distances),
            clip=self.clip,
        )
        # At most the logarithm of the batch size, and 0 if all similarities are equal.
        told_apart = math.log(loss.shape[0]) - loss
        reward = self.entropy_weight * entropy + self.contrastive_weight * told_apart
        return reward.reshape(batch.timestep.shape)

    def update(
        self, state: CICState, batch: _Transition, *, key: PRNGKeyArray
    ) -> tuple[CICState, Metrics]:
        del key

        def loss_of(
            networks: CICNetworks,
        ) -> tuple[Float[Array, ""], Float[Array, "rows feature"]]:
            loss, features = self._losses(networks, batch)
            return jnp.mean(loss), features

        (loss, features), gradient = eqx.filter_value_and_grad(loss_of, has_aux=True)(
            state.networks
        )
        # The mean distance to the neighbors of each row.
        distance = jnp.expm1(particle_entropy(features, k=self.num_neighbors))
        networks, optimizer = gradient_step(
            state.networks, gradient, self.make_optimizer(self.lr), state.optimizer
        )
        state = CICState(
            networks=networks,
            optimizer=optimizer,
            distances=state.distances.update(distance[:, None]),
        )
        return state, {
            "contrastive_loss": loss,
            "neighbor_distance": jnp.mean(distance),
        }

    def _losses(
        self, networks: CICNetworks, batch: _Transition
    ) -> tuple[Float[Array, " rows"], Float[Array, "rows feature"]]:
        """The contrastive loss of each row, and the features of the state reached."""
        skill = skill_rows(self, batch)
        left, reached = (
            jax.vmap(networks.state)(
                describe(self.descriptor, transitions).reshape(skill.shape[0], -1)
            )
            for transitions in (as_if_left(batch), batch)
        )
        steps = jax.vmap(networks.pair)(jnp.concatenate([left, reached], axis=1))
        query = jax.vmap(networks.skill)(skill)
        # Each skill has to find its own step among those of the batch.
        return contrastive_loss(query, steps, self.temperature), reached


CIC.__init__.__doc__ = """**Arguments:**

- `skills`: the prior of the skills, the same as that of the `SkillConditioned` agent;
    in the paper `eqrl.UniformSkills(64, low=0.0, high=1.0)`.
- `lr`: learning rate of all networks, at least 0.
- `temperature`: temperature of the contrastive loss, above 0.
- `entropy_weight`, `contrastive_weight`: weights of the two parts of the reward.
- `clip`: at least 0; subtracted from scaled distances, with a floor of 0.
- `num_neighbors`: at least 1 and less than the size of a batch.
- `num_features`: number of features of states, steps and skills, at least 1.
- `descriptor`: the part of a state that is seen: `"observation"`, in full;
    `"state_descriptor"`, as the environment describes behavior; `"both"`, joined; or a
    function of one observation.
- `make_network`: a factory `(input_size, num_features, *, key)` of all networks.
- `make_optimizer`: from a learning rate to an Optax optimizer.
"""
