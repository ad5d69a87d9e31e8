import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from ._mlp import MLP, Activation, check_hidden_sizes


class StateActionValue(eqx.Module):
    """A network that values one action at one observation."""

    network: Callable[[Float[Array, " inputs"]], Float[Array, " 1"]]

    def __call__(
        self, observation: Float[Array, " obs"], action: Float[Array, " act"]
    ) -> Float[Array, ""]:
        """The value of taking `action` at `observation`."""
        return self.network(jnp.concatenate([observation, action]))[0]


StateActionValue.__init__.__doc__ = """**Arguments:**

- `network`: from an observation followed by an action to a vector of length one.
"""


@dataclasses.dataclass(frozen=True)
class Critic:
    """Makes a `StateActionValue` on an `MLP`. Equal factories share a compilation.

    **Arguments:**

    - `hidden_sizes`: width of each hidden layer.
    - `activation`: elementwise; a function defined once.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: Activation = jax.nn.relu

    def __post_init__(self) -> None:
        check_hidden_sizes(self.hidden_sizes)

    def __call__(
        self, observation_size: int, action_size: int, *, key: PRNGKeyArray
    ) -> StateActionValue:
        """One critic with fresh weights."""
        return StateActionValue(
            MLP(
                observation_size + action_size,
                1,
                self.hidden_sizes,
                self.activation,
                key=key,
            )
        )
