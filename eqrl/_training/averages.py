import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._types.custom_types import Metrics


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


def no_averages(names: list[str]) -> Averages:
    """Averages of nothing, to which metrics of these names can be added."""
    return Averages(
        sums={name: jnp.zeros(()) for name in names},
        counts={name: jnp.zeros(()) for name in names},
    )
