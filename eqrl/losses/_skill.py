import jax
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._pytree.fields import check_integer
from ..nn import SkillDiscriminator
from ._critic import check_flags, check_same_rows, check_same_shape


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
    - `mask`: points at which it is false are ignored.

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

    # A scan over the points that keeps the k smallest distances sorted: on a CPU about
    # 70 times faster than `lax.top_k`. Squared differences, unlike
    # |a|^2 - 2ab + |b|^2, do not cancel far from the origin.
    def insert(
        nearest: tuple[Float[Array, " batch"], ...],
        point: tuple[Float[Array, " descriptor"], Bool[Array, ""]],
    ) -> tuple[tuple[Float[Array, " batch"], ...], None]:
        position, is_present = point
        squared = jnp.sum((columns - position[:, None]) ** 2, axis=0)
        squared = jnp.where(is_present, squared, jnp.inf)
        inserted = []
        for smaller in nearest:
            inserted.append(jnp.minimum(smaller, squared))
            squared = jnp.maximum(smaller, squared)
        return tuple(inserted), None

    columns = queries.T
    nearest = (jnp.full(queries.shape[0], jnp.inf, queries.dtype),) * k
    nearest, _ = lax.scan(insert, nearest, (points, mask))
    return lax.stop_gradient(jnp.sqrt(nearest[-1]))


def _log_probs(
    discriminator: SkillDiscriminator,
    descriptor: Float[Array, "batch descriptor"],
    skill: Float[Array, "batch skill"],
) -> Float[Array, " batch"]:
    check_same_rows(descriptor=descriptor, skill=skill)
    return jax.vmap(lambda x, z: discriminator(x).log_prob(z))(descriptor, skill)


def discriminator_loss(
    discriminator: SkillDiscriminator,
    descriptor: Float[Array, "batch descriptor"],
    skill: Float[Array, "batch skill"],
) -> Float[Array, ""]:
    """Cross-entropy of a discriminator, which predicts the skill that led to a state.

    **Arguments:**

    - `discriminator`: from one descriptor to a distribution over skills.
    - `descriptor`: of the states reached.
    - `skill`: the skill that led to each of them.

    **Returns:**

    The mean of `-log q(skill | descriptor)`, in nats.
    """
    return -jnp.mean(_log_probs(discriminator, descriptor, skill))


def skill_log_ratio(
    discriminator: SkillDiscriminator,
    descriptor: Float[Array, "batch descriptor"],
    skill: Float[Array, "batch skill"],
    log_prior: Float[Array, " batch"] | None = None,
) -> Float[Array, " batch"]:
    """Log-ratio of skills given states, through which no gradient flows.

    **Arguments:**

    - `discriminator`: from one descriptor to a distribution over skills.
    - `descriptor`: of the states reached.
    - `skill`: the skill that led to each of them.
    - `log_prior`: `log p(skill)`; `None` leaves it out.

    **Returns:**

    `log q(skill | descriptor) - log p(skill)`, in nats.
    """
    log_ratio = _log_probs(discriminator, descriptor, skill)
    if log_prior is not None:
        check_same_shape(log_ratio=log_ratio, log_prior=log_prior)
        log_ratio = log_ratio - log_prior
    return lax.stop_gradient(log_ratio)
