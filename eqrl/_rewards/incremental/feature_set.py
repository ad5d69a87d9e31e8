"""Sets of feature vectors, and the distances to their points."""

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ...losses import knn_distance


class FeatureSet(eqx.Module):
    """A ring buffer of feature vectors for each bucket.

    Rows that were never written hold no points.
    """

    features: Float[Array, "buckets rows descriptor"]
    counts: Int[Array, " buckets"]


FeatureSet.__init__.__doc__ = """**Arguments:**

- `features`: one ring per bucket.
- `counts`: the number of points ever added to each bucket; above 2^30 a smaller one,
    the same modulo the number of rows. The next one is written to this row, modulo the
    number of rows.
"""


class Distances(eqx.Module):
    """Distances of a batch to the past and to the recent features.

    `has_past` and `has_recent` say where there were enough points to measure one.
    """

    diversity: Float[Array, " batch"]
    has_past: Bool[Array, " batch"]
    consistency: Float[Array, " batch"]
    has_recent: Bool[Array, " batch"]

    def means(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Mean diversity and mean consistency of the measured transitions.

        Without any they are 1 and 0.
        """
        return (
            _masked_mean(self.diversity, self.has_past, 1.0),
            _masked_mean(self.consistency, self.has_recent, 0.0),
        )


def _masked_mean(
    values: Float[Array, " batch"], mask: Bool[Array, " batch"], default: float
) -> Float[Array, ""]:
    total = jnp.sum(jnp.where(mask, values, 0))
    count = jnp.sum(mask.astype(values.dtype))
    return jnp.where(count > 0, total / jnp.maximum(count, 1), default)


def empty_set(num_buckets: int, rows: int, size: int) -> FeatureSet:
    """An empty set with room for `rows` points of this size in each bucket."""
    return FeatureSet(
        features=jnp.zeros((num_buckets, rows, size)),
        counts=jnp.zeros(num_buckets, int),
    )


def clear(points: FeatureSet) -> FeatureSet:
    """An empty set of the same capacity."""
    return FeatureSet(
        features=jnp.zeros_like(points.features),
        counts=jnp.zeros_like(points.counts),
    )


def enlarge(points: FeatureSet, rows: int) -> FeatureSet:
    """The same points in a set of larger capacity.

    The rings must not have wrapped: their next row would be a wrong one.
    """
    missing = rows - points.features.shape[1]
    if missing == 0:
        return points
    padding = ((0, 0), (0, missing), (0, 0))
    return FeatureSet(features=jnp.pad(points.features, padding), counts=points.counts)


def num_points(points: FeatureSet) -> Int[Array, " buckets"]:
    """The number of points that each bucket holds."""
    return jnp.minimum(points.counts, points.features.shape[1])


def add_points(
    points: FeatureSet,
    features: Float[Array, "buckets new descriptor"],
    keep: Bool[Array, "buckets new"],
) -> FeatureSet:
    """Adds the features for which `keep` is true, overwriting the oldest points."""
    rows = points.features.shape[1]
    # A scatter to the same row twice has no defined order, so points that later ones of
    # this call would overwrite are not written at all.
    counts = points.counts + jnp.sum(keep, axis=1)
    position = points.counts[:, None] + jnp.cumsum(keep, axis=1) - 1
    written = keep & (position >= counts[:, None] - rows)
    out_of_bounds = rows
    row = jnp.where(written, position % rows, out_of_bounds)

    def write(
        old: Float[Array, "rows descriptor"],
        row: Int[Array, " new"],
        new: Float[Array, "new descriptor"],
    ) -> Float[Array, "rows descriptor"]:
        return old.at[row].set(new, mode="drop")

    # Counts of full rings stay within their type.
    size = max(rows, 1)
    full = size * max(1, 2**29 // size)
    return FeatureSet(
        features=jax.vmap(write)(points.features, row, features),
        counts=jnp.where(counts < 2**30, counts, full + counts % size),
    )


def distance_to(
    points: FeatureSet,
    features: Float[Array, "batch descriptor"],
    bucket: Int[Array, " batch"],
    *,
    k: int,
    num_samples: int,
    key: PRNGKeyArray,
) -> tuple[Float[Array, " batch"], Bool[Array, " batch"]]:
    """Distances to the k-th nearest of a sample of points from the same bucket.

    **Returns:**

    The distances, and a mask that is false where the bucket has fewer than k points;
    the distance is meaningless there.
    """
    num_buckets, rows, _ = points.features.shape
    if rows < k:
        return jnp.zeros_like(features[:, 0]), jnp.zeros_like(bucket, bool)
    drawn, mask = draw_points(points, num_samples, key=key)
    if num_buckets == 1:
        distance = knn_distance(features, drawn[0], k=k, mask=mask[0])
    else:
        distance = jax.vmap(
            lambda feature, bucket: knn_distance(
                feature[None], drawn[bucket], k=k, mask=mask[bucket]
            )[0]
        )(features, bucket)
    return distance, num_points(points)[bucket] >= k


def draw_points(
    points: FeatureSet, num_samples: int, *, key: PRNGKeyArray
) -> tuple[Float[Array, "buckets samples descriptor"], Bool[Array, "buckets samples"]]:
    """Draws points of each bucket without replacement.

    **Returns:**

    The points, and a mask that is false beyond the number of points of a bucket.
    """
    num_buckets, rows, _ = points.features.shape
    held = num_points(points)
    if rows <= num_samples:
        return points.features, jnp.arange(rows)[None] < held[:, None]

    def draw(
        features: Float[Array, "rows descriptor"],
        held: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, "samples descriptor"], Bool[Array, " samples"]]:
        row = draw_distinct(held, rows, num_samples, key=key)
        return features[row], jnp.arange(num_samples) < held

    return jax.vmap(draw)(points.features, held, jr.split(key, num_buckets))


def draw_distinct(
    count: Int[Array, ""], most: int, num_samples: int, *, key: PRNGKeyArray
) -> Int[Array, " samples"]:
    """Draws distinct integers below `count`; all sets of them are equally likely.

    If `count <= num_samples`, the first `count` elements are all of them.

    **Arguments:**

    - `count`: at most `most`.
    - `most`: static upper bound of `count`.
    - `num_samples`: less than `most`.
    - `key`: for the draw.
    """
    # Rejection sampling: draw with replacement until enough integers are distinct. It
    # treats all integers alike, so all sets are equally likely, and it is much cheaper
    # than a random permutation, which sorts `most` keys.
    order = jnp.arange(2 * num_samples)

    def is_missing(carry: tuple[Array, Array, Array]) -> Bool[Array, ""]:
        _, num_chosen, _ = carry
        return num_chosen < num_samples

    def draw(carry: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        chosen, num_chosen, turn = carry
        drawn = jr.randint(jr.fold_in(key, turn), (num_samples,), 0, count)
        candidates = jnp.concatenate([chosen, drawn])
        exists = (order < num_chosen) | (order >= num_samples)
        first = jnp.full(most, 2 * num_samples)
        first = first.at[jnp.where(exists, candidates, most)].min(order, mode="drop")
        distinct = exists & (first[candidates] == order)
        place = jnp.where(distinct, jnp.cumsum(distinct) - 1, num_samples)
        chosen = chosen.at[place].set(candidates, mode="drop")
        return chosen, jnp.minimum(jnp.sum(distinct), num_samples), turn + 1

    # With too few integers to choose from, the loop must not run: it would never end.
    num_chosen = jnp.where(count <= num_samples, num_samples, 0)
    chosen, _, _ = lax.while_loop(
        is_missing, draw, (jnp.arange(num_samples), num_chosen, jnp.zeros((), int))
    )
    return chosen
