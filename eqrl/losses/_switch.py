import jax
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._types.custom_types import FloatLike
from ._arguments import check_flags, check_same_shape, in_one_type


AdvantageClip = tuple[FloatLike, FloatLike]
"""Lower and upper bound of the advantage of switching, in units of the value."""


def switch_probabilities(
    keep_value: Float[Array, ""],
    new_value: Float[Array, ""],
    temperature: FloatLike,
    *,
    advantage_clip: AdvantageClip | None = None,
) -> Float[Array, "2"]:
    """Probabilities of keeping and of switching; no gradient flows through them.

    **Arguments:**

    - `keep_value`: value of the current trajectory.
    - `new_value`: value of the new trajectory.
    - `temperature`: at least 0; the lower, the more the better of the two is preferred.
    - `advantage_clip`: bounds of `new_value - keep_value`, applied before the division
        by the temperature; `None` for no bounds.

    **Returns:**

    Two probabilities, of keeping and of switching, proportional to
    `exp(value / temperature)`. A temperature below 1e-10 counts as 1e-10.
    """
    check_same_shape(keep_value=keep_value, new_value=new_value)
    values = jnp.stack([keep_value, new_value])
    if advantage_clip is not None:
        advantage = jnp.clip(new_value - keep_value, *advantage_clip)
        values = jnp.stack([jnp.zeros_like(advantage), advantage])
    # The maximum is subtracted before the division, since a large value divided by a
    # small temperature overflows.
    logits = (values - jnp.max(values, keepdims=True)) / jnp.maximum(temperature, 1e-10)
    return lax.stop_gradient(jax.nn.softmax(logits))


def compare_through_target(
    reward: Float[Array, "time *shape"],
    discount: Float[Array, "time ..."],
    stop: Bool[Array, "time ..."],
    next_value: Float[Array, "time *shape"],
) -> Float[Array, "time *shape"]:
    """Multi-step target of TAAC's compare-through operator, for one window.

    A target runs through the stored rewards for as long as the stored and the current
    policy behave alike, which `stop` says, and then bootstraps. No gradient flows
    through it. The last row always bootstraps. `discount` and `stop` may lack trailing
    axes of `reward`, such as that of a vector reward.

    **Arguments:**

    - `reward`: of each transition in a window.
    - `discount`: of the state reached, in [0, 1]; 0 if the transition terminates.
    - `stop`: whether to bootstrap at the state reached.
    - `next_value`: estimate at the state reached. It is ignored if `discount` is zero,
        even if it is not finite.

    **Returns:**

    For each transition, the discounted sum of the rewards up to and including the first
    row with `stop`, plus the discounted value there.
    """
    check_same_shape(reward=reward, next_value=next_value)
    check_flags(stop=stop)
    discount, stop = (
        x.reshape(x.shape + (1,) * (reward.ndim - x.ndim)) for x in (discount, stop)
    )
    reward, discount, next_value = in_one_type(reward, discount, next_value)
    rows = (reward, discount, stop, next_value)
    _, target = lax.scan(_one_step_back, next_value[-1], rows, reverse=True)
    return lax.stop_gradient(target)


def _one_step_back(
    following: Float[Array, "*shape"],
    row: tuple[
        Float[Array, "*shape"],
        Float[Array, "..."],
        Bool[Array, "..."],
        Float[Array, "*shape"],
    ],
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """The target of one row, given that of the following row."""
    reward, discount, stop, next_value = row
    following = jnp.where(stop, next_value, following)
    # 0 * inf is NaN, so a product with discount 0 must be selected away.
    target = reward + jnp.where(discount == 0, 0, discount * following)
    return target, target
