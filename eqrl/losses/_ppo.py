import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._types.custom_types import FloatLike, Metrics
from ._critic import check_flags, check_one_axis, check_same_shape, in_one_type


def lambda_return(
    reward: Float[Array, " time"],
    terminated: Bool[Array, " time"],
    truncated: Bool[Array, " time"],
    next_value: Float[Array, " time"],
    discount: FloatLike,
    decay: FloatLike,
) -> Float[Array, " time"]:
    """Lambda-returns of consecutive steps, through which no gradient flows.

    The return of a step is its reward plus the discounted future: a mixture of the next
    state's value and the next return, which has the weight `decay` (TD(lambda), [Sutton
    1988](https://doi.org/10.1007/BF00115009)). Minus the value of the state it is the
    generalized advantage estimate of [Schulman et al.
    2016](https://arxiv.org/abs/1506.02438).

    Nothing follows a terminated step. A truncated step and the last one are
    bootstrapped from the value of the state that they reached: the steps after them
    belong to another episode, or are not known.

    **Arguments:**

    - `reward`, `terminated`, `truncated`: one per step of one environment, in order.
    - `next_value`: value of the state that each step reached, not of the first one
        after a reset.
    - `discount`: in [0, 1].
    - `decay`: weight of what follows, in [0, 1], also called lambda. With 0 only one
        reward counts, with 1 all of them.

    **Returns:**

    One return for each step.
    """

    check_one_axis("reward", reward)
    check_same_shape(
        reward=reward, terminated=terminated, truncated=truncated, next_value=next_value
    )
    check_flags(terminated=terminated, truncated=truncated)

    def one_step_back(
        following: Float[Array, ""], step: tuple[Array, Array, Array, Array]
    ) -> tuple[Float[Array, ""], Float[Array, ""]]:
        reward, terminated, truncated, next_value = step
        # Selected, not multiplied by 0, since 0 * inf is nan.
        mixed = next_value + jnp.where(truncated, 0, decay * (following - next_value))
        total = reward + jnp.where(terminated, 0, discount * mixed)
        return total, total

    reward, next_value, discount, decay = in_one_type(
        reward, next_value, discount, decay
    )
    # After the last step both parts of the mixture are the same value.
    rows = (reward, terminated, truncated, next_value)
    # Unrolled, since a step takes less time than the overhead of one iteration.
    _, returns = lax.scan(one_step_back, next_value[-1], rows, reverse=True, unroll=16)
    return lax.stop_gradient(returns)


def ppo_actor_loss(
    log_prob: Float[Array, " batch"],
    old_log_prob: Float[Array, " batch"],
    advantage: Float[Array, " batch"],
    clip: FloatLike,
) -> tuple[Float[Array, ""], Metrics]:
    """Actor loss of PPO, without the bonus for entropy.

    From [Schulman et al., 2017](https://arxiv.org/abs/1707.06347).

    **Arguments:**

    - `log_prob`: log-probabilities of the actions taken, under the policy that learns.
    - `old_log_prob`: the same under the policy that took them.
    - `advantage`: advantages of these actions.
    - `clip`: how far the ratio of the two probabilities may move from 1 before an
        improvement no longer counts.

    **Returns:**

    The mean of `-min(ratio * advantage, clipped_ratio * advantage)`; as metrics, `kl`,
    a nonnegative estimate of the Kullback-Leibler divergence of the policy that acted
    from the one that learns, and `clip_fraction`, the share of clipped ratios.
    """
    check_same_shape(log_prob=log_prob, old_log_prob=old_log_prob, advantage=advantage)
    log_ratio = log_prob - old_log_prob
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip, 1 + clip)
    # The lesser of the two: a move beyond the clip gains nothing if it helps, but
    # counts in full if it harms.
    loss = -jnp.mean(jnp.minimum(ratio * advantage, clipped * advantage))
    outside = jnp.abs(ratio - 1) > clip
    metrics = {
        # Unbiased like -log_ratio, but never negative and of less variance.
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

    The squared error is that of [Schulman et al.,
    2017](https://arxiv.org/abs/1707.06347), and clipping that of OpenAI's Baselines.

    **Arguments:**

    - `value`: values of the states, from the critic that learns.
    - `old_value`: the same before the update.
    - `target`: the returns.
    - `clip`: how far a value may move from the old one before that no longer lowers the
        loss; `None` for no limit.

    **Returns:**

    The mean of `(value - target)**2 / 2`; with `clip`, that of the larger of this and
    the same for the clipped value.
    """
    check_same_shape(value=value, old_value=old_value, target=target)
    squares = (value - target) ** 2
    if clip is not None:
        near = old_value + jnp.clip(value - old_value, -clip, clip)
        # The greater of the two errors, so that clipping never hides one.
        squares = jnp.maximum(squares, (near - target) ** 2)
    return 0.5 * jnp.mean(squares)
