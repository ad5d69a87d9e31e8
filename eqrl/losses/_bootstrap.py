import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from .._types.custom_types import FloatLike


def bootstrapped_target(
    reward: Float[Array, " batch"],
    terminated: Bool[Array, " batch"],
    next_value: Float[Array, " batch"],
    discount: FloatLike,
) -> Float[Array, " batch"]:
    """One-step target for a critic, through which no gradient flows.

    **Arguments:**

    - `reward`: of each transition.
    - `terminated`: whether the state reached has no value. Pass `truncated` nowhere: a
        time limit is not an end.
    - `next_value`: estimate at `next_observation`. What it holds where `terminated` is
        true makes no difference, not even if it is not finite.
    - `discount`: in [0, 1].

    **Returns:**

    `reward + discount * next_value`, without the second term where `terminated`.
    """
    future = jnp.where(terminated, 0, discount * next_value)
    return lax.stop_gradient(reward + future)
