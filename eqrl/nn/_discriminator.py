import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ._mlp import MLP, Activation, check_hidden_sizes
from ._skill_distribution import (
    AbstractSkillDistribution,
    Categorical,
    DiagonalNormal,
    VonMisesFisher,
)


Network = Callable[[Float[Array, " descriptor"]], Float[Array, " outputs"]]

SkillDiscriminator = Callable[[Float[Array, " descriptor"]], AbstractSkillDistribution]
"""From one descriptor to a distribution over skills: any such callable."""

# A discriminator that is certain would give rewards without a bound.
_LOG_SCALE_RANGE = (-3.0, 2.0)
_LOG_CONCENTRATION_RANGE = (-3.0, 5.0)


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
        log_scale = jnp.clip(log_scale, *_LOG_SCALE_RANGE)
        return DiagonalNormal(mean=mean, log_scale=log_scale)


NormalNetwork.__init__.__doc__ = """**Arguments:**

- `network`: its output holds the means, then as many log-scales, which are clipped to
    [-3, 2].
"""


class VonMisesFisherNetwork(eqx.Module):
    """A network whose outputs are a direction, of any length, and its concentration."""

    network: Network

    def __call__(self, descriptor: Float[Array, " descriptor"]) -> VonMisesFisher:
        """The distribution over skills at `descriptor`."""
        outputs = self.network(descriptor)
        direction, log_concentration = outputs[:-1], outputs[-1]
        # The added number keeps the gradient finite at the origin.
        length = jnp.sqrt(jnp.sum(direction**2) + 1e-12)
        log_concentration = jnp.clip(log_concentration, *_LOG_CONCENTRATION_RANGE)
        return VonMisesFisher(
            direction=direction / length, concentration=jnp.exp(log_concentration)
        )


VonMisesFisherNetwork.__init__.__doc__ = """**Arguments:**

- `network`: its output holds the direction, which is scaled to length one, then the
    logarithm of the concentration, which is clipped to [-3, 5].
"""


@dataclasses.dataclass(frozen=True)
class CategoricalDiscriminator:
    """Makes a `CategoricalNetwork` on an `MLP`. Equal factories share a compilation.

    **Arguments:**

    - `hidden_sizes`: width of each hidden layer.
    - `activation`: elementwise; a function defined once.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: Activation = jax.nn.relu

    def __post_init__(self) -> None:
        check_hidden_sizes(self.hidden_sizes)

    def __call__(
        self, descriptor_size: int, skill_size: int, *, key: PRNGKeyArray
    ) -> CategoricalNetwork:
        """One discriminator with fresh weights."""
        return CategoricalNetwork(
            MLP(
                descriptor_size, skill_size, self.hidden_sizes, self.activation, key=key
            )
        )


@dataclasses.dataclass(frozen=True)
class NormalDiscriminator:
    """Makes a `NormalNetwork` on an `MLP`. Equal factories share a compilation.

    **Arguments:**

    - `hidden_sizes`: width of each hidden layer.
    - `activation`: elementwise; a function defined once.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: Activation = jax.nn.relu

    def __post_init__(self) -> None:
        check_hidden_sizes(self.hidden_sizes)

    def __call__(
        self, descriptor_size: int, skill_size: int, *, key: PRNGKeyArray
    ) -> NormalNetwork:
        """One discriminator with fresh weights."""
        return NormalNetwork(
            MLP(
                descriptor_size,
                2 * skill_size,
                self.hidden_sizes,
                self.activation,
                key=key,
            )
        )


@dataclasses.dataclass(frozen=True)
class VonMisesFisherDiscriminator:
    """Makes a `VonMisesFisherNetwork` on an `MLP`. Equal ones share a compilation.

    **Arguments:**

    - `hidden_sizes`: width of each hidden layer.
    - `activation`: elementwise; a function defined once.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: Activation = jax.nn.relu

    def __post_init__(self) -> None:
        check_hidden_sizes(self.hidden_sizes)

    def __call__(
        self, descriptor_size: int, skill_size: int, *, key: PRNGKeyArray
    ) -> VonMisesFisherNetwork:
        """One discriminator with fresh weights."""
        return VonMisesFisherNetwork(
            MLP(
                descriptor_size,
                skill_size + 1,
                self.hidden_sizes,
                self.activation,
                key=key,
            )
        )
