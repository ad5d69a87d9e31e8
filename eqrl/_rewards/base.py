import dataclasses
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import check_fields, converted_field, hyperparameters, shown
from .._pytree.tree import check_kept, described, is_float_shape, show_values
from .._skills.prior import AbstractSkillPrior, SkillExtras
from .._types.custom_types import (
    Extras,
    FloatLike,
    Metrics,
    PyTree,
    RewardState,
    Seen,
    State,
)
from .._types.data import AnyTransition, EnvSpec, Transition
from ..nn import as_floats


class AbstractReward(eqx.Module, Generic[RewardState, Seen]):
    """A reward that is computed by the agent rather than given by the environment.

    The reward holds hyperparameters only; all that it learns is in its state.
    `Intrinsic` trains an agent on it. The agent must store the extras that the reward
    needs; `AbstractReward[State]` needs none.
    """

    def __check_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        return show_values(self)

    @abstractmethod
    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> RewardState:
        """The initial state.

        **Arguments:**

        - `spec`: of the environment.
        - `key`: for random initial values, such as those of a network.

        Raises a `ValueError` if the reward does not fit the environment.
        """

    @abstractmethod
    def observe(self, state: RewardState, transitions: Transition[Seen]) -> RewardState:
        """The state after new transitions, with one leading axis, each seen once."""

    @abstractmethod
    def reward(
        self,
        state: RewardState,
        batch: Transition[Seen],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        """The reward of each transition of a batch.

        **Arguments:**

        - `state`: from `init`, `observe` or `update`.
        - `batch`: with any leading axes.
        - `step`: the number of updates made before this one, never batched.
        - `key`: for random draws.

        **Returns:**

        One reward for each transition, with the leading axes of `batch`.
        """

    @abstractmethod
    def update(
        self, state: RewardState, batch: Transition[Seen], *, key: PRNGKeyArray
    ) -> tuple[RewardState, Metrics]:
        """One update on a batch, with any leading axes.

        **Returns:**

        The state after the update, and metrics with the same names at each call.
        """


AnyReward: TypeAlias = AbstractReward[Any, Any]
"""Any reward, with a state of any type."""


class AbstractSkillReward(AbstractReward[RewardState, SkillExtras[Any]]):
    """A reward that depends on the skill, and so knows the prior of the skills.

    `Intrinsic` refuses one whose skills differ from those of its agent.
    """

    skills: eqx.AbstractVar[AbstractSkillPrior]
    """The prior of the skills."""


def skill_rows(
    reward: AbstractSkillReward[Any], batch: Transition[SkillExtras[Any]]
) -> Float[Array, "rows skill"]:
    """The skills of a batch, with its leading axes flattened.

    Raises a `ValueError` if it has no skills of the size that the reward expects.
    """
    name = type(reward).__name__
    if not isinstance(batch.extras, SkillExtras):
        raise ValueError(
            f"`{name}` is given transitions without a skill; put it outside, as in "
            f"`Intrinsic(SkillConditioned(agent, skills), {name}(skills))`."
        )
    skill = batch.extras.skill
    if skill.shape[-1] != reward.skills.size:
        raise ValueError(
            f"The skills of the agent have size {skill.shape[-1]}, those of its "
            f"`{name}` size {reward.skills.size}; give both the same prior."
        )
    return skill.reshape(-1, skill.shape[-1])


def after_update(
    learner: eqx.Module, state: State, updated: object
) -> tuple[State, dict[str, Any]]:
    """The state and the metrics that `update` of an agent or a reward returned.

    Raises a `ValueError` if it returned anything else, or if the structure of the state
    has changed.
    """
    name = type(learner).__name__
    if isinstance(updated, tuple) and len(updated) == 2:
        after, metrics = updated
        if isinstance(metrics, dict):
            what = f"`update` of {name} gives another state"
            check_kept(what, state, after, source="init")
            return after, metrics
    raise ValueError(
        f"`update` of {name} gives "
        f"{shown(eqx.tree_pformat(updated, short_arrays=True))}; it must give the "
        "state after the update and a dictionary of metrics, as `return state, {}`."
    )


StateDescriptor = (
    Literal["state_descriptor", "observation", "both"]
    | Callable[[Float[Array, " obs"]], Float[Array, " descriptor"]]
)


def check_descriptor(name: str, descriptor: StateDescriptor) -> None:
    """Checks that `descriptor` is a known name or a function."""
    names = ("state_descriptor", "observation", "both")
    is_name = isinstance(descriptor, str) and descriptor in names
    if not is_name and not callable(descriptor):
        raise ValueError(
            f"`{name}={shown(descriptor)}` must be 'state_descriptor', "
            "'observation', 'both', or a function of one observation."
        )


def descriptor_size(descriptor: StateDescriptor, spec: EnvSpec) -> int:
    """The number of elements of a descriptor.

    Raises a `ValueError` if the environment does not give the descriptor, or if the
    function does not return a vector of floats for an observation.
    """
    if descriptor in ("state_descriptor", "both"):
        if spec.state_descriptor_size is None:
            raise ValueError(
                f"`descriptor={descriptor!r}`, but the environment describes no "
                "behavior (`spec.state_descriptor_size` is None). It gives "
                f"observations of size {spec.observation_size}: pass `descriptor="
                "'observation'` or a function of one, such as `lambda observation: "
                "observation[:2]`, or an environment with a descriptor, as "
                "`eqrl.envs.make(..., state_descriptor=)` makes it."
            )
        joined = spec.observation_size if descriptor == "both" else 0
        return joined + spec.state_descriptor_size
    if descriptor == "observation":
        return spec.observation_size
    observation = jax.ShapeDtypeStruct((spec.observation_size,), jnp.result_type(float))
    result = eqx.filter_eval_shape(descriptor, observation)
    is_vector = is_float_shape(result) and len(result.shape) == 1
    if not is_vector or result.size == 0:
        raise ValueError(
            f"The function `descriptor` gives {result} for one observation of "
            f"size {spec.observation_size}; it must give a vector of floats."
        )
    return result.size


def describe(
    descriptor: StateDescriptor, transitions: Transition[Extras]
) -> Float[Array, "*batch descriptor"]:
    """Descriptors of the states that transitions, with any axes, have reached."""
    observation = as_floats(transitions.next_observation)
    if descriptor in ("state_descriptor", "both"):
        result = transitions.next_state_descriptor
        if result is None:
            raise ValueError(
                f"`descriptor={descriptor!r}`, but these transitions have none: "
                "their environment describes no behavior."
            )
        if descriptor == "state_descriptor":
            return result
        return jnp.concatenate([observation, result], axis=-1)
    if descriptor == "observation":
        return observation
    rows = observation.reshape(-1, observation.shape[-1])
    described = jax.vmap(descriptor)(rows)
    return described.reshape(*observation.shape[:-1], described.shape[-1])


def as_if_left(transitions: Transition[Extras]) -> Transition[Extras]:
    """The transitions, as if each had ended in the state where it began.

    A function that describes the states after a step then describes those before it.
    """
    return dataclasses.replace(
        transitions,
        next_observation=transitions.observation,
        next_state_descriptor=transitions.state_descriptor,
    )


class SumState(eqx.Module):
    """State of `Sum`."""

    rewards: tuple[PyTree, ...]


SumState.__init__.__doc__ = """**Arguments:**

- `rewards`: a state for each reward.
"""


def check_rewards(giver: object, value: Array, batch: AnyTransition) -> None:
    """Checks that there is one reward for each transition."""
    # A number or a column would broadcast, in a sum or in the losses of the agent.
    if jnp.shape(value) != batch.timestep.shape:
        raise ValueError(
            f"`reward` of {type(giver).__name__} gives {described(value)}; it must "
            f"give one number for each transition, of shape {batch.timestep.shape}."
        )


class Sum(AbstractReward[SumState, Seen]):
    """Weighted sum of several rewards, which learn independently.

    The names of their metrics are prefixed with the index of the reward, as in
    `0_discriminator_loss`.
    """

    rewards: tuple[AbstractReward[Any, Seen], ...] = converted_field(
        convert=tuple, what="must be a sequence of rewards."
    )
    weights: tuple[FloatLike, ...] | None = hyperparameters(None)

    if TYPE_CHECKING:
        # Not all static type checkers know what the converters take.
        def __init__(
            self,
            rewards: Sequence[AbstractReward[Any, Seen]],
            weights: Sequence[FloatLike] | None = ...,
        ) -> None: ...

    def __check_init__(self) -> None:
        check_fields(self)
        if len(self.rewards) == 0:
            raise ValueError("`rewards` is empty; give at least one reward.")
        given, number = self.weights, len(self.rewards)
        is_fitting = isinstance(given, tuple) and len(given) == number
        if given is not None and not is_fitting:
            raise ValueError(
                f"`weights` must be a sequence of {number} numbers, one for each of "
                "`rewards`."
            )

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> SumState:
        keys = jr.split(key, len(self.rewards))
        return SumState(
            tuple(
                reward.init(spec, key=key)
                for reward, key in zip(self.rewards, keys, strict=True)
            )
        )

    def observe(self, state: SumState, transitions: Transition[Seen]) -> SumState:
        return SumState(
            tuple(
                reward.observe(part, transitions)
                for reward, part in zip(self.rewards, state.rewards, strict=True)
            )
        )

    def reward(
        self,
        state: SumState,
        batch: Transition[Seen],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        # `timestep` has the leading axes of the batch and no others.
        total = jnp.zeros(batch.timestep.shape)
        weights = self.weights or (1.0,) * len(self.rewards)
        keys = jr.split(key, len(self.rewards))
        for reward, part, weight, key in zip(
            self.rewards, state.rewards, weights, keys, strict=True
        ):
            value = reward.reward(part, batch, step=step, key=key)
            check_rewards(reward, value, batch)
            total = total + weight * value
        return total

    def update(
        self, state: SumState, batch: Transition[Seen], *, key: PRNGKeyArray
    ) -> tuple[SumState, Metrics]:
        parts, metrics = [], {}
        keys = jr.split(key, len(self.rewards))
        for index, (reward, part, key) in enumerate(
            zip(self.rewards, state.rewards, keys, strict=True)
        ):
            updated = reward.update(part, batch, key=key)
            part, found = after_update(reward, part, updated)
            parts.append(part)
            metrics |= {f"{index}_{name}": value for name, value in found.items()}
        return SumState(tuple(parts)), metrics


Sum.__init__.__doc__ = """**Arguments:**

- `rewards`: at least one, such as an `eqrl.Discriminator`.
- `weights`: a factor for each, any finite number; `None` is 1 for all. They are leaves,
    which population-based training can tune.
"""
