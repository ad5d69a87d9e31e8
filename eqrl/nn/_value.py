import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from ._factory import NetworkFactory, orthogonal
from ._mlp import Activation


ValueFunction = Callable[[Float[Array, " obs"]], Float[Array, ""]]
"""From one observation to the value of its state: any such callable."""


class StateValue(eqx.Module):
    """A critic: the value of a state under the policy."""

    network: Callable[[Float[Array, " obs"]], Float[Array, " 1"]]

    def __call__(self, observation: Float[Array, " obs"]) -> Float[Array, ""]:
        """The value at `observation`."""
        return self.network(observation)[0]


StateValue.__init__.__doc__ = """**Arguments:**

- `network`: from an observation to a vector of length 1.
"""


@dataclasses.dataclass(frozen=True)
class Value(NetworkFactory):
    """Makes a `StateValue` on a network. Equal factories share a compilation.

    Weights are orthogonal.

    **Arguments:** those of `NetworkFactory`.
    """

    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Activation = jnp.tanh

    def __call__(self, observation_size: int, *, key: PRNGKeyArray) -> StateValue:
        """One critic with fresh weights."""
        shape_key, key = jr.split(key)
        network = self._network(observation_size, 1, key=shape_key)
        return StateValue(orthogonal(network, 1.0, key=key))
