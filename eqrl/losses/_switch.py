import jax
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._types.custom_types import FloatLike


AdvantageClip = tuple[FloatLike, FloatLike]
"""The least and the greatest advantage of switching, in units of the value."""


def switch_probabilities(
    keep_value: Float[Array, ""],
    new_value: Float[Array, ""],
    temperature: FloatLike,
    *,
    advantage_clip: AdvantageClip | None = None,
) -> Float[Array, "2"]:
    """How likely it is to go on and to switch, through which no gradient flows.

    **Arguments:**

    - `keep_value`: of going on as before.
    - `new_value`: of switching.
    - `temperature`: at least 0; the lower, the more the better of the two is preferred.
    - `advantage_clip`: bounds on `new_value - keep_value`, applied before it is divided
        by the temperature; `None` for none.

    **Returns:**

    Two probabilities, to keep and to switch, proportional to the exponential of value
    over temperature. A temperature below 1e-10 counts as 1e-10.
    """
    values = jnp.stack([keep_value, new_value])
    if advantage_clip is not None:
        advantage = jnp.clip(new_value - keep_value, *advantage_clip)
        values = jnp.stack([jnp.zeros_like(advantage), advantage])
    # Shifted first: the quotient of a large value and a small temperature overflows.
    logits = (values - jnp.max(values, keepdims=True)) / jnp.maximum(temperature, 1e-10)
    return lax.stop_gradient(jax.nn.softmax(logits))


def compare_through_target(
    reward: Float[Array, "time *shape"],
    discount: Float[Array, "time ..."],
    stop: Bool[Array, "time ..."],
    next_value: Float[Array, "time *shape"],
) -> Float[Array, "time *shape"]:
    """Target of as many steps as stored and current behavior have in common.

    No gradient flows through it. The last row always stops. `discount` and `stop` may
    lack trailing axes of `reward`, such as that of a vector of rewards.

    **Arguments:**

    - `reward`: of each transition in a window.
    - `discount`: of the state it reaches, in [0, 1]: 0 where it terminates.
    - `stop`: whether to bootstrap at the state it reaches rather than to go on.
    - `next_value`: estimate at the state it reaches. What it holds where `discount` is
        zero makes no difference, not even if it is not finite.

    **Returns:**

    For each transition the discounted sum of the rewards up to the first row that
    stops, itself included, and of the value there.
    """
    discount, stop = (
        x.reshape(x.shape + (1,) * (reward.ndim - x.ndim)) for x in (discount, stop)
    )
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
    reward, discount, stop, next_value = row
    following = jnp.where(stop, next_value, following)
    target = reward + jnp.where(discount == 0, 0, discount * following)
    return target, target
