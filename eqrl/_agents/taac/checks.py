"""Argument checks of `TAAC`."""

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp

from ..._pytree.fields import shown
from ..._types.custom_types import FloatLike
from ..._types.data import EnvSpec
from ...losses._taac import TDLoss
from .trajectory import AbstractTrajectory


def check_reward_weights(reward_weights: object) -> None:
    """Raises a `ValueError` unless `reward_weights` is a tuple or `None`."""
    if reward_weights is not None and not isinstance(reward_weights, tuple):
        raise ValueError(
            f"`reward_weights={reward_weights}` must be a tuple, with one number for "
            "each dimension of a vector reward. Leave it None if the reward is a "
            "scalar."
        )


def check_faithful(faithful: bool, bootstrap: str) -> None:
    """Raises a `ValueError` unless the reference has this bootstrap."""
    if faithful and bootstrap != "mixed":
        raise ValueError(
            f"`faithful=True` bootstraps as the reference does, but `bootstrap="
            f"{bootstrap!r}` was given; make it 'mixed', or not faithful."
        )


def check_trajectory(trajectory: object) -> None:
    """Raises a `ValueError` unless `trajectory` is a family of trajectories."""
    if not isinstance(trajectory, AbstractTrajectory):
        raise ValueError(
            f"`trajectory={shown(trajectory)}` must be a family of trajectories, such "
            "as `eqrl.ConstantTrajectory()`."
        )


def check_advantage_clip(advantage_clip: object) -> None:
    """Raises a `ValueError` unless there are two bounds in order, or `None`."""
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
    if any(isinstance(bound, jax.core.Tracer) for bound in advantage_clip):
        return
    low, high = (float(bound) for bound in advantage_clip)
    if low > high:
        raise ValueError(
            f"`advantage_clip=({low:g}, {high:g})` is empty; the first must not be "
            "more than the second."
        )


def check_td_loss(td_loss: TDLoss) -> None:
    """Raises a `ValueError` unless `td_loss` is elementwise in values and targets."""
    values = jax.ShapeDtypeStruct((2, 3), jnp.result_type(float))
    loss = eqx.filter_eval_shape(td_loss, values, values) if callable(td_loss) else None
    if getattr(loss, "shape", None) != values.shape:
        raise ValueError(
            f"`td_loss={shown(td_loss)}` must be an elementwise function of values and "
            "targets, such as `optax.huber_loss`."
        )


def check_rewards(
    discount: FloatLike | tuple[FloatLike, ...],
    reward_weights: tuple[FloatLike, ...] | None,
    spec: EnvSpec,
) -> None:
    """Raises a `ValueError` unless tuples have one number for each reward dimension."""
    for name, value, otherwise in (
        ("discount", discount, "a single number"),
        ("reward_weights", reward_weights, "None"),
    ):
        if isinstance(value, tuple) and len(value) != spec.reward_size:
            size = spec.reward_size
            reward = "is a scalar" if size is None else f"has {size} dimensions"
            raise ValueError(
                f"`{name}` has {len(value)} numbers, but `spec.reward_size={size}`: "
                f"the reward {reward}. Give one for each dimension of a vector "
                f"reward, or {otherwise}."
            )
