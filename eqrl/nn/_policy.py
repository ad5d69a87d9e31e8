import dataclasses
import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Generic, TypeAlias, TypeVar

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from .._pytree.fields import Range
from .._types.custom_types import Observation
from ._distribution import (
    AbstractDensity,
    AbstractDistribution,
    AbstractLikelihood,
    ClippedNormal,
    Softmax,
    SquashedNormal,
    TanhNormal,
)
from ._factory import MakeNetwork, NetworkFactory, orthogonal
from ._mlp import Activation


Distribution = TypeVar("Distribution", bound=AbstractDistribution, covariant=True)


Policy = Callable[[Observation[Array, " obs"]], AbstractDistribution]
"""A callable from one observation to a distribution over actions."""

StochasticPolicy = Callable[[Observation[Array, " obs"]], AbstractDensity]
"""The same, if the distribution has a density and samples that carry gradients."""

LikelihoodPolicy = Callable[[Observation[Array, " obs"]], AbstractLikelihood]
"""The same, if draws have a known probability."""

ChoiceFunction = Callable[[Observation[Array, " obs"]], Softmax]
"""The same, over a number of actions."""

Actor = Callable[[Observation[Array, " obs"]], Float[Array, " act"]]
"""A callable from one observation to one action in [-1, 1]."""

MakePolicy: TypeAlias = MakeNetwork[StochasticPolicy]
"""A factory `(observation_size, action_size, *, key)` of a policy with a density."""

MakeLikelihoodPolicy: TypeAlias = MakeNetwork[LikelihoodPolicy]
"""A factory of a policy whose draws have a known probability."""

MakeChoice: TypeAlias = MakeNetwork[ChoiceFunction]
"""A factory `(observation_size, num_actions, *, key)` of a policy over actions."""

MakeActor: TypeAlias = MakeNetwork[Actor]
"""A factory `(observation_size, action_size, *, key)` of an actor without noise."""


class AbstractPolicy(eqx.Module, Generic[Distribution]):
    """A policy: maps one observation to a distribution over actions."""

    @abstractmethod
    def __call__(self, observation: Observation[Array, " obs"]) -> Distribution:
        """The distribution of actions at `observation`."""


class GaussianPolicy(AbstractPolicy[TanhNormal]):
    """A network whose output is the mean and log-scale of a `TanhNormal`."""

    network: Callable[[Observation[Array, " obs"]], Float[Array, " outputs"]]

    def __call__(self, observation: Observation[Array, " obs"]) -> TanhNormal:
        mean, log_scale = jnp.split(self.network(observation), 2)
        # Wide enough for any useful policy, and narrow enough that densities stay
        # finite.
        return TanhNormal(mean=mean, log_scale=jnp.clip(log_scale, -20, 2))


GaussianPolicy.__init__.__doc__ = """**Arguments:**

- `network`: its output holds the means, then as many log-scales, which are clipped to
    [-20, 2].
"""


class DeterministicPolicy(eqx.Module):
    """A network, then `tanh`: from one observation to one action."""

    network: Callable[[Observation[Array, " obs"]], Float[Array, " act"]]

    def __call__(self, observation: Observation[Array, " obs"]) -> Float[Array, " act"]:
        """The action at `observation`, in [-1, 1]."""
        return jnp.tanh(self.network(observation))


DeterministicPolicy.__init__.__doc__ = """**Arguments:**

- `network`: its output has the length of an action.
"""


class ExploringPolicy(AbstractPolicy[ClippedNormal]):
    """A deterministic actor with normal noise added to its actions."""

    actor: Actor
    noise: Float[Array, ""]

    def __call__(self, observation: Observation[Array, " obs"]) -> ClippedNormal:
        return ClippedNormal(mean=self.actor(observation), scale=self.noise)


ExploringPolicy.__init__.__doc__ = """**Arguments:**

- `actor`: from an observation to an action in [-1, 1].
- `noise`: standard deviation of the noise.
"""


class NormalPolicy(AbstractPolicy[SquashedNormal]):
    """A network whose output is the mean of a `SquashedNormal`.

    The standard deviation is learned too, and is the same for all observations.
    """

    network: Callable[[Observation[Array, " obs"]], Float[Array, " act"]]
    log_scale: Float[Array, " act"]
    squash: bool = eqx.field(static=True)

    def __call__(self, observation: Observation[Array, " obs"]) -> SquashedNormal:
        return SquashedNormal(
            mean=self.network(observation), log_scale=self.log_scale, squash=self.squash
        )


NormalPolicy.__init__.__doc__ = """**Arguments:**

- `network`: its output has the length of an action.
- `log_scale`: logarithm of the standard deviation of each element.
- `squash`: whether actions are made by `tanh` rather than by clipping to [-1, 1].
"""


class ChoicePolicy(AbstractPolicy[Softmax]):
    """A network whose output is the logits of a `Softmax`."""

    network: Callable[[Observation[Array, " obs"]], Float[Array, " actions"]]

    def __call__(self, observation: Observation[Array, " obs"]) -> Softmax:
        return Softmax(logits=self.network(observation))


ChoicePolicy.__init__.__doc__ = """**Arguments:**

- `network`: its output has one number for each action.
"""


@dataclasses.dataclass(frozen=True)
class Gaussian(NetworkFactory):
    """Makes a `GaussianPolicy` on a network. Equal factories share a compilation.

    **Arguments:** those of `NetworkFactory`.
    """

    def __call__(
        self, observation_size: int, action_size: int, *, key: PRNGKeyArray
    ) -> GaussianPolicy:
        """One policy with fresh weights."""
        return GaussianPolicy(self._network(observation_size, 2 * action_size, key=key))


@dataclasses.dataclass(frozen=True)
class Deterministic(NetworkFactory):
    """Makes a `DeterministicPolicy` on a network. Equal factories share a compilation.

    **Arguments:** those of `NetworkFactory`.
    """

    def __call__(
        self, observation_size: int, action_size: int, *, key: PRNGKeyArray
    ) -> DeterministicPolicy:
        """One policy with fresh weights."""
        return DeterministicPolicy(
            self._network(observation_size, action_size, key=key)
        )


@dataclasses.dataclass(frozen=True)
class Choice(NetworkFactory):
    """Makes a `ChoicePolicy` on a network. Equal factories share a compilation.

    Weights are orthogonal, those of the output small, so that all actions are about
    equally likely at first.

    **Arguments:** those of `NetworkFactory`.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = jnp.tanh

    def __call__(
        self, observation_size: int, num_actions: int, *, key: PRNGKeyArray
    ) -> ChoicePolicy:
        """One policy with fresh weights."""
        shape_key, key = jr.split(key)
        network = self._network(observation_size, num_actions, key=shape_key)
        # The first key only gives shapes: `orthogonal` draws all weights anew.
        return ChoicePolicy(orthogonal(network, 0.01, key=key))


@dataclasses.dataclass(frozen=True)
class Normal(NetworkFactory):
    """Makes a `NormalPolicy` on a network. Equal factories share a compilation.

    Weights are orthogonal, those of the output small.

    **Arguments:** those of `NetworkFactory`, and

    - `squash`: whether actions are made by `tanh` rather than by clipping to [-1, 1].
    - `initial_scale`: initial standard deviation of each element, before `tanh` or
        clipping; greater than 0. With 1, the usual value, a third is clipped.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = jnp.tanh
    squash: bool = False
    initial_scale: float | int = dataclasses.field(default=1.0, kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        Range(low=0, low_open=True).check("initial_scale", self.initial_scale)
        # A factory is hashed, which an array cannot be.
        object.__setattr__(self, "initial_scale", float(self.initial_scale))

    def __call__(
        self, observation_size: int, action_size: int, *, key: PRNGKeyArray
    ) -> NormalPolicy:
        """One policy with fresh weights."""
        shape_key, key = jr.split(key)
        network = self._network(observation_size, action_size, key=shape_key)
        return NormalPolicy(
            network=orthogonal(network, 0.01, key=key),
            log_scale=jnp.full(action_size, math.log(self.initial_scale), float),
            squash=self.squash,
        )
