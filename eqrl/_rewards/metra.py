from typing import TYPE_CHECKING, Any, Literal

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import optax
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import (
    check_factory,
    checked_by,
    hyperparameter,
    static_choice,
)
from .._pytree.tree import gradient_step, init_optimizer, parts
from .._skills.prior import (
    AbstractSkillPrior,
    AnyOneHotSkills,
    SkillExtras,
    as_skill_prior,
)
from .._types.custom_types import FloatLike, MakeOptimizer, Metrics
from .._types.data import EnvSpec, Transition
from ..losses import metra_loss
from ..nn import Features, ImageEncoder, Linear, MakeNetwork, VectorFunction
from .base import (
    AbstractSkillReward,
    StateDescriptor,
    as_if_left,
    check_descriptor,
    describe,
    descriptor_size,
    skill_rows,
)


_Transition = Transition[SkillExtras[Any]]
_Steps = tuple[
    Float[Array, "rows descriptor"],
    Float[Array, "rows descriptor"],
    Float[Array, "rows skill"],
]
_Directions = tuple[Float[Array, " _"], ...]

# Steps of the power iteration before the first update, since a random direction may be
# far from that of the largest singular value.
_NUM_FIRST_STEPS = 10


class METRAState(eqx.Module):
    """State of `METRA`."""

    phi: VectorFunction
    optimizer: optax.OptState
    log_multiplier: Float[Array, ""]
    multiplier_optimizer: optax.OptState
    directions: _Directions


METRAState.__init__.__doc__ = """**Arguments:**

- `phi`: the representation, from one descriptor to a vector as long as a skill.
- `optimizer`: the state of the representation's optimizer.
- `log_multiplier`: logarithm of the multiplier of the constraint.
- `multiplier_optimizer`: the state of this logarithm's optimizer.
- `directions`: those of the largest singular value of each layer; empty unless the
    constraint is `"spectral"`.
"""


class METRA(AbstractSkillReward[METRAState]):
    """The reward of METRA: how far a step leads along the skill in a learned space.

    It is `(phi(s') - phi(s)) . z` for a step from s to s' with skill z. The
    representation phi is trained to maximize it, while no step may be longer than 1 in
    its space. So distances there count the steps between states, and skills move apart
    as far as the environment allows. A Lagrange multiplier enforces the constraint. For
    N one-hot skills z is 1 at the chosen one and `-1 / (N - 1)` elsewhere.

    For skills that move away, phi must see the position, which many environments do not
    observe. Build one that does, or use a `descriptor` with it. Positions should not be
    normalized by running statistics, which would shrink steps as the explored area
    grows; divide them by constants in a function `descriptor`.

    The metrics are `phi_loss`; `step_length`, the mean squared length of a step, which
    was 0.4 to 1 where training went well and is near 0 if phi sees nothing that moves;
    `violations`, the share of steps longer than 1; and with a multiplier `log_lambda`,
    its logarithm, and `dual_penalty`, the mean margin within the constraint before the
    update, near 0 if training goes well.

    Differences from the released code: a step's squared length is the sum over the
    dimensions of phi, as in the paper, not their mean (`constraint="mean"` is theirs);
    and critics bootstrap where an episode is truncated, which the code marks as
    terminated. The batch is scored before the update, in the code after it
    (`Intrinsic(score_after_update=True)`).

    ??? cite "Reference"

        ```bibtex
        @inproceedings{park2024metra,
            title={{METRA}: Scalable Unsupervised {RL} with Metric-Aware Abstraction},
            author={Park, Seohong and Rybkin, Oleh and Levine, Sergey},
            booktitle={International Conference on Learning Representations},
            year={2024},
        }
        ```
    """

    skills: AbstractSkillPrior = eqx.field(converter=as_skill_prior)
    lr: FloatLike = hyperparameter(1e-4, low=0)
    multiplier_lr: FloatLike = hyperparameter(1e-4, low=0)
    initial_multiplier: FloatLike = hyperparameter(
        30.0, low=0, low_open=True, init_only=True
    )
    slack: FloatLike = hyperparameter(1e-3, low=0)
    constraint: Literal["sum", "mean", "spectral"] = static_choice(
        "sum", ("sum", "mean", "spectral")
    )
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
            multiplier_lr: FloatLike = ...,
            initial_multiplier: FloatLike = ...,
            slack: FloatLike = ...,
            constraint: Literal["sum", "mean", "spectral"] = ...,
            descriptor: StateDescriptor = ...,
            make_network: MakeNetwork[VectorFunction] = ...,
            make_optimizer: MakeOptimizer = ...,
        ) -> None: ...

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> METRAState:
        network_key, direction_key = jr.split(key)
        sizes = (descriptor_size(self.descriptor, spec), self.skills.size)
        check_factory("make_network", self.make_network, *sizes, key=network_key)
        phi = self.make_network(*sizes, key=network_key)
        log_multiplier = jnp.log(self.initial_multiplier)
        is_spectral = self.constraint == "spectral"
        pieces = jax.tree.leaves(phi, is_leaf=lambda x: isinstance(x, Linear))
        # The patches of a convolution overlap, so it stretches more than its filters.
        others = [*filter(eqx.is_inexact_array, pieces), *parts(phi, ImageEncoder)]
        if is_spectral and others:
            raise ValueError(
                f"`make_network` made a {type(phi).__name__} with weights outside of "
                "`eqrl.nn.Linear` or with a convolution, which the spectral constraint "
                "of `eqrl.LSD` does not limit; take `eqrl.nn.Features()` without "
                "`layer_norm` and `residual`, or `eqrl.METRA` with another constraint."
            )
        return METRAState(
            phi=phi,
            optimizer=init_optimizer(self.make_optimizer(self.lr), phi),
            log_multiplier=log_multiplier,
            multiplier_optimizer=init_optimizer(
                self.make_optimizer(self.multiplier_lr), log_multiplier
            ),
            directions=_first_directions(phi, key=direction_key) if is_spectral else (),
        )

    def observe(self, state: METRAState, transitions: _Transition) -> METRAState:
        del transitions
        return state

    def reward(
        self,
        state: METRAState,
        batch: _Transition,
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        del step, key
        before, after, weight = self._steps(batch)
        phi = self._constrained(state.phi, state.directions)
        difference = jax.vmap(phi)(after) - jax.vmap(phi)(before)
        return jnp.sum(difference * weight, axis=-1).reshape(batch.timestep.shape)

    def update(
        self, state: METRAState, batch: _Transition, *, key: PRNGKeyArray
    ) -> tuple[METRAState, Metrics]:
        del key
        before, after, weight = self._steps(batch)
        by_multiplier = self.constraint != "spectral"
        multiplier = jnp.exp(state.log_multiplier) if by_multiplier else 0.0
        how = "mean" if self.constraint == "mean" else "sum"

        def loss_of(
            phi: VectorFunction,
        ) -> tuple[Float[Array, ""], Float[Array, ""]]:
            return metra_loss(
                self._constrained(phi, state.directions),
                before,
                after,
                weight,
                multiplier,
                self.slack,
                constraint=how,
            )

        (loss, penalty), gradient = eqx.filter_value_and_grad(loss_of, has_aux=True)(
            state.phi
        )
        phi = self._constrained(state.phi, state.directions)
        # XLA merges these passes through the network with those of the loss, and with
        # those of `reward`.
        squared = (jax.vmap(phi)(after) - jax.vmap(phi)(before)) ** 2
        reduce = jnp.mean if how == "mean" else jnp.sum
        length = reduce(squared, axis=-1)
        metrics = {
            "phi_loss": loss,
            "step_length": jnp.mean(length),
            "violations": jnp.mean((length > 1).astype(loss.dtype)),
        }
        network, optimizer = gradient_step(
            state.phi, gradient, self.make_optimizer(self.lr), state.optimizer
        )
        log_multiplier, dual = state.log_multiplier, state.multiplier_optimizer
        if by_multiplier:
            metrics |= {"dual_penalty": penalty, "log_lambda": log_multiplier}
            # The gradient of `log_multiplier * penalty`, so that a step does not grow
            # with the multiplier.
            log_multiplier, dual = gradient_step(
                log_multiplier, penalty, self.make_optimizer(self.multiplier_lr), dual
            )
        state = METRAState(
            phi=network,
            optimizer=optimizer,
            log_multiplier=log_multiplier,
            multiplier_optimizer=dual,
            # One step is enough, since weights change little in an update.
            directions=_next_directions(network, state.directions)
            if not by_multiplier
            else (),
        )
        return state, metrics

    def represent(
        self, state: METRAState, descriptor: Float[Array, "*batch descriptor"]
    ) -> Float[Array, "*batch skill"]:
        """Maps descriptors, with any leading axes, to points in the space of phi."""
        phi = self._constrained(state.phi, state.directions)
        rows = descriptor.reshape(-1, descriptor.shape[-1])
        return jax.vmap(phi)(rows).reshape(*descriptor.shape[:-1], -1)

    def _constrained(
        self, phi: VectorFunction, directions: _Directions
    ) -> VectorFunction:
        """The network, spectrally normalized if that is its constraint.

        Each weight is then divided by its largest singular value, `u' W v` for the
        directions v and u = W v, scaled to length 1. The gradient flows through W
        alone.
        """
        if self.constraint != "spectral":
            return phi
        weights = []
        for layer, direction in zip(parts(phi, Linear), directions, strict=True):
            other = _unit(lax.stop_gradient(layer.weight) @ direction)
            # Not a quotient: XLA would not merge that of `reward` with that of a loss.
            weights.append(layer.weight * (1 / (other @ layer.weight @ direction)))
        where = lambda tree: [layer.weight for layer in parts(tree, Linear)]
        return eqx.tree_at(where, phi, weights)

    def _steps(self, batch: _Transition) -> _Steps:
        """Descriptors before and after each step, and its weight, one in each row."""
        weight = skill_rows(self, batch)
        if isinstance(self.skills, AnyOneHotSkills):
            number = self.skills.size
            # They sum to 0: a step that all skills share is worth nothing.
            weight = (number * weight - 1) / (number - 1)
        before, after = (
            describe(self.descriptor, transitions).reshape(weight.shape[0], -1)
            for transitions in (as_if_left(batch), batch)
        )
        return before, after, weight


METRA.__init__.__doc__ = """**Arguments:**

- `skills`: the prior of the skills, the same as that of the `SkillConditioned` agent,
    such as `eqrl.SphereSkills(2)`; or the number of one-hot skills.
- `lr`: learning rate of the representation, at least 0.
- `multiplier_lr`: learning rate of the logarithm of the multiplier, and about the most
    that it changes in an update: from 30 to 1 takes 34,000 updates at 1e-4, the
    paper's. For about 20,000 updates use 1e-3 for both rates.
- `initial_multiplier`: above 0.
- `slack`: the greatest margin of a step within the constraint that counts, at least
    0. With a greater one the constraint has no gradient.
- `constraint`: `"sum"` limits the length of a step by the multiplier; `"mean"` limits
    the mean over dimensions of its square; `"spectral"` instead divides the weight of
    each layer by its largest singular value, so that no step is longer in phi than in
    the descriptor, which is `eqrl.LSD`; phi must then have no weights but those
    of `eqrl.nn.Linear`, no convolution, and activations of slopes in [-1, 1].
- `descriptor`: the part of a state that the representation sees: `"observation"`, in
    full; `"state_descriptor"`, as the environment describes behavior; `"both"`, joined;
    or a function of one observation.
- `make_network`: a factory `(descriptor_size, skill_size, *, key)` of a network from
    one descriptor to a vector as long as a skill. Since two of these are subtracted,
    `precision="bfloat16"` would round much of the reward away.
- `make_optimizer`: from a learning rate to an Optax optimizer.
"""


def LSD(
    skills: AbstractSkillPrior | int,
    *,
    lr: FloatLike = 1e-4,
    descriptor: StateDescriptor = "observation",
    make_network: MakeNetwork[VectorFunction] = Features(),
    make_optimizer: MakeOptimizer = optax.adam,
) -> METRA:
    """The reward of Lipschitz-constrained skill discovery, `METRA` with another metric.

    Its representation makes no step longer than it is in the descriptor, by spectral
    normalization of each layer, with one step of the power iteration in each update.

    Differences from the release: skills on the sphere have length 1, as in METRA's
    comparisons, not that of normal vectors; the agent learns from a replay.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{park2022lipschitz,
            title={Lipschitz-constrained Unsupervised Skill Discovery},
            author={Park, Seohong and Choi, Jongwook and Kim, Jaekyeom and Lee, Honglak
                and Kim, Gunhee},
            booktitle={International Conference on Learning Representations},
            year={2022},
        }
        ```

    **Arguments:** those of `METRA` with the same names.
    """
    return METRA(
        skills,
        lr=lr,
        constraint="spectral",
        descriptor=descriptor,
        make_network=make_network,
        make_optimizer=make_optimizer,
    )


def _first_directions(network: object, *, key: PRNGKeyArray) -> _Directions:
    """For each layer, a direction near that of its largest singular value."""
    layers = parts(network, Linear)
    keys = jr.split(key, len(layers))
    directions = tuple(
        jr.normal(key, layer.bias.shape)
        for layer, key in zip(layers, keys, strict=True)
    )
    for _ in range(_NUM_FIRST_STEPS):
        directions = _next_directions(network, directions)
    return directions


def _next_directions(network: object, directions: _Directions) -> _Directions:
    """The directions after one more step of the power iteration."""
    return tuple(
        _unit(_unit(layer.weight @ direction) @ layer.weight)
        for layer, direction in zip(parts(network, Linear), directions, strict=True)
    )


def _unit(x: Float[Array, " size"]) -> Float[Array, " size"]:
    return x / (jnp.linalg.norm(x) + 1e-12)
