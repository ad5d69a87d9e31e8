import dataclasses
from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, TypeVar

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from ._distribution import (
    AbstractDensity,
    AbstractDistribution,
    ClippedNormal,
    Softmax,
    TanhNormal,
)
from ._mlp import Activation, MLPFactory, orthogonal


Distribution = TypeVar("Distribution", bound=AbstractDistribution, covariant=True)


Policy = Callable[[Float[Array, " obs"]], AbstractDistribution]
"""From one observation to a distribution over actions: any such callable."""

StochasticPolicy = Callable[[Float[Array, " obs"]], AbstractDensity]
"""The same, if the distribution has a density and samples that carry gradients."""

ChoiceFunction = Callable[[Float[Array, " obs"]], Softmax]
"""The same, over a number of actions."""

Actor = Callable[[Float[Array, " obs"]], Float[Array, " act"]]
"""From one observation to one action in [-1, 1]."""


class AbstractPolicy(eqx.Module, Generic[Distribution]):
    """From one observation to a distribution over actions."""

    @abstractmethod
    def __call__(self, observation: Float[Array, " obs"]) -> Distribution:
        """The distribution of actions at `observation`."""


class GaussianPolicy(AbstractPolicy[TanhNormal]):
    """A network whose output is the mean and log-scale of a `TanhNormal`."""

    network: Callable[[Float[Array, " obs"]], Float[Array, " outputs"]]

    def __call__(self, observation: Float[Array, " obs"]) -> TanhNormal:
        mean, log_scale = jnp.split(self.network(observation), 2)
        return TanhNormal(mean=mean, log_scale=jnp.clip(log_scale, -20, 2))


GaussianPolicy.__init__.__doc__ = """**Arguments:**

- `network`: its output holds the means, then as many log-scales, which are clipped to
    [-20, 2].
"""


class DeterministicPolicy(eqx.Module):
    """A network, then `tanh`: from one observation to one action."""

    network: Callable[[Float[Array, " obs"]], Float[Array, " act"]]

    def __call__(self, observation: Float[Array, " obs"]) -> Float[Array, " act"]:
        """The action at `observation`, in [-1, 1]."""
        return jnp.tanh(self.network(observation))


DeterministicPolicy.__init__.__doc__ = """**Arguments:**

- `network`: its output has the length of an action.
"""


class ExploringPolicy(AbstractPolicy[ClippedNormal]):
    """A deterministic actor with normal noise added to its actions."""

    actor: Actor
    noise: Float[Array, ""]

    def __call__(self, observation: Float[Array, " obs"]) -> ClippedNormal:
        return ClippedNormal(mean=self.actor(observation), scale=self.noise)


ExploringPolicy.__init__.__doc__ = """**Arguments:**

- `actor`: from an observation to an action in [-1, 1].
- `noise`: standard deviation of the noise.
"""


class ChoicePolicy(AbstractPolicy[Softmax]):
    """A network whose output is the logits of a `Softmax`."""

    network: Callable[[Float[Array, " obs"]], Float[Array, " actions"]]

    def __call__(self, observation: Float[Array, " obs"]) -> Softmax:
        return Softmax(logits=self.network(observation))


ChoicePolicy.__init__.__doc__ = """**Arguments:**

- `network`: its output has one number for each action.
"""


@dataclasses.dataclass(frozen=True)
class Gaussian(MLPFactory):
    """Makes a `GaussianPolicy` on an `MLP`. Equal factories share a compilation.

    **Arguments:**

    - `hidden_sizes`: width of each hidden layer.
    - `activation`: elementwise; a function defined once.
    """

    def __call__(
        self, observation_size: int, action_size: int, *, key: PRNGKeyArray
    ) -> GaussianPolicy:
        """One policy with fresh weights."""
        return GaussianPolicy(self._mlp(observation_size, 2 * action_size, key=key))


@dataclasses.dataclass(frozen=True)
class Deterministic(MLPFactory):
    """Makes a `DeterministicPolicy` on an `MLP`. Equal factories share a compilation.

    **Arguments:**

    - `hidden_sizes`: width of each hidden layer.
    - `activation`: elementwise; a function defined once.
    """

    def __call__(
        self, observation_size: int, action_size: int, *, key: PRNGKeyArray
    ) -> DeterministicPolicy:
        """One policy with fresh weights."""
        return DeterministicPolicy(self._mlp(observation_size, action_size, key=key))


@dataclasses.dataclass(frozen=True)
class Choice(MLPFactory):
    """Makes a `ChoicePolicy` on an `MLP`. Equal factories share a compilation.

    Weights are orthogonal, those of the output small, so that all actions are about
    equally likely at first.

    **Arguments:**

    - `hidden_sizes`: width of each hidden layer.
    - `activation`: elementwise; a function defined once.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = jnp.tanh

    def __call__(
        self, observation_size: int, num_actions: int, *, key: PRNGKeyArray
    ) -> ChoicePolicy:
        """One policy with fresh weights."""
        shape_key, key = jr.split(key)
        network = self._mlp(observation_size, num_actions, key=shape_key)
        return ChoicePolicy(orthogonal(network, 0.01, key=key))
