import math
from abc import abstractmethod

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray


class AbstractDistribution(eqx.Module):
    """A distribution over one action in [-1, 1]."""

    @abstractmethod
    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " act"]:
        """Draws one action."""

    @abstractmethod
    def mode(self) -> Float[Array, " act"]:
        """The greedy action."""


class AbstractDensity(AbstractDistribution):
    """A distribution with a density and with samples that carry gradients."""

    @abstractmethod
    def sample_and_log_prob(
        self, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, " act"], Float[Array, ""]]:
        """Draws one action, differentiably, with the logarithm of its density."""


def _log_tanh_derivative(x: Float[Array, " act"]) -> Float[Array, " act"]:
    # log|d tanh(x)/dx|, in the form that is stable for large |x|.
    return 2 * (math.log(2) - x - jax.nn.softplus(-2 * x))


class TanhNormal(AbstractDensity):
    """`tanh` of a diagonal normal distribution.

    Log-probabilities are computed from the value before `tanh`, so they stay finite for
    saturated actions.
    """

    mean: Float[Array, " act"]
    log_scale: Float[Array, " act"]

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " act"]:
        noise = jr.normal(key, self.mean.shape)
        return jnp.tanh(self.mean + jnp.exp(self.log_scale) * noise)

    def sample_and_log_prob(
        self, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, " act"], Float[Array, ""]]:
        noise = jr.normal(key, self.mean.shape)
        before = self.mean + jnp.exp(self.log_scale) * noise
        # From the noise, not from (before - mean) / scale, which loses digits if the
        # scale is small.
        log_normal = -0.5 * (noise**2 + math.log(2 * math.pi)) - self.log_scale
        log_prob = jnp.sum(log_normal - _log_tanh_derivative(before))
        return jnp.tanh(before), log_prob

    def mode(self) -> Float[Array, " act"]:
        return jnp.tanh(self.mean)


TanhNormal.__init__.__doc__ = """**Arguments:**

- `mean`: before `tanh`.
- `log_scale`: logarithm of the standard deviation before `tanh`.
"""


class ClippedNormal(AbstractDistribution):
    """An isotropic normal distribution, clipped to [-1, 1]."""

    mean: Float[Array, " act"]
    scale: Float[Array, ""]

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " act"]:
        noise = self.scale * jr.normal(key, self.mean.shape)
        return jnp.clip(self.mean + noise, -1, 1)

    def mode(self) -> Float[Array, " act"]:
        return jnp.clip(self.mean, -1, 1)


ClippedNormal.__init__.__doc__ = """**Arguments:**

- `mean`: before clipping.
- `scale`: standard deviation before clipping.
"""
