import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._pytree.fields import check_integer
from .._types.custom_types import FloatLike
from ._critic import check_flags, check_same_rows


def knn_distance(
    queries: Float[Array, "batch descriptor"],
    points: Float[Array, "points descriptor"],
    *,
    k: int,
    mask: Bool[Array, " points"] | None = None,
) -> Float[Array, " batch"]:
    """Euclidean distance from each query to its k-th nearest point.

    No gradient flows through it. A query that is itself among the points is its own
    nearest, at a distance of 0.

    **Arguments:**

    - `queries`, `points`: vectors of one length.
    - `k`: at least 1.
    - `mask`: points where it is false are ignored.

    **Returns:**

    The k-th smallest distance, infinite if there are fewer than `k` points.
    """
    check_integer("k", k, least=1)
    if queries.shape[-1] != points.shape[-1]:
        raise ValueError(
            f"`queries` are vectors of length {queries.shape[-1]}, but `points` of "
            f"length {points.shape[-1]}."
        )
    if mask is None:
        mask = jnp.ones(points.shape[0], bool)
    check_same_rows(points=points, mask=mask)
    check_flags(mask=mask)

    nearest = _nearest_distances(queries, points, mask, k=k)
    return lax.stop_gradient(nearest[-1])


def particle_entropy(
    features: Float[Array, "batch feature"],
    *,
    k: int,
    scale: FloatLike = 1.0,
    clip: FloatLike = 0.0,
) -> Float[Array, " batch"]:
    """Log-distance of each vector to its nearest neighbors in the batch.

    From [Liu and Abbeel, 2021](https://arxiv.org/abs/2103.04551).

    Its sum over the batch grows with an estimate of the entropy of the distribution
    that the vectors come from. No gradient flows through it.

    **Arguments:**

    - `features`: one vector in each row.
    - `k`: the number of neighbors, at least 1 and less than the batch. A row is not its
        own neighbor.
    - `scale`: distances are divided by it; above 0.
    - `clip`: subtracted from each scaled distance; a negative result counts as 0.

    **Returns:**

    `log(1 + mean over the neighbors of max(distance / scale - clip, 0))`.
    """
    check_integer("k", k, least=1)
    if k >= features.shape[0]:
        raise ValueError(
            f"`k={k}` needs at least {k + 1} rows, but there are {features.shape[0]}. "
            "Lower `k`, `num_neighbors` of a reward, or give larger batches, fewer "
            "`reward_minibatches`, or more or longer episodes."
        )
    present = jnp.ones(features.shape[0], bool)
    # The nearest one is the row itself, or an equal row.
    nearest = _nearest_distances(features, features, present, k=k + 1)[1:]
    scaled = jnp.maximum(nearest / scale - clip, 0)
    return lax.stop_gradient(jnp.log1p(jnp.mean(scaled, axis=0)))


def disagreement(
    predictions: Float[Array, "models batch feature"],
) -> Float[Array, " batch"]:
    """Disagreement of several models on each row.

    From [Pathak et al., 2019](https://arxiv.org/abs/1906.04161).

    **Arguments:**

    - `predictions`: predictions of at least two models.

    **Returns:**

    The unbiased variance over the models, averaged over the features.
    """
    if predictions.shape[0] < 2:
        raise ValueError("`predictions` of one model have no variance; give 2 or more.")
    return jnp.mean(jnp.var(predictions, axis=0, ddof=1), axis=-1)


def _nearest_distances(
    queries: Float[Array, "batch descriptor"],
    points: Float[Array, "points descriptor"],
    mask: Bool[Array, " points"],
    *,
    k: int,
) -> Float[Array, "k batch"]:
    """Distances from each query to the k nearest points, in ascending order."""

    # A scan over the points that keeps the k smallest distances sorted: on a CPU about
    # 70 times faster than `lax.top_k`. One array, not k of them, lets XLA write it in
    # one pass. Squared differences, unlike |a|^2 - 2ab + |b|^2, do not cancel far from
    # the origin.
    def insert(
        nearest: Float[Array, "k batch"],
        point: tuple[Float[Array, " descriptor"], Bool[Array, ""]],
    ) -> tuple[Float[Array, "k batch"], None]:
        position, is_present = point
        squared = jnp.sum((columns - position[:, None]) ** 2, axis=0)
        squared = jnp.where(is_present, squared, jnp.inf)
        # Each moves up where the new one is smaller, and the new one takes its place.
        smaller = jnp.concatenate([lowest, nearest[:-1]])
        return jnp.minimum(nearest, jnp.maximum(smaller, squared[None])), None

    columns = queries.T
    lowest = jnp.full((1, queries.shape[0]), -jnp.inf, queries.dtype)
    nearest = jnp.full((k, queries.shape[0]), jnp.inf, queries.dtype)
    nearest, _ = lax.scan(insert, nearest, (points, mask))
    return jnp.sqrt(nearest)
