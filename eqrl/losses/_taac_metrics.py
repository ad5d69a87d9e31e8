"""Metrics of TAAC's losses."""

import jax.numpy as jnp
from jax.scipy.special import entr
from jaxtyping import Array, Float

from .._types.custom_types import Metrics


_NUM_BINS = 10


def critic_metrics(
    values: Float[Array, "critics batch *reward"],
    target: Float[Array, "batch *reward"],
) -> Metrics:
    """Value, TD error and explained variance of each critic and reward dimension.

    The explained variance is NaN if the targets are all equal.
    """
    errors = target[None] - values
    spread = jnp.var(target[None], axis=1)
    explained = 1 - jnp.var(errors, axis=1) / jnp.where(spread > 0, spread, jnp.nan)
    by_critic = {
        "value": jnp.mean(values, axis=1),
        "td_error": jnp.mean(errors, axis=1),
        "explained_variance": explained,
    }
    metrics = _numbered("target", jnp.mean(target, axis=0))
    for name, numbers in by_critic.items():
        metrics |= _numbered(name, numbers)
    return metrics


def _numbered(name: str, numbers: Float[Array, "..."]) -> Metrics:
    """One metric for each element of an array, with its indices in the name."""
    if numbers.ndim == 0:
        return {name: numbers}
    metrics: Metrics = {}
    for index in range(numbers.shape[0]):
        metrics |= _numbered(f"{name}_{index}", numbers[index])
    return metrics


def switch_metrics(
    probabilities: Float[Array, "batch 2"],
    advantage: Float[Array, " batch"],
    *,
    histograms: bool,
) -> Metrics:
    """Entropy, advantage and keep probability of the switches in a batch."""
    keep = probabilities[:, 0]
    metrics = {
        "switch_entropy": jnp.mean(jnp.sum(entr(probabilities), axis=1)),
        "switch_advantage": jnp.mean(advantage),
        "keep_probability": jnp.mean(keep),
        "keep_probability_std": jnp.std(keep),
    }
    if histograms:
        bins = jnp.minimum((keep * _NUM_BINS).astype(int), _NUM_BINS - 1)
        metrics |= histogram("keep_probability", bins, _NUM_BINS)
    return metrics


def histogram(name: str, bins: Array, num_bins: int) -> Metrics:
    """The share of elements in each bin, as one metric for each bin."""
    return {
        f"{name}_histogram_{index:02d}": jnp.mean((bins == index).astype(float))
        for index in range(num_bins)
    }
