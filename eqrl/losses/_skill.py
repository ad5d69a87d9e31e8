import math
from collections.abc import Callable
from typing import Literal

import jax
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._pytree.fields import check_choice
from .._types.custom_types import FloatLike
from ..nn import SkillDiscriminator
from ._critic import check_same_rows, check_same_shape


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

    From [Eysenbach et al., 2019](https://arxiv.org/abs/1802.06070).

    **Arguments:**

    - `discriminator`: from one descriptor to a distribution over skills.
    - `descriptor`: descriptors of the states reached.
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

    From [Eysenbach et al., 2019](https://arxiv.org/abs/1802.06070).

    **Arguments:**

    - `discriminator`: from one descriptor to a distribution over skills.
    - `descriptor`: descriptors of the states reached.
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


def metra_loss(
    phi: Callable[[Float[Array, " obs"]], Float[Array, " skill"]],
    observation: Float[Array, "batch obs"],
    next_observation: Float[Array, "batch obs"],
    weight: Float[Array, "batch skill"],
    multiplier: FloatLike,
    slack: FloatLike,
    *,
    constraint: Literal["sum", "mean"] = "sum",
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Loss of METRA's representation, with steps constrained to at most length 1.

    From [Park et al., 2024](https://arxiv.org/abs/2310.08887).

    The reward is `dphi . weight` with `dphi = phi(next_observation) -
    phi(observation)`, and each row's margin within the constraint is `margin =
    min(1 - |dphi|^2, slack)`, so that on rows with a margin of `slack` the constraint
    has no gradient. The gradient flows through both ends of a step.

    **Arguments:**

    - `phi`: from one observation to a vector as long as a skill.
    - `observation`, `next_observation`: before and after each step.
    - `weight`: the skill of each step; for N one-hot skills 1 at the chosen one and
        -1 / (N - 1) elsewhere.
    - `multiplier`: the Lagrange multiplier of the constraint, at least 0, through which
        no gradient flows.
    - `slack`: the greatest margin that counts, such as 1e-3.
    - `constraint`: whether the squared length is the sum over the dimensions, as in the
        paper, or the mean, as in its released code.

    **Returns:**

    The mean of `-(reward + multiplier * margin)`, and the mean of `margin`; its product
    with the logarithm of the multiplier is the multiplier's loss.
    """
    check_same_rows(
        observation=observation, next_observation=next_observation, weight=weight
    )
    check_choice("constraint", constraint, ("sum", "mean"))
    difference = jax.vmap(phi)(next_observation) - jax.vmap(phi)(observation)
    check_same_shape(difference=difference, weight=weight)
    reward = jnp.sum(difference * weight, axis=-1)
    reduce = jnp.sum if constraint == "sum" else jnp.mean
    margin = jnp.minimum(1 - reduce(difference**2, axis=-1), slack)
    loss = -jnp.mean(reward + lax.stop_gradient(multiplier) * margin)
    return loss, lax.stop_gradient(jnp.mean(margin))


def contrastive_loss(
    query: Float[Array, "batch feature"],
    key: Float[Array, "batch feature"],
    temperature: FloatLike,
) -> Float[Array, " batch"]:
    """InfoNCE loss for telling the key of each query from those of the other rows.

    From [van den Oord et al., 2018](https://arxiv.org/abs/1807.03748).

    Both are scaled to length 1, so that a similarity is a cosine.

    **Arguments:**

    - `query`, `key`: one of each in every row.
    - `temperature`: similarities are divided by it; above 0.

    **Returns:**

    For row i `log sum_j exp(s_ij) - s_ii` of the similarities `s`, in nats. It is
    `log(batch)` if all similarities are equal.
    """
    check_same_shape(query=query, key=key)
    # A row of zeros has no direction; its length counts as 1e-6.
    unit = lambda x: (
        x * lax.rsqrt(jnp.maximum(jnp.sum(x**2, axis=-1, keepdims=True), 1e-12))
    )
    # Rows are queries, columns keys, and the diagonal holds the matching pairs.
    similarity = unit(query) @ unit(key).T / temperature
    return jax.nn.logsumexp(similarity, axis=-1) - jnp.diagonal(similarity)


def mixture_log_prob(
    logits: Float[Array, "batch components"],
    means: Float[Array, "batch components size"],
    target: Float[Array, "batch size"],
) -> Float[Array, " batch"]:
    """Log-density of each target under a mixture of normals of unit variance.

    From [Sharma et al., 2020](https://arxiv.org/abs/1907.01657).

    **Arguments:**

    - `logits`: unnormalized log-probabilities of the components.
    - `means`: means of the components.
    - `target`: one vector in each row.

    **Returns:**

    The log-density of each row, in nats.
    """
    if means.shape != (*logits.shape, target.shape[-1]) or logits.ndim != 2:
        raise ValueError(
            f"`logits` has the shape {logits.shape}, `means` {means.shape} and "
            f"`target` {target.shape}; they must be (batch, components), (batch, "
            "components, size) and (batch, size)."
        )
    check_same_rows(logits=logits, target=target)
    squared = jnp.sum((target[:, None, :] - means) ** 2, axis=-1)
    constant = 0.5 * target.shape[-1] * math.log(2 * math.pi)
    log_weight = jax.nn.log_softmax(logits, axis=-1)
    return jax.nn.logsumexp(log_weight - 0.5 * squared, axis=-1) - constant


def smerl_mask(
    episode_return: Float[Array, " batch"], target: FloatLike, margin: FloatLike
) -> Bool[Array, " batch"]:
    """Mask of the transitions that SMERL rewards for diversity.

    From [Kumar et al., 2020](https://arxiv.org/abs/2010.14484).

    **Arguments:**

    - `episode_return`: the undiscounted return of the whole episode that each
        transition is from; nan while it runs.
    - `target`: the return of the best policy.
    - `margin`: how far below the target a return may be.

    **Returns:**

    Whether the return is at least `target - margin`; false for nan.
    """
    return episode_return >= target - margin
