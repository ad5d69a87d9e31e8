"""What changes with the number of environment steps that an agent has observed."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._types.custom_types import FloatLike
from .._types.data import AnyTransition


def count_steps(
    num_steps: Int[Array, ""], transitions: AnyTransition
) -> Int[Array, ""]:
    """The number of steps after new transitions, one of each environment.

    It stays at the largest integer, and a schedule that is longer where it then is.
    """
    added = transitions.timestep.shape[0]
    most = jnp.iinfo(num_steps.dtype).max - added
    return jnp.minimum(num_steps, most) + added


def linear_schedule(
    num_steps: Int[Array, ""],
    duration: FloatLike,
    *,
    initial: FloatLike,
    final: FloatLike,
) -> Float[Array, ""]:
    """A number that goes in a line from one value to another, and stays there.

    **Arguments:**

    - `num_steps`: steps so far.
    - `duration`: steps from the first value to the second, greater than 0.
    - `initial`, `final`: the two values.
    """
    done = jnp.clip(num_steps.astype(float) / duration, 0, 1)
    start = jnp.asarray(initial, float)
    return start + done * (final - start)


def annealed(
    lr: FloatLike,
    num_steps: Int[Array, ""],
    anneal_steps: FloatLike | None,
    *,
    counted: int,
) -> FloatLike:
    """The learning rate on its way to 0, which the last update does not quite reach.

    **Arguments:**

    - `lr`: at first.
    - `num_steps`: steps so far, those to be learned from included.
    - `anneal_steps`: steps of the whole training; `None` keeps the rate.
    - `counted`: the number of steps to be learned from.
    """
    if anneal_steps is None:
        return lr
    return linear_schedule(num_steps - counted, anneal_steps, initial=lr, final=0.0)
