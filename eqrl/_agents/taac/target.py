"""From windows of the replay to the targets of TAAC's critics."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from ..._types.custom_types import FloatLike
from ..._types.data import Transition
from ...losses import compare_through_target


def with_time(batch: Transition[Any]) -> Transition[Any]:
    """A batch with leading axes `(batch, time)`, also of single transitions."""
    if batch.terminated.ndim == 2:
        return batch
    return jax.tree.map(lambda x: x[:, None], batch)


def flat_batch(batch: Transition[Any]) -> Transition[Any]:
    """A batch of windows as one of single transitions."""
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), batch)


def stops(
    batch: Transition[Any],
    current_switch: Bool[Array, "batch time"],
    target: str,
) -> Bool[Array, "batch time"]:
    """Whether a target bootstraps at the state which each transition reaches.

    **Arguments:**

    - `batch`: windows, whose extras say where the stored policy switched.
    - `current_switch`: whether the current policy switches at the state reached.
    - `target`: `"compare_through"`, `"one_step"` or `"multi_step"`.
    """
    if target == "one_step":
        return jnp.ones_like(current_switch)
    # Of the last transition of a window it is not known, and makes no difference.
    stored_switch = jnp.roll(batch.extras.switch, -1, axis=1)
    done = batch.terminated | batch.truncated
    if target == "multi_step":
        return done
    return done | stored_switch | current_switch


def window_target(
    batch: Transition[Any],
    next_value: Float[Array, "batch time *reward"],
    current_switch: Bool[Array, "batch time"],
    *,
    discount: FloatLike | tuple[FloatLike, ...],
    target: str,
) -> Float[Array, "batch time *reward"]:
    """The target of each transition in windows; no gradient flows through it.

    **Arguments:**

    - `batch`: windows.
    - `next_value`: estimate at the state each transition reaches.
    - `current_switch`, `target`: as in `stops`.
    - `discount`: in [0, 1], one or one for each dimension of the reward.
    """
    alive = (~batch.terminated).astype(next_value.dtype)
    if isinstance(discount, tuple):
        discounts = alive[:, :, None] * jnp.stack(discount)[None, None]
    else:
        discounts = discount * alive
    return jax.vmap(compare_through_target)(
        batch.reward, discounts, stops(batch, current_switch, target), next_value
    )
