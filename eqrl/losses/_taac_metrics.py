"""What the losses of TAAC say besides their value."""

import jax.numpy as jnp
from jax.scipy.special import entr
from jaxtyping import Array, Float

from .._types.custom_types import Metrics


_NUM_BINS = 10


def critic_metrics(
    values: Float[Array, "critics batch *reward"],
    target: Float[Array, "batch *reward"],
) -> Metrics:
    """Of each critic and reward: value, error, and how much of the target it explains.

    The share explained is `nan` where targets do not differ.
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
    """One metric for each element, with its indices in its name."""
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
    """Of the decisions to keep or to switch in a batch."""
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
    """The share of elements in each bin, as scalars by name."""
    return {
        f"{name}_histogram_{index:02d}": jnp.mean((bins == index).astype(float))
        for index in range(num_bins)
    }
