from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import check_factory, checked_by, hyperparameter
from .._pytree.tree import gradient_step, init_optimizer
from .._skills.prior import (
    AbstractSkillPrior,
    AnyOneHotSkills,
    NormalSkills,
    SkillExtras,
    SphereSkills,
    UniformSkills,
    as_skill_prior,
)
from .._types.custom_types import FloatLike, MakeOptimizer, Metrics
from .._types.data import EnvSpec, Transition
from ..losses import discriminator_loss, skill_log_ratio
from ..nn import (
    AbstractSkillDistribution,
    Categorical,
    DiagonalNormal,
    MakeDiscriminator,
    SkillDiscriminator,
    VonMisesFisher,
)
from .base import (
    AbstractSkillReward,
    StateDescriptor,
    check_descriptor,
    describe,
    descriptor_size,
    skill_rows,
)


_Transition = Transition[SkillExtras[Any]]


class DiscriminatorState(eqx.Module):
    """State of `Discriminator`."""

    network: SkillDiscriminator
    optimizer: optax.OptState


DiscriminatorState.__init__.__doc__ = """**Arguments:**

- `network`: from one descriptor to a distribution over skills.
- `optimizer`: the optimizer's state.
"""


class Discriminator(AbstractSkillReward[DiscriminatorState]):
    """The reward of DIAYN: how well a state identifies the skill that led to it.

    It is `log q(skill | descriptor) - log p(skill)`, in nats. The discriminator q is
    trained by cross-entropy to predict the skill from the state reached, and p is the
    prior of the skills. The reward of a batch is computed before the update on it.

    The metrics are `discriminator_loss` and, where q is an `eqrl.nn.Categorical`,
    `accuracy`: the share of the batch where the true skill is the most probable one
    under q, before the update on it.

    Differences from the paper: skills may be continuous, with a normal or a von
    Mises-Fisher distribution for q; q may see less than the full observation.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{eysenbach2019diversity,
            title={Diversity is All You Need: Learning Skills without a Reward
                Function},
            author={Eysenbach, Benjamin and Gupta, Abhishek and Ibarz, Julian and
                Levine, Sergey},
            booktitle={International Conference on Learning Representations},
            year={2019},
        }
        ```
    """

    skills: AbstractSkillPrior = eqx.field(converter=as_skill_prior)
    lr: FloatLike = hyperparameter(3e-4, low=0)
    descriptor: StateDescriptor = eqx.field(
        default="state_descriptor", static=True, metadata=checked_by(check_descriptor)
    )
    include_prior: bool = eqx.field(default=True, static=True)
    make_network: MakeDiscriminator | None = eqx.field(default=None, static=True)
    make_optimizer: MakeOptimizer = eqx.field(default=optax.adam, static=True)

    if TYPE_CHECKING:
        # Not all static type checkers know what the converter takes.
        def __init__(
            self,
            skills: AbstractSkillPrior | int,
            lr: FloatLike = ...,
            descriptor: StateDescriptor = ...,
            include_prior: bool = ...,
            make_network: MakeDiscriminator | None = ...,
            make_optimizer: MakeOptimizer = ...,
        ) -> None: ...

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> DiscriminatorState:
        size = descriptor_size(self.descriptor, spec)
        make_network = self.make_network or self.skills.make_discriminator
        sizes = (size, self.skills.size)
        check_factory("make_network", make_network, *sizes, key=key)
        network = make_network(*sizes, key=key)
        self._check_network(network, size)
        return DiscriminatorState(
            network=network,
            optimizer=init_optimizer(self.make_optimizer(self.lr), network),
        )

    def observe(
        self, state: DiscriminatorState, transitions: _Transition
    ) -> DiscriminatorState:
        del transitions
        return state

    def reward(
        self,
        state: DiscriminatorState,
        batch: _Transition,
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        del step, key
        descriptor, skill = self._rows(batch)
        log_prior = None
        if self.include_prior:
            log_prior = jax.vmap(self.skills.log_prob)(skill)
            # The replay may hold a skill from before its weight was set to 0, whose
            # reward would be infinite.
            log_prior = jnp.where(jnp.isneginf(log_prior), 0, log_prior)
        reward = skill_log_ratio(state.network, descriptor, skill, log_prior)
        return reward.reshape(batch.timestep.shape)

    def update(
        self, state: DiscriminatorState, batch: _Transition, *, key: PRNGKeyArray
    ) -> tuple[DiscriminatorState, Metrics]:
        del key
        descriptor, skill = self._rows(batch)
        loss, gradient = eqx.filter_value_and_grad(discriminator_loss)(
            state.network, descriptor, skill
        )
        metrics = {"discriminator_loss": loss}
        # XLA merges this pass through the network with the one of the loss.
        predicted = jax.vmap(state.network)(descriptor)
        if isinstance(predicted, Categorical):
            is_right = jnp.argmax(predicted.logits, axis=1) == jnp.argmax(skill, axis=1)
            metrics["accuracy"] = jnp.mean(is_right.astype(loss.dtype))
        network, optimizer = gradient_step(
            state.network, gradient, self.make_optimizer(self.lr), state.optimizer
        )
        state = DiscriminatorState(network=network, optimizer=optimizer)
        return state, metrics

    def descriptors(
        self, transitions: _Transition
    ) -> Float[Array, "*batch descriptor"]:
        """Descriptors of the states that transitions, with any axes, have reached."""
        return describe(self.descriptor, transitions)

    def _rows(
        self, batch: _Transition
    ) -> tuple[Float[Array, "rows descriptor"], Float[Array, "rows skill"]]:
        """Descriptors and skills, with the leading axes of the batch flattened."""
        skill, descriptor = skill_rows(self, batch), self.descriptors(batch)
        return descriptor.reshape(-1, descriptor.shape[-1]), skill

    def _check_network(self, network: SkillDiscriminator, size: int) -> None:
        descriptor = jax.ShapeDtypeStruct((size,), jnp.result_type(float))
        distribution = eqx.filter_eval_shape(network, descriptor)
        if not isinstance(distribution, AbstractSkillDistribution):
            raise ValueError(
                f"The network of `make_network` gives a {type(distribution).__name__}; "
                "it must give an `eqrl.nn.AbstractSkillDistribution`, such as "
                "`eqrl.nn.Categorical`, from one descriptor."
            )
        of_choices = isinstance(self.skills, AnyOneHotSkills)
        on_sphere = isinstance(self.skills, SphereSkills)
        of_vectors = on_sphere or isinstance(self.skills, NormalSkills | UniformSkills)
        # The skills of a prior of another class may be of any kind.
        for kind, is_misfit, reason in (
            (Categorical, of_vectors, "of one-hot skills, but {} are vectors"),
            (VonMisesFisher, not on_sphere, "on the unit sphere, where {} do not lie"),
            (DiagonalNormal, of_choices, "of vectors, but {} are one-hot"),
        ):
            if isinstance(distribution, kind) and is_misfit:
                raise ValueError(
                    f"The network of `make_network` gives a `{kind.__name__}`, "
                    f"{reason.format(f'`skills={self.skills}`')}; leave it out for one "
                    "that fits, such as `eqrl.nn.CategoricalDiscriminator()` for "
                    "one-hot skills and `eqrl.nn.NormalDiscriminator()` for vectors."
                )
        shape = eqx.filter_eval_shape(lambda x: network(x).mode(), descriptor).shape
        if shape != (self.skills.size,):
            raise ValueError(
                f"The network of `make_network` tells skills of shape {shape}, but "
                f"`skills` has {(self.skills.size,)}; let its output follow the "
                "`skill_size` it is made with."
            )


Discriminator.__init__.__doc__ = """**Arguments:**

- `skills`: the prior of the skills, the same as that of the `SkillConditioned` agent;
    or the number of one-hot skills. `Intrinsic` refuses a prior of another kind or
    size, or with other weights.
- `lr`: learning rate, at least 0.
- `descriptor`: the part of a state that the discriminator sees: `"state_descriptor"`,
    as the environment describes behavior; `"observation"`, in full; `"both"`, joined;
    or a function of one observation.
- `include_prior`: `False` leaves `- log p(skill)` out of the reward. With one-hot
    skills of equal weight it is a constant, which makes the reward positive if the
    discriminator is better than chance. This matters if episodes can terminate. It is
    left out for a skill of weight 0, where it would be infinite.
- `make_network`: a factory `(descriptor_size, skill_size, *, key)` of a network from
    one descriptor to an `eqrl.nn.AbstractSkillDistribution`; `None` takes the kind that
    fits the prior, with hidden layers of 256 and 256, such as
    `eqrl.nn.CategoricalDiscriminator()`.
- `make_optimizer`: from a learning rate to an Optax optimizer.
"""
