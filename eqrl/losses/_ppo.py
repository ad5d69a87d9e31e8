import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types.custom_types import FloatLike, Metrics
from ._arguments import check_same_shape


def ppo_actor_loss(
    log_prob: Float[Array, " batch"],
    old_log_prob: Float[Array, " batch"],
    advantage: Float[Array, " batch"],
    clip: FloatLike,
) -> tuple[Float[Array, ""], Metrics]:
    """Actor loss of PPO, without the bonus for entropy.

    **Arguments:**

    - `log_prob`: of the actions taken, under the policy that learns.
    - `old_log_prob`: the same under the policy that took them.
    - `advantage`: of these actions.
    - `clip`: how far the ratio of the two probabilities may go from 1 before an
        improvement no longer counts.

    **Returns:**

    The mean of `-min(ratio * advantage, clipped_ratio * advantage)`; and, as metrics,
    `kl`, an estimate of the Kullback-Leibler divergence of the policy that learns from
    the one that acted, never negative, and `clip_fraction`, how many ratios were
    clipped.
    """
    check_same_shape(log_prob=log_prob, old_log_prob=old_log_prob, advantage=advantage)
    log_ratio = log_prob - old_log_prob
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    loss = -jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))
    outside = jnp.abs(ratio - 1) > clip
    metrics = {
        "kl": jnp.mean(ratio - 1 - log_ratio),
        "clip_fraction": jnp.mean(outside.astype(ratio.dtype)),
    }
    return loss, metrics


def ppo_critic_loss(
    value: Float[Array, " batch"],
    old_value: Float[Array, " batch"],
    target: Float[Array, " batch"],
    clip: FloatLike | None,
) -> Float[Array, ""]:
    """Critic loss of PPO.

    **Arguments:**

    - `value`: of the states, by the critic that learns.
    - `old_value`: the same before the update.
    - `target`: the returns.
    - `clip`: how far a value may move from the old one before that no longer lowers the
        loss; `None` for no limit.

    **Returns:**

    The mean of `(value - target)**2 / 2`; with `clip` the larger of this and the same
    of the clipped value.
    """
    check_same_shape(value=value, old_value=old_value, target=target)
    squares = (value - target) ** 2
    if clip is not None:
        near = old_value + jnp.clip(value - old_value, -clip, clip)
        squares = jnp.maximum(squares, (near - target) ** 2)
    return 0.5 * jnp.mean(squares)
