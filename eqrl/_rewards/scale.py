"""Normalization of the two distances."""

import dataclasses
from typing import Literal

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._pytree.tree import tree_copy
from .._types.custom_types import FloatLike
from .feature_set import Distances


Feature = Literal["delta", "next_state"]
Normalization = Literal["previous_skill_mean", "batch_mean", "none", "released"]
ModeName = Literal["pseudocode", "paper", "released"]
Replay = Literal["keep", "half", "clear", "random_half"]


@dataclasses.dataclass(frozen=True)
class IncrementalMode:
    """Settings of one variant of DISk.

    - `k`: the distance is to the k-th nearest neighbor.
    - `feature`: the feature of a transition.
    - `per_timestep`: whether a transition is compared with those of its timestep only.
    - `normalization`: normalization of the two distances.
    - `num_recent_episodes`: capacity of the set of recent features, in episodes.
    - `clear_recent`: whether each skill begins with an empty set of recent features.
    - `recollect`: whether all skills are rolled out again before the next one begins;
        otherwise only the newest is, and its features are added to the past.
    - `include_newest`: whether these rollouts include the newest skill.
    - `replay`: the part of the replay that the next skill inherits.
    """

    k: int
    feature: Feature
    per_timestep: bool
    normalization: Normalization
    num_recent_episodes: int
    clear_recent: bool
    recollect: bool
    include_newest: bool
    replay: Replay


_PAPER = IncrementalMode(
    k=3,
    feature="delta",
    per_timestep=False,
    normalization="previous_skill_mean",
    num_recent_episodes=1,
    clear_recent=True,
    recollect=True,
    include_newest=True,
    replay="half",
)

MODES: dict[ModeName, IncrementalMode] = {
    "paper": _PAPER,
    "pseudocode": IncrementalMode(
        k=5,
        feature="next_state",
        per_timestep=True,
        normalization="none",
        num_recent_episodes=100,
        clear_recent=True,
        recollect=False,
        include_newest=True,
        replay="keep",
    ),
    "released": dataclasses.replace(
        _PAPER, normalization="released", clear_recent=False, include_newest=False
    ),
}


# A divisor is at least this fraction of the batch's mean. Otherwise the consistency of
# a skill that follows a nearly deterministic one would outweigh everything else.
_LEAST_FRACTION = 0.01
# Updates between two values of the released code's running means.
_LOG_PERIOD = 10_000


class RunningMean(eqx.Module):
    """A mean and its count; 0 when empty."""

    mean: Float[Array, ""]
    count: Int[Array, ""]

    def add(self, value: Float[Array, ""], where: Bool[Array, ""]) -> "RunningMean":
        count = self.count + where.astype(int)
        # In float32 a sum over millions of values would absorb further ones.
        change = (value - self.mean) / jnp.maximum(count, 1).astype(value.dtype)
        return RunningMean(mean=self.mean + jnp.where(where, change, 0), count=count)


class TermScale(eqx.Module):
    """Running means of one of the two distances, and of its term of the reward.

    - `previous`: mean distance over the previous skill; 0 if none was measured.
    - `current`: mean distance over the current skill so far.
    - `logged`: mean of the weighted, signed term, over every 10,000th update of all
        skills.
    - `factor`: the factor of `"released"`.
    """

    previous: Float[Array, ""]
    current: RunningMean
    logged: RunningMean
    factor: Float[Array, ""]

    def begin_skill(self, weight: FloatLike) -> "TermScale":
        # In the released code an empty list is initialized with a 1, which stays in it.
        is_empty = self.logged.count == 0
        logged = RunningMean(
            mean=jnp.where(is_empty, 1, self.logged.mean),
            count=jnp.where(is_empty, 1, self.logged.count),
        )
        return TermScale(
            previous=self.current.mean,
            current=jax.tree.map(jnp.zeros_like, self.current),
            logged=logged,
            factor=_inverse(weight * logged.mean),
        )

    def update(
        self, distances: Distances, term: Float[Array, ""], is_logged: Bool[Array, ""]
    ) -> "TermScale":
        return dataclasses.replace(
            self,
            current=self.current.add(distances.mean(), jnp.any(distances.known)),
            logged=self.logged.add(term, is_logged),
        )


class Scale(eqx.Module):
    """Statistics that normalize the two distances.

    - `diversity`, `consistency`: those of each distance.
    - `calls`: updates of the current skill so far.
    - `expected_calls`: updates the current skill will have; 0 for the first skill.
    - `all_calls`: updates of all skills.
    """

    diversity: TermScale
    consistency: TermScale
    calls: Int[Array, ""]
    expected_calls: Float[Array, ""]
    all_calls: Int[Array, ""]


def first_scale() -> Scale:
    """The scale at the beginning of the first skill."""
    empty = RunningMean(mean=jnp.zeros(()), count=jnp.zeros((), int))
    term = TermScale(
        previous=jnp.zeros(()), current=empty, logged=empty, factor=jnp.ones(())
    )
    # A copy of each part, since a state that holds one array twice cannot be donated.
    return Scale(
        diversity=tree_copy(term),
        consistency=tree_copy(term),
        calls=jnp.zeros((), int),
        expected_calls=jnp.zeros(()),
        all_calls=jnp.zeros((), int),
    )


def next_scale(
    scale: Scale, *, alpha: FloatLike, beta: FloatLike, expected_calls: FloatLike
) -> Scale:
    """The scale at the beginning of the next skill."""
    return dataclasses.replace(
        scale,
        diversity=scale.diversity.begin_skill(beta),
        consistency=scale.consistency.begin_skill(alpha),
        calls=jnp.zeros((), int),
        expected_calls=jnp.asarray(expected_calls, dtype=jnp.result_type(float)),
    )


def factors(
    scale: Scale,
    normalization: Normalization,
    diversity: Float[Array, ""],
    consistency: Float[Array, ""],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Factors of the distances to past and to recent features.

    `diversity` and `consistency` are the mean distances of the batch. With `"released"`
    the second factor changes its sign within a skill.
    """
    if normalization == "none":
        return jnp.ones(()), jnp.ones(())
    if normalization == "released":
        # The temperature of the released code, which rises from -1 to 1 within a skill.
        # It is 1 in the first one, whose number of updates is not known.
        calls = scale.calls.astype(scale.expected_calls.dtype)
        progress = calls / jnp.maximum(scale.expected_calls, 1)
        temperature = jnp.where(
            scale.expected_calls == 0, 1, jnp.tanh(4 * (2 * progress - 1))
        )
        return scale.diversity.factor, temperature * scale.consistency.factor
    if normalization == "batch_mean":
        return _inverse(diversity), _inverse(consistency)
    return (
        _inverse_of_previous(scale.diversity.previous, diversity),
        _inverse_of_previous(scale.consistency.previous, consistency),
    )


def update_scale(
    scale: Scale,
    diversity: Distances,
    consistency: Distances,
    diversity_term: Float[Array, ""],
    consistency_term: Float[Array, ""],
) -> Scale:
    """The scale after one update, given distances and the means of the two terms."""
    is_logged = (scale.all_calls + 1) % _LOG_PERIOD == 0
    return dataclasses.replace(
        scale,
        diversity=scale.diversity.update(diversity, diversity_term, is_logged),
        consistency=scale.consistency.update(consistency, consistency_term, is_logged),
        calls=scale.calls + 1,
        all_calls=scale.all_calls + 1,
    )


def _inverse(value: Float[Array, ""]) -> Float[Array, ""]:
    """`1 / value`, with `abs(value)` at least the machine epsilon."""
    # The sign is kept, since the released code divides by means of signed terms.
    least = jnp.finfo(value.dtype).eps
    size = jnp.maximum(jnp.abs(value), least)
    return jnp.where(value < 0, -1, 1) / size


def _inverse_of_previous(
    previous: Float[Array, ""], batch: Float[Array, ""]
) -> Float[Array, ""]:
    # Without a previous skill its mean is 0, and the batch takes its place.
    mean = jnp.maximum(previous, _LEAST_FRACTION * batch)
    return _inverse(jnp.where(previous > 0, mean, batch))
