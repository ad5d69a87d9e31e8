import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ...losses import knn_distance


class FeatureSet(eqx.Module):
    """Points in several buckets, of each of which the last so many are held.

    What the arrays hold beyond `counts` means nothing.
    """

    features: Float[Array, "buckets rows descriptor"]
    counts: Int[Array, " buckets"]


FeatureSet.__init__.__doc__ = """**Arguments:**

- `features`: a ring in each bucket.
- `counts`: how many were ever put into each bucket; the next goes to this row, modulo
    the number of rows.
"""


def empty_set(num_buckets: int, rows: int, size: int) -> FeatureSet:
    """A set without points, with room for `rows` of them in each bucket."""
    return FeatureSet(
        features=jnp.zeros((num_buckets, rows, size)),
        counts=jnp.zeros(num_buckets, int),
    )


def emptied(points: FeatureSet) -> FeatureSet:
    """A set of the same size without points."""
    return FeatureSet(
        features=jnp.zeros_like(points.features),
        counts=jnp.zeros_like(points.counts),
    )


def enlarged(points: FeatureSet, rows: int) -> FeatureSet:
    """The same points, in a set with room for more; none may have been overwritten."""
    missing = rows - points.features.shape[1]
    if missing == 0:
        return points
    padding = ((0, 0), (0, missing), (0, 0))
    return FeatureSet(features=jnp.pad(points.features, padding), counts=points.counts)


def num_held(points: FeatureSet) -> Int[Array, " buckets"]:
    return jnp.minimum(points.counts, points.features.shape[1])


def with_points(
    points: FeatureSet,
    features: Float[Array, "buckets new descriptor"],
    keep: Bool[Array, "buckets new"],
) -> FeatureSet:
    """Puts in those features for which `keep` is true, over the oldest."""
    rows = points.features.shape[1]
    # One that later ones of this call would overwrite is not written at all: the order
    # of writes to one place is not defined.
    counts = points.counts + jnp.sum(keep, axis=1)
    position = points.counts[:, None] + jnp.cumsum(keep, axis=1) - 1
    written = keep & (position >= counts[:, None] - rows)
    nowhere = rows
    row = jnp.where(written, position % rows, nowhere)

    def write(
        old: Float[Array, "rows descriptor"],
        row: Int[Array, " new"],
        new: Float[Array, "new descriptor"],
    ) -> Float[Array, "rows descriptor"]:
        return old.at[row].set(new, mode="drop")

    return FeatureSet(
        features=jax.vmap(write)(points.features, row, features), counts=counts
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
    """From features to the k-th nearest of points drawn from their buckets.

    **Returns:**

    The distances, and whether there are k points at all, without which they mean
    nothing.
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
    return distance, num_held(points)[bucket] >= k


def draw_points(
    points: FeatureSet, num_samples: int, *, key: PRNGKeyArray
) -> tuple[Float[Array, "buckets samples descriptor"], Bool[Array, "buckets samples"]]:
    """Draws points of each bucket, without replacement.

    **Returns:**

    The points, and a mask that is false where a bucket holds fewer.
    """
    num_buckets, rows, _ = points.features.shape
    held = num_held(points)
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
    """Draws distinct numbers below `count`, all sets of them equally likely.

    Where `count` is less than `num_samples`, the first `count` are all there are.

    **Arguments:**

    - `count`: at most `most`.
    - `num_samples`: less than `most`.
    - `key`: for the draw.
    """
    # Numbers are drawn with replacement until enough of them are distinct. No number is
    # treated otherwise than another, so neither is any set of them. It costs far less
    # than to sort a key for each of `most` numbers.
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

    all_there_are = jnp.arange(num_samples)
    is_all = count <= num_samples
    chosen, _, _ = lax.while_loop(
        is_missing,
        draw,
        (all_there_are, jnp.where(is_all, num_samples, 0), jnp.zeros((), int)),
    )
    return chosen
