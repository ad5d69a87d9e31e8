"""Sets of feature vectors, and the distances to their points."""

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..losses import knn_distance


class FeatureSet(eqx.Module):
    """A ring buffer of feature vectors for each bucket.

    Rows that were never written hold no points.
    """

    features: Float[Array, "buckets rows descriptor"]
    # Points ever added to each bucket. Modulo the number of rows it is the row of the
    # next point. Above 2^30 it is lowered to a number with the same remainder.
    counts: Int[Array, " buckets"]


class Distances(eqx.Module):
    """Distances of a batch to a set of points; the default if it has too few points."""

    known: Bool[Array, " batch"]
    values: Float[Array, " batch"]
    default: float = eqx.field(static=True)

    def mean(self) -> Float[Array, ""]:
        """The mean of the known distances; without any, the default."""
        total = jnp.sum(jnp.where(self.known, self.values, 0))
        count = jnp.sum(self.known.astype(self.values.dtype))
        return jnp.where(count > 0, total / jnp.maximum(count, 1), self.default)


def empty_set(num_buckets: int, rows: int, size: int) -> FeatureSet:
    """An empty set with room for `rows` points of this size in each bucket."""
    return FeatureSet(
        features=jnp.zeros((num_buckets, rows, size)),
        counts=jnp.zeros(num_buckets, int),
    )


def clear(points: FeatureSet) -> FeatureSet:
    """An empty set of the same capacity."""
    return jax.tree.map(jnp.zeros_like, points)


def enlarge(points: FeatureSet, rows: int) -> FeatureSet:
    """The same points in a set of larger capacity.

    The rings must not have wrapped, or the next point would be written to a wrong row.
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
    # Where a scatter writes a row twice, either value may win. So points that others of
    # this call would overwrite are not written.
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

    # Before a count overflows it is lowered to one with the same next row that still
    # marks the ring as full.
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
    default: float,
    key: PRNGKeyArray,
) -> Distances:
    """Distances to the k-th nearest of a sample of points from the same bucket.

    A distance is known if the bucket has at least k points.
    """
    num_buckets, rows, _ = points.features.shape
    if rows < k:
        return Distances(
            known=jnp.zeros_like(bucket, bool),
            values=jnp.full_like(features[:, 0], default),
            default=default,
        )
    drawn, mask = draw_points(points, num_samples, key=key)
    # All transitions share the points of a single bucket. With several, each transition
    # gets its own copy of the points.
    if num_buckets == 1:
        distance = knn_distance(features, drawn[0], k=k, mask=mask[0])
    else:
        distance = jax.vmap(
            lambda feature, bucket: knn_distance(
                feature[None], drawn[bucket], k=k, mask=mask[bucket]
            )[0]
        )(features, bucket)
    known = num_points(points)[bucket] >= k
    return Distances(
        known=known, values=jnp.where(known, distance, default), default=default
    )


def draw_points(
    points: FeatureSet, num_samples: int, *, key: PRNGKeyArray
) -> tuple[Float[Array, "buckets samples descriptor"], Bool[Array, "buckets samples"]]:
    """Draws points of each bucket without replacement.

    The mask is false beyond the number of points of a bucket.
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

    If `count <= num_samples`, the first `count` elements are all of them. `most`, a
    static bound of `count`, is more than `num_samples`.
    """
    # Rejection sampling: draw with replacement until enough integers are distinct. It
    # treats all integers alike, so all sets are equally likely, and it is much cheaper
    # than a random permutation, which sorts `most` keys.
    #
    # Of the candidates, the first `num_samples` places hold the integers chosen so far
    # and the others those of this iteration. A candidate is distinct if no earlier
    # place holds the same integer: `first` has the earliest place of each integer.
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
