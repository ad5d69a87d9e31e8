import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from ._factory import NetworkFactory
from ._skill_distribution import (
    AbstractSkillDistribution,
    Categorical,
    DiagonalNormal,
    VonMisesFisher,
)


Network = Callable[[Float[Array, " descriptor"]], Float[Array, " outputs"]]

SkillDiscriminator = Callable[[Float[Array, " descriptor"]], AbstractSkillDistribution]
"""From one descriptor to a distribution over skills: any such callable."""

# Without bounds on the scale, a certain discriminator would give unbounded rewards.
_LOG_SCALE_RANGE = (-3.0, 2.0)
_LOG_CONCENTRATION_RANGE = (-3.0, 5.0)


def _clip(x: Float[Array, "*shape"], low: float, high: float) -> Float[Array, "*shape"]:
    """`x` clipped to a range, with a gradient that leads back where it is beyond.

    That of `clip` is 0 there, so what is once beyond could stay so for ever. What would
    lead further away is still 0: nothing runs off.
    """
    return jnp.clip(x, low, high)


def _bounded_forward(
    x: Float[Array, "*shape"], low: float, high: float
) -> tuple[Float[Array, "*shape"], tuple[Bool[Array, "*shape"], Bool[Array, "*shape"]]]:
    return jnp.clip(x, low, high), (x < low, x > high)


def _bounded_backward(
    low: float,
    high: float,
    beyond: tuple[Bool[Array, "*shape"], Bool[Array, "*shape"]],
    gradient: Float[Array, "*shape"],
) -> tuple[Float[Array, "*shape"]]:
    del low, high
    below, above = beyond
    # A loss is descended: a gradient below 0 leads up.
    leads_away = (below & (gradient > 0)) | (above & (gradient < 0))
    return (jnp.where(leads_away, 0, gradient),)


_bounded = jax.custom_vjp(_clip, nondiff_argnums=(1, 2))
_bounded.defvjp(_bounded_forward, _bounded_backward)


class CategoricalNetwork(eqx.Module):
    """A network whose outputs are the logits of one-hot skills."""

    network: Network

    def __call__(self, descriptor: Float[Array, " descriptor"]) -> Categorical:
        """The distribution over skills at `descriptor`."""
        return Categorical(self.network(descriptor))


CategoricalNetwork.__init__.__doc__ = """**Arguments:**

- `network`: its output has one element for each skill.
"""


class NormalNetwork(eqx.Module):
    """A network whose outputs are the mean and log-scale of a normal distribution."""

    network: Network

    def __call__(self, descriptor: Float[Array, " descriptor"]) -> DiagonalNormal:
        """The distribution over skills at `descriptor`."""
        mean, log_scale = jnp.split(self.network(descriptor), 2)
        log_scale = _bounded(log_scale, *_LOG_SCALE_RANGE)
        return DiagonalNormal(mean=mean, log_scale=log_scale)


NormalNetwork.__init__.__doc__ = """**Arguments:**

- `network`: its output holds the means, then as many log-scales, which are clipped to
    [-3, 2]. Beyond it a loss has a gradient in them only where it leads back.
"""


class VonMisesFisherNetwork(eqx.Module):
    """A network whose outputs are a direction, of any length, and its concentration."""

    network: Network

    def __call__(self, descriptor: Float[Array, " descriptor"]) -> VonMisesFisher:
        """The distribution over skills at `descriptor`."""
        outputs = self.network(descriptor)
        direction, log_concentration = outputs[:-1], outputs[-1]
        # The constant keeps the gradient finite at the origin.
        length = jnp.sqrt(jnp.sum(direction**2) + 1e-12)
        log_concentration = _bounded(log_concentration, *_LOG_CONCENTRATION_RANGE)
        return VonMisesFisher(
            direction=direction / length, concentration=jnp.exp(log_concentration)
        )


VonMisesFisherNetwork.__init__.__doc__ = """**Arguments:**

- `network`: its output holds the direction, which is scaled to length 1, then the
    logarithm of the concentration, which is clipped to [-3, 5]. Beyond it a loss has a
    gradient in it only where it leads back.
"""


@dataclasses.dataclass(frozen=True)
class CategoricalDiscriminator(NetworkFactory):
    """Makes a `CategoricalNetwork` on a network. Equal factories share a compilation.

    **Arguments:** those of `NetworkFactory`.
    """

    def __call__(
        self, descriptor_size: int, skill_size: int, *, key: PRNGKeyArray
    ) -> CategoricalNetwork:
        """One discriminator with fresh weights."""
        return CategoricalNetwork(self._network(descriptor_size, skill_size, key=key))


@dataclasses.dataclass(frozen=True)
class NormalDiscriminator(NetworkFactory):
    """Makes a `NormalNetwork` on a network. Equal factories share a compilation.

    **Arguments:** those of `NetworkFactory`.
    """

    def __call__(
        self, descriptor_size: int, skill_size: int, *, key: PRNGKeyArray
    ) -> NormalNetwork:
        """One discriminator with fresh weights."""
        return NormalNetwork(self._network(descriptor_size, 2 * skill_size, key=key))


@dataclasses.dataclass(frozen=True)
class VonMisesFisherDiscriminator(NetworkFactory):
    """Makes a `VonMisesFisherNetwork` on a network.

    Equal factories share a compilation.

    **Arguments:** those of `NetworkFactory`.
    """

    def __call__(
        self, descriptor_size: int, skill_size: int, *, key: PRNGKeyArray
    ) -> VonMisesFisherNetwork:
        """One discriminator with fresh weights."""
        return VonMisesFisherNetwork(
            self._network(descriptor_size, skill_size + 1, key=key)
        )
