from typing import TYPE_CHECKING, Any, Literal

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
    static_choice,
    static_integer,
)
from .._pytree.tree import gradient_step, init_optimizer
from .._skills.prior import (
    AbstractSkillPrior,
    AnyOneHotSkills,
    SkillExtras,
    as_skill_prior,
)
from .._types.custom_types import FloatLike, MakeOptimizer, Metrics
from .._types.data import EnvSpec, Transition
from ..losses import mixture_log_prob
from ..nn import Features, MakeNetwork, VectorFunction, as_floats
from .base import (
    AbstractSkillReward,
    StateDescriptor,
    as_if_left,
    check_descriptor,
    describe,
    descriptor_size,
    skill_rows,
)
from .running_statistics import EPSILON, RunningStatistics, no_statistics


_Transition = Transition[SkillExtras[Any]]
_Seen = Literal["nothing", "descriptor", "observation"]


class DADSState(eqx.Module):
    """State of `DADS`."""

    network: VectorFunction
    optimizer: optax.OptState
    changes: RunningStatistics


DADSState.__init__.__doc__ = """**Arguments:**

- `network`: the dynamics, from their view of a state and a skill, joined, to the logits
    of the components and their means.
- `optimizer`: the state of the network's optimizer.
- `changes`: statistics of the changes of the descriptor in all transitions.
"""


class DADS(AbstractSkillReward[DADSState]):
    """The reward of DADS: predictable changes, unlike those of other skills.

    A network learns the density of the change of the descriptor in a step, given the
    skill and the `dynamics_input` of the state before the step, as a mixture of normals
    of unit variance over normalized changes. The reward is `log p(change | skill)`
    minus the logarithm of the mean of `p` over skills: all by their weights if they are
    one-hot, else the row's own and `num_samples` drawn for it. It is at most minus the
    logarithm of the skill's weight, or the logarithm of the number of skills compared.

    For planning, `predicted_change` gives the change that the network expects.

    The metric is `dynamics_loss`, the mean of `-log p` before the update.

    Differences from the released code: changes are those to the true successor, even
    where an episode ends, so that no row is masked or enters as 0; the mean over skills
    is exact, not clipped; and the row's own skill is counted among those drawn.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{sharma2020dynamics,
            title={Dynamics-Aware Unsupervised Discovery of Skills},
            author={Sharma, Archit and Gu, Shixiang and Levine, Sergey and Kumar, Vikash
                and Hausman, Karol},
            booktitle={International Conference on Learning Representations},
            year={2020},
        }
        ```
    """

    skills: AbstractSkillPrior = eqx.field(converter=as_skill_prior)
    lr: FloatLike = hyperparameter(3e-4, low=0)
    clip: FloatLike = hyperparameter(5.0, low=0, low_open=True)
    num_components: int = static_integer(4, least=1)
    num_samples: int = static_integer(16, least=1)
    descriptor: StateDescriptor = eqx.field(
        default="state_descriptor", static=True, metadata=checked_by(check_descriptor)
    )
    dynamics_input: _Seen = static_choice(
        "observation", ("nothing", "descriptor", "observation")
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
            clip: FloatLike = ...,
            num_components: int = ...,
            num_samples: int = ...,
            descriptor: StateDescriptor = ...,
            dynamics_input: _Seen = ...,
            make_network: MakeNetwork[VectorFunction] = ...,
            make_optimizer: MakeOptimizer = ...,
        ) -> None: ...

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> DADSState:
        change_size = descriptor_size(self.descriptor, spec)
        seen = {
            "nothing": 0,
            "descriptor": change_size,
            "observation": spec.observation_size,
        }
        sizes = (
            seen[self.dynamics_input] + self.skills.size,
            self.num_components * (1 + change_size),
        )
        check_factory("make_network", self.make_network, *sizes, key=key)
        network = self.make_network(*sizes, key=key)
        return DADSState(
            network=network,
            optimizer=init_optimizer(self.make_optimizer(self.lr), network),
            changes=no_statistics(change_size),
        )

    def observe(self, state: DADSState, transitions: _Transition) -> DADSState:
        # Each fresh transition counts once, however often the replay returns it.
        change = self._change(transitions)
        rows = change.reshape(-1, change.shape[-1])
        return eqx.tree_at(
            lambda state: state.changes, state, state.changes.update(rows)
        )

    def reward(
        self,
        state: DADSState,
        batch: _Transition,
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        del step
        seen, skill, change = self._rows(state, batch)
        log_prob = lambda skill: self._log_prob(state.network, seen, skill, change)
        own = log_prob(skill)
        if isinstance(self.skills, AnyOneHotSkills):
            # All of them, so that the mean over the prior is exact.
            every = jnp.eye(self.skills.size)
            among = jax.vmap(lambda z: log_prob(jnp.broadcast_to(z, skill.shape)))(
                every
            )
            shares = jax.vmap(self.skills.log_prob)(every)
            mean = jax.nn.logsumexp(among + shares[:, None], axis=0)
        else:
            draw = lambda key: self.skills.sample(index=jnp.zeros((), int), key=key)
            keys = jr.split(key, (self.num_samples, skill.shape[0]))
            others = jax.vmap(log_prob)(jax.vmap(jax.vmap(draw))(keys))
            # The row's own skill counts once, so that the reward is bounded.
            among = jnp.concatenate([others, own[None]])
            mean = jax.nn.logsumexp(among, axis=0) - jnp.log(float(among.shape[0]))
        return (own - mean).reshape(batch.timestep.shape)

    def update(
        self, state: DADSState, batch: _Transition, *, key: PRNGKeyArray
    ) -> tuple[DADSState, Metrics]:
        del key
        seen, skill, change = self._rows(state, batch)
        loss, gradient = eqx.filter_value_and_grad(
            lambda network: -jnp.mean(self._log_prob(network, seen, skill, change))
        )(state.network)
        network, optimizer = gradient_step(
            state.network, gradient, self.make_optimizer(self.lr), state.optimizer
        )
        state = DADSState(network=network, optimizer=optimizer, changes=state.changes)
        return state, {"dynamics_loss": loss}

    def predicted_change(
        self,
        state: DADSState,
        seen: Float[Array, "batch seen"],
        skill: Float[Array, "batch skill"],
    ) -> Float[Array, "batch descriptor"]:
        """The expected change of the descriptor in one step of each skill.

        **Arguments:**

        - `state`: the state of the reward.
        - `seen`: the dynamics' view of each state: depending on `dynamics_input`, its
            observation, its descriptor, or nothing, an array without columns.
        - `skill`: one for each state.

        **Returns:**

        Changes in one step, in the units of the descriptor.
        """
        # The network predicts normalized changes; clipping is not undone, since few
        # reach the bound.
        logits, means = self._mixture(state.network, seen, skill)
        weights = jax.nn.softmax(logits, axis=-1)
        expected = jnp.sum(weights[:, :, None] * means, axis=1)
        deviation = jnp.sqrt(state.changes.variance() + EPSILON)[None]
        return expected * deviation + state.changes.mean[None]

    def _log_prob(
        self,
        network: VectorFunction,
        seen: Float[Array, "rows seen"],
        skill: Float[Array, "rows skill"],
        change: Float[Array, "rows descriptor"],
    ) -> Float[Array, " rows"]:
        return mixture_log_prob(*self._mixture(network, seen, skill), change)

    def _mixture(
        self,
        network: VectorFunction,
        seen: Float[Array, "rows seen"],
        skill: Float[Array, "rows skill"],
    ) -> tuple[
        Float[Array, "rows components"], Float[Array, "rows components descriptor"]
    ]:
        # First the logits, then the means of one component after the other.
        outputs = jax.vmap(network)(jnp.concatenate([seen, skill], axis=1))
        number = self.num_components
        means = outputs[:, number:].reshape(outputs.shape[0], number, -1)
        return outputs[:, :number], means

    def _change(self, batch: _Transition) -> Float[Array, "*batch descriptor"]:
        left = describe(self.descriptor, as_if_left(batch))
        return describe(self.descriptor, batch) - left

    def _rows(
        self, state: DADSState, batch: _Transition
    ) -> tuple[
        Float[Array, "rows seen"],
        Float[Array, "rows skill"],
        Float[Array, "rows descriptor"],
    ]:
        """Inputs of the dynamics, skills and normalized changes, one in each row."""
        skill = skill_rows(self, batch)
        rows = lambda x: x.reshape(skill.shape[0], -1)
        seen = jnp.zeros((skill.shape[0], 0))
        if self.dynamics_input == "descriptor":
            seen = rows(describe(self.descriptor, as_if_left(batch)))
        elif self.dynamics_input == "observation":
            seen = rows(as_floats(batch.observation))
        change = state.changes.normalize(rows(self._change(batch)))
        return seen, skill, jnp.clip(change, -self.clip, self.clip)


DADS.__init__.__doc__ = """**Arguments:**

- `skills`: the prior of the skills, the same as that of the `SkillConditioned` agent;
    or the number of one-hot skills.
- `lr`: learning rate of the dynamics, at least 0.
- `clip`: largest absolute value of an element of a normalized change, above 0.
- `num_components`: number of normals in the mixture, at least 1.
- `num_samples`: skills to compare each row's own with, unless they are one-hot; at
    least 1. An update evaluates the network for all of them; the paper uses 100.
- `descriptor`: the part of a state whose change counts: `"state_descriptor"`, as the
    environment describes behavior; `"observation"`, in full; `"both"`, joined; or a
    function of one observation.
- `dynamics_input`: the dynamics' view of the state before a step: its `"observation"`,
    its `"descriptor"`, or `"nothing"`, for example if a position should not matter.
- `make_network`: a factory `(input_size, output_size, *, key)` of the dynamics.
- `make_optimizer`: from a learning rate to an Optax optimizer.
"""
