"""What `TAAC` refuses."""

import math
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp

from ..._pytree.fields import check_range
from ..._types.custom_types import FloatLike
from ..._types.data import EnvSpec
from ...losses._taac import TDLoss
from .trajectory import AbstractTrajectory


def check_each(
    name: str,
    value: FloatLike | tuple[FloatLike | None, ...] | None,
    *,
    low: float | int = -math.inf,
    high: float | int = math.inf,
) -> None:
    """As `check_range`, of one number or of each of several."""
    for number in value if isinstance(value, tuple) else (value,):
        check_range(name, number, low=low, high=high)


def check_reward_weights(reward_weights: Any) -> None:
    """Raises a `ValueError` unless there are several numbers, or none."""
    if reward_weights is None:
        return
    if not isinstance(reward_weights, tuple):
        raise ValueError(
            f"`reward_weights={reward_weights}` must be a tuple, with one number for "
            "each dimension of a vector of rewards. Leave it None where the reward is "
            "a scalar."
        )
    check_each("reward_weights", reward_weights)


def check_faithful(faithful: bool, bootstrap: str) -> None:
    """Raises a `ValueError` where the reference has no such bootstrap."""
    if faithful and bootstrap != "mixed":
        raise ValueError(
            f"`faithful=True` bootstraps as the reference does, but `bootstrap="
            f"{bootstrap!r}` was given; make it 'mixed', or not faithful."
        )


def check_trajectory(trajectory: Any) -> None:
    """Raises a `ValueError` unless this is a family of trajectories."""
    if not isinstance(trajectory, AbstractTrajectory):
        raise ValueError(
            f"`trajectory={trajectory!r}` must be a family of trajectories, such as "
            "`eqrl.ConstantTrajectory()`."
        )


def check_advantage_clip(advantage_clip: Any) -> None:
    """Raises a `ValueError` unless there are two bounds in order, or none."""
    if advantage_clip is None:
        return
    if not isinstance(advantage_clip, tuple) or len(advantage_clip) != 2:
        is_tuple = isinstance(advantage_clip, tuple)
        given = (
            f"has {len(advantage_clip)} numbers" if is_tuple else f"is {advantage_clip}"
        )
        raise ValueError(
            f"`advantage_clip` {given}, but must be a tuple of two numbers, the least "
            "and the greatest advantage of switching, or None."
        )
    check_each("advantage_clip", advantage_clip)
    if any(isinstance(bound, jax.core.Tracer) for bound in advantage_clip):
        return
    low, high = (float(bound) for bound in advantage_clip)
    if low > high:
        raise ValueError(
            f"`advantage_clip=({low:g}, {high:g})` is empty; the first must not be "
            "more than the second."
        )


def check_td_loss(td_loss: TDLoss) -> None:
    """Raises a `ValueError` unless this is elementwise, of values and targets."""
    values = jax.ShapeDtypeStruct((2, 3), jnp.result_type(float))
    loss = eqx.filter_eval_shape(td_loss, values, values) if callable(td_loss) else None
    if getattr(loss, "shape", None) != values.shape:
        raise ValueError(
            f"`td_loss={td_loss!r}` must be an elementwise function of values and "
            "targets, such as `optax.huber_loss`."
        )


def check_rewards(
    discount: FloatLike | tuple[FloatLike, ...],
    reward_weights: tuple[FloatLike, ...] | None,
    spec: EnvSpec,
) -> None:
    """Raises a `ValueError` where these do not fit the environment's reward."""
    for name, value, otherwise in (
        ("discount", discount, "a single number"),
        ("reward_weights", reward_weights, "None"),
    ):
        if isinstance(value, tuple) and len(value) != spec.reward_size:
            size = spec.reward_size
            reward = "is a scalar" if size is None else f"has {size} dimensions"
            raise ValueError(
                f"`{name}` has {len(value)} numbers, but `spec.reward_size={size}`: "
                f"the reward {reward}. Give one for each dimension of a vector of "
                f"rewards, or {otherwise}."
            )
