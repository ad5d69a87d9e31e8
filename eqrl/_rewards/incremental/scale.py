"""How the distances to past and to recent features are made commensurable."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from ..._types.custom_types import FloatLike
from .mode import Normalization


# Of the mean of a batch; what a distance is divided by is no less, so that a skill
# that was all but perfectly consistent does not make all of the next one's reward.
_LEAST_SHARE = 0.01
_LOG_PERIOD = 10_000


class Tally(eqx.Module):
    """A mean, 0 where nothing was counted, and of how many."""

    mean: Float[Array, ""]
    count: Int[Array, ""]

    def add(self, value: Float[Array, ""], counts: Bool[Array, ""]) -> "Tally":
        count = self.count + counts.astype(int)
        # A sum of millions of values would lose each further one to rounding.
        change = (value - self.mean) / jnp.maximum(count, 1).astype(value.dtype)
        return Tally(mean=self.mean + jnp.where(counts, change, 0), count=count)


class Scale(eqx.Module):
    """What is known of the sizes of both distances."""

    previous_diversity: Float[Array, ""]
    previous_consistency: Float[Array, ""]
    diversity: Tally
    consistency: Tally
    calls: Int[Array, ""]
    expected_calls: Float[Array, ""]
    all_calls: Int[Array, ""]
    logged_diversity: Tally
    logged_consistency: Tally
    diversity_factor: Float[Array, ""]
    consistency_factor: Float[Array, ""]


Scale.__init__.__doc__ = """**Arguments:**

- `previous_diversity`, `previous_consistency`: means over the previous skill; 0 where
    there was nothing to average.
- `diversity`, `consistency`: the same of this skill so far.
- `calls`: updates in this skill so far.
- `expected_calls`: updates it will have; 0 for the first skill.
- `all_calls`: updates in all skills.
- `logged_diversity`, `logged_consistency`: of weighted, signed terms, of some updates
    of all skills.
- `diversity_factor`, `consistency_factor`: what `"released"` multiplies by.
"""


def first_scale() -> Scale:
    """Of a first skill."""
    return Scale(
        previous_diversity=jnp.zeros(()),
        previous_consistency=jnp.zeros(()),
        diversity=_no_tally(),
        consistency=_no_tally(),
        calls=jnp.zeros((), int),
        expected_calls=jnp.zeros(()),
        all_calls=jnp.zeros((), int),
        logged_diversity=_no_tally(),
        logged_consistency=_no_tally(),
        diversity_factor=jnp.ones(()),
        consistency_factor=jnp.ones(()),
    )


def next_scale(
    scale: Scale, *, alpha: FloatLike, beta: FloatLike, expected_calls: FloatLike
) -> Scale:
    """Of the skill after this one."""
    logged_diversity = _or_one(scale.logged_diversity)
    logged_consistency = _or_one(scale.logged_consistency)
    return Scale(
        previous_diversity=scale.diversity.mean,
        previous_consistency=scale.consistency.mean,
        diversity=_no_tally(),
        consistency=_no_tally(),
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
    """What the distances to past and to recent features are multiplied by.

    They are given as their means over the batch.

    `"released"` gives the second a sign that changes within a skill.
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


def tallied(
    scale: Scale,
    *,
    diversity: Float[Array, ""],
    consistency: Float[Array, ""],
    has_past: Bool[Array, ""],
    has_recent: Bool[Array, ""],
    diversity_term: Float[Array, ""],
    consistency_term: Float[Array, ""],
) -> Scale:
    """After one update, of which these are means over the batch.

    **Arguments:**

    - `diversity`, `consistency`: distances.
    - `has_past`, `has_recent`: whether there was a distance to take.
    - `diversity_term`, `consistency_term`: what was added to the reward.
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


def _no_tally() -> Tally:
    return Tally(mean=jnp.zeros(()), count=jnp.zeros((), int))


def _or_one(tally: Tally) -> Tally:
    """With a 1 where there is nothing, which stays in it, as in the released code."""
    is_empty = tally.count == 0
    return Tally(
        mean=jnp.where(is_empty, 1, tally.mean),
        count=jnp.where(is_empty, 1, tally.count),
    )


def _inverse(value: Float[Array, ""]) -> Float[Array, ""]:
    least = jnp.finfo(value.dtype).eps
    size = jnp.maximum(jnp.abs(value), least)
    return jnp.where(value < 0, -1, 1) / size


def _inverse_of_previous(
    previous: Float[Array, ""], batch: Float[Array, ""]
) -> Float[Array, ""]:
    mean = jnp.maximum(previous, _LEAST_SHARE * batch)
    return _inverse(jnp.where(previous > 0, mean, batch))
