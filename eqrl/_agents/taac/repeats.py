"""How long TAAC stays on a trajectory, as collected and as replayed."""

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from ..._types.custom_types import Metrics
from ...losses._taac_metrics import histogram


# How much of the past counts for each row of fresh transitions: about a thousand rows.
_MEMORY = 0.999
_LONGEST = 10


class RepeatStatistics(eqx.Module):
    """Steps and trajectories begun, lately, in what was collected."""

    steps: Float[Array, ""]
    beginnings: Float[Array, ""]

    def update(self, repeats: Int[Array, " batch"]) -> "RepeatStatistics":
        """With a row of fresh transitions added."""
        return RepeatStatistics(
            steps=_MEMORY * self.steps + float(repeats.size),
            beginnings=_MEMORY * self.beginnings + _beginnings(repeats),
        )

    def length(self) -> Float[Array, ""]:
        """Mean number of steps on a trajectory; zero before anything is collected."""
        return self.steps / jnp.maximum(self.beginnings, 1)


RepeatStatistics.__init__.__doc__ = """**Arguments:**

- `steps`: how many there were, the past discounted.
- `beginnings`: how many of them began a trajectory, likewise.
"""


def _beginnings(repeats: Int[Array, "..."]) -> Float[Array, ""]:
    return jnp.sum((repeats == 1).astype(float))


def repeat_metrics(
    repeats: Int[Array, "batch time"],
    collected: RepeatStatistics,
    *,
    histograms: bool,
) -> Metrics:
    """Of the steps in a batch, and of what was collected lately.

    A histogram has the share of steps that are the first on their trajectory in bin 0,
    the second in bin 1, and the tenth or a later one in bin 9.
    """
    metrics = {
        "repeat_fraction": jnp.mean((repeats > 1).astype(float)),
        "repeat_length_replayed": repeats.size / jnp.maximum(_beginnings(repeats), 1),
        "repeat_length_collected": collected.length(),
    }
    if histograms:
        metrics |= histogram("repeat", jnp.minimum(repeats, _LONGEST) - 1, _LONGEST)
    return metrics
