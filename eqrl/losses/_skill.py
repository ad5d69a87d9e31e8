import jax
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Float

from ..nn import SkillDiscriminator
from ._arguments import check_same_rows, check_same_shape


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
    """How well states identify their skills. No gradient flows through it.

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
