"""Normalization of the two distances."""

import dataclasses
from typing import Literal

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..._types.custom_types import FloatLike


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
    - `normalization`: of the two distances.
    - `num_recent_episodes`: capacity of the set of recent features, in episodes.
    - `clear_recent`: whether each skill begins with an empty set of recent features.
    - `recollect`: whether all skills are rolled out again before the next one begins;
        otherwise only the newest is, and is added to the past features.
    - `include_newest`: whether the skill learned last is among them.
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


MODES: dict[ModeName, IncrementalMode] = {
    "paper": IncrementalMode(
        k=3,
        feature="delta",
        per_timestep=False,
        normalization="previous_skill_mean",
        num_recent_episodes=1,
        clear_recent=True,
        recollect=True,
        include_newest=True,
        replay="half",
    ),
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
    "released": IncrementalMode(
        k=3,
        feature="delta",
        per_timestep=False,
        normalization="released",
        num_recent_episodes=1,
        clear_recent=False,
        recollect=True,
        include_newest=False,
        replay="half",
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


class Scale(eqx.Module):
    """Running means of both distances, from which their divisors are computed."""

    previous_diversity: Float[Array, ""]
    previous_consistency: Float[Array, ""]
    diversity: RunningMean
    consistency: RunningMean
    calls: Int[Array, ""]
    expected_calls: Float[Array, ""]
    all_calls: Int[Array, ""]
    logged_diversity: RunningMean
    logged_consistency: RunningMean
    diversity_factor: Float[Array, ""]
    consistency_factor: Float[Array, ""]


Scale.__init__.__doc__ = """**Arguments:**

- `previous_diversity`, `previous_consistency`: mean distances over the previous skill;
    0 if none was measured.
- `diversity`, `consistency`: mean distances over the current skill so far.
- `calls`: updates of the current skill so far.
- `expected_calls`: updates the current skill will have; 0 for the first skill.
- `all_calls`: updates of all skills.
- `logged_diversity`, `logged_consistency`: means of the weighted, signed terms of the
    reward, over every 10,000th update of all skills.
- `diversity_factor`, `consistency_factor`: the factors of `"released"`.
"""


def first_scale() -> Scale:
    """The scale at the beginning of the first skill."""
    return Scale(
        previous_diversity=jnp.zeros(()),
        previous_consistency=jnp.zeros(()),
        diversity=_empty_mean(),
        consistency=_empty_mean(),
        calls=jnp.zeros((), int),
        expected_calls=jnp.zeros(()),
        all_calls=jnp.zeros((), int),
        logged_diversity=_empty_mean(),
        logged_consistency=_empty_mean(),
        diversity_factor=jnp.ones(()),
        consistency_factor=jnp.ones(()),
    )


def next_scale(
    scale: Scale, *, alpha: FloatLike, beta: FloatLike, expected_calls: FloatLike
) -> Scale:
    """The scale at the beginning of the next skill."""
    logged_diversity = _or_one(scale.logged_diversity)
    logged_consistency = _or_one(scale.logged_consistency)
    return Scale(
        previous_diversity=scale.diversity.mean,
        previous_consistency=scale.consistency.mean,
        diversity=_empty_mean(),
        consistency=_empty_mean(),
        calls=jnp.zeros((), int),
        expected_calls=jnp.asarray(expected_calls, dtype=jnp.result_type(float)),
        all_calls=scale.all_calls,
        logged_diversity=logged_diversity,
        logged_consistency=logged_consistency,
        diversity_factor=_inverse(beta * logged_diversity.mean),
        consistency_factor=_inverse(alpha * logged_consistency.mean),
    )


def factors(
    scale: Scale,
    normalization: Normalization,
    diversity: Float[Array, ""],
    consistency: Float[Array, ""],
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Factors of the distances to past and to recent features.

    **Arguments:**

    - `scale`, `normalization`: which factors.
    - `diversity`, `consistency`: mean distances of the batch.

    **Returns:**

    Both factors. With `"released"` the second changes its sign within a skill.
    """
    if normalization == "none":
        return jnp.ones(()), jnp.ones(())
    if normalization == "released":
        calls = scale.calls.astype(scale.expected_calls.dtype)
        progress = calls / jnp.maximum(scale.expected_calls, 1)
        temperature = jnp.where(
            scale.expected_calls == 0, 1, jnp.tanh(4 * (2 * progress - 1))
        )
        return scale.diversity_factor, temperature * scale.consistency_factor
    if normalization == "batch_mean":
        return _inverse(diversity), _inverse(consistency)
    return (
        _inverse_of_previous(scale.previous_diversity, diversity),
        _inverse_of_previous(scale.previous_consistency, consistency),
    )


def update_scale(
    scale: Scale,
    *,
    diversity: Float[Array, ""],
    consistency: Float[Array, ""],
    has_past: Bool[Array, ""],
    has_recent: Bool[Array, ""],
    diversity_term: Float[Array, ""],
    consistency_term: Float[Array, ""],
) -> Scale:
    """The scale after one update.

    **Arguments:**

    - `scale`: before the update.
    - `diversity`, `consistency`: mean distances of the batch.
    - `has_past`, `has_recent`: whether any distance was measured.
    - `diversity_term`, `consistency_term`: mean terms of the reward.
    """
    is_logged = (scale.all_calls + 1) % _LOG_PERIOD == 0
    return Scale(
        previous_diversity=scale.previous_diversity,
        previous_consistency=scale.previous_consistency,
        diversity=scale.diversity.add(diversity, has_past),
        consistency=scale.consistency.add(consistency, has_recent),
        calls=scale.calls + 1,
        expected_calls=scale.expected_calls,
        all_calls=scale.all_calls + 1,
        logged_diversity=scale.logged_diversity.add(diversity_term, is_logged),
        logged_consistency=scale.logged_consistency.add(consistency_term, is_logged),
        diversity_factor=scale.diversity_factor,
        consistency_factor=scale.consistency_factor,
    )


def _empty_mean() -> RunningMean:
    return RunningMean(mean=jnp.zeros(()), count=jnp.zeros((), int))


def _or_one(mean: RunningMean) -> RunningMean:
    """Counts a value of 1 if empty; it stays counted, as in the released code."""
    is_empty = mean.count == 0
    return RunningMean(
        mean=jnp.where(is_empty, 1, mean.mean),
        count=jnp.where(is_empty, 1, mean.count),
    )


def _inverse(value: Float[Array, ""]) -> Float[Array, ""]:
    """`1 / value`, with `abs(value)` at least the machine epsilon."""
    least = jnp.finfo(value.dtype).eps
    size = jnp.maximum(jnp.abs(value), least)
    return jnp.where(value < 0, -1, 1) / size


def _inverse_of_previous(
    previous: Float[Array, ""], batch: Float[Array, ""]
) -> Float[Array, ""]:
    mean = jnp.maximum(previous, _LEAST_FRACTION * batch)
    return _inverse(jnp.where(previous > 0, mean, batch))
