"""Metrics of training: their checks, those of new transitions, and their averages."""

from collections.abc import Mapping

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from .._pytree.tree import described, is_float_shape
from .._types.custom_types import Metrics


# What the trainer adds to the metrics, and the columns that count rows of a run.
_TAKEN = {"step", "nonfinite", "seed", "member", "skill", "generation", "parent"}


class Averages(eqx.Module):
    """Running averages of metrics, which skip `nan`."""

    means: dict[str, Float[Array, ""]]
    counts: dict[str, Int[Array, ""]]

    def add(self, metrics: Metrics) -> "Averages":
        """With one more value of some of the metrics."""
        means, counts = dict(self.means), dict(self.counts)
        for name, value in metrics.items():
            known = ~jnp.isnan(value)
            counts[name] = counts[name] + known.astype(counts[name].dtype)
            means[name] = jnp.where(
                known, _mean_with(means[name], value, counts[name]), means[name]
            )
        return Averages(means=means, counts=counts)

    def result(self) -> Metrics:
        """The averages; `nan` where there was nothing to average."""
        return {
            name: jnp.where(self.counts[name] > 0, self.means[name], jnp.nan)
            for name in self.means
        }


def empty_averages(names: list[str]) -> Averages:
    """A running average for each name, without values yet."""
    return Averages(
        means={name: jnp.zeros(()) for name in names},
        counts={name: jnp.zeros((), int) for name in names},
    )


def _mean_with(
    mean: Float[Array, ""], value: Float[Array, ""], count: Int[Array, ""]
) -> Float[Array, ""]:
    """The mean of `count` values, given that of all but the last of them."""
    # A sum of millions of values would lose the last digits of each.
    value = value.astype(mean.dtype)
    moved = mean + (value - mean) / count.astype(mean.dtype)
    # inf - inf is nan, but what was infinite once has an infinite average.
    return jnp.where(jnp.isinf(mean), mean + value, moved)


def check_metrics(metrics: Mapping[str, object]) -> None:
    """Raises a `ValueError` unless each metric is a float scalar with a free name.

    `metrics` is a result of `jax.eval_shape`.
    """
    for name, value in metrics.items():
        if name in _TAKEN:
            raise ValueError(
                f"The metric `{name}` is the trainer's, or a column of `metrics.csv`; "
                "name it otherwise."
            )
        if not is_float_shape(value) or value.shape != ():
            raise ValueError(
                f"The metric `{name}` is of {described(value)}; it must be a scalar "
                "array of floats."
            )


def all_finite(*arrays: Array) -> Bool[Array, ""]:
    """Whether no element is `nan` or infinite."""
    # The difference is `nan` of whatever is not finite. A sum of numbers is one loop on
    # a CPU, where `jnp.all` of flags is several slow ones.
    return jnp.all(jnp.stack([jnp.sum(array - array) == 0 for array in arrays]))


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
