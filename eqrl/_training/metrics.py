"""Metrics of training: their checks, those of new transitions, and their averages."""

from collections.abc import Mapping

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._pytree.tree import described, is_float_shape
from .._types.custom_types import Extras, Metrics
from .._types.data import Transition


class Averages(eqx.Module):
    """Running averages of metrics, which skip `nan`."""

    sums: dict[str, Float[Array, ""]]
    counts: dict[str, Float[Array, ""]]

    def add(self, metrics: Metrics) -> "Averages":
        """With one more value of some of the metrics."""
        sums, counts = dict(self.sums), dict(self.counts)
        for name, value in metrics.items():
            known = ~jnp.isnan(value)
            sums[name] = sums[name] + jnp.where(known, value, 0)
            counts[name] = counts[name] + known.astype(counts[name].dtype)
        return Averages(sums=sums, counts=counts)

    def result(self) -> Metrics:
        """The averages; `nan` where there was nothing to average."""
        return {name: self.sums[name] / self.counts[name] for name in self.sums}


def empty_averages(names: list[str]) -> Averages:
    """A running average for each name, without values yet."""
    return Averages(
        sums={name: jnp.zeros(()) for name in names},
        counts={name: jnp.zeros(()) for name in names},
    )


def check_metrics(metrics: Mapping[str, object]) -> None:
    """Raises a `ValueError` unless each metric is a float scalar with a free name.

    `metrics` is a result of `jax.eval_shape`.
    """
    for name, value in metrics.items():
        if name in ("step", "nonfinite"):
            raise ValueError(
                f"The metric `{name}` is the trainer's; name it otherwise."
            )
        if not is_float_shape(value) or value.shape != ():
            raise ValueError(
                f"The metric `{name}` is of {described(value)}; it must be a scalar "
                "array of floats."
            )


def all_finite(transitions: Transition[Extras]) -> Bool[Array, ""]:
    """Whether observations, actions and rewards are neither `nan` nor infinite."""
    arrays = (
        transitions.observation,
        transitions.action,
        transitions.reward,
        transitions.next_observation,
    )
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(array)) for array in arrays]))


def episode_metrics(
    over: Bool[Array, " envs"],
    lengths: Int[Array, " envs"],
    returns: Float[Array, " envs"] | Float[Array, "envs reward"],
) -> Metrics:
    """Mean length and return of the episodes that are `over`; `nan` if none is."""
    metrics = {"episode_length": _mean_where(over, lengths)}
    if returns.ndim == 1:
        return metrics | {"episode_return": _mean_where(over, returns)}
    return metrics | {
        f"episode_return_{index}": _mean_where(over, returns[:, index])
        for index in range(returns.shape[1])
    }


def _mean_where(condition: Bool[Array, " envs"], values: Array) -> Array:
    # 0 / 0, so `nan`, where the condition holds nowhere.
    total = jnp.sum(jnp.where(condition, values, 0)).astype(float)
    return total / jnp.sum(condition).astype(float)
