import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float


class Distances(eqx.Module):
    """Of each transition of a batch, and whether there were enough points for it."""

    diversity: Float[Array, " batch"]
    has_past: Bool[Array, " batch"]
    consistency: Float[Array, " batch"]
    has_recent: Bool[Array, " batch"]

    def means(self) -> tuple[Float[Array, ""], Float[Array, ""]]:
        """Over the transitions with enough points; 1 and 0 where there are none."""
        return (
            _mean(self.diversity, self.has_past, 1.0),
            _mean(self.consistency, self.has_recent, 0.0),
        )


def _mean(
    values: Float[Array, " batch"], counted: Bool[Array, " batch"], default: float
) -> Float[Array, ""]:
    total = jnp.sum(jnp.where(counted, values, 0))
    number = jnp.sum(counted.astype(values.dtype))
    return jnp.where(number > 0, total / jnp.maximum(number, 1), default)
