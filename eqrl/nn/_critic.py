import dataclasses
import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
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


class StateActionValues(eqx.Module):
    """Networks that value one action at one observation, one for each reward."""

    networks: Callable[[Float[Array, " inputs"]], Float[Array, " 1"]]

    def __call__(
        self, observation: Float[Array, " obs"], action: Float[Array, " act"]
    ) -> Float[Array, " reward"]:
        """The values of taking `action` at `observation`."""
        inputs = jnp.concatenate([observation, action])
        return eqx.filter_vmap(lambda network: network(inputs)[0])(self.networks)


StateActionValues.__init__.__doc__ = """**Arguments:**

- `networks`: as in `StateActionValue`, a stack: each array has one more leading axis.
"""


@dataclasses.dataclass(frozen=True)
class Critic:
    """Makes a `StateActionValue` on an `MLP`. Equal factories share a compilation.

    Where rewards are vectors it makes a `StateActionValues`: dimensions share nothing.

    **Arguments:**

    - `hidden_sizes`: width of each hidden layer.
    - `activation`: elementwise; a function defined once.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: Activation = jax.nn.relu

    def __post_init__(self) -> None:
        check_hidden_sizes(self.hidden_sizes)

    def __call__(
        self,
        observation_size: int,
        action_size: int,
        *,
        trajectory_size: int | None = None,
        reward_size: int | None = None,
        key: PRNGKeyArray,
    ) -> StateActionValue | StateActionValues:
        """One critic with fresh weights.

        **Arguments:**

        - `observation_size`, `action_size`: of the environment.
        - `trajectory_size`: length of what is valued, where it is more than an action,
            such as an action with its velocity.
        - `reward_size`: length of the reward; `None` for a scalar.
        - `key`: for the weights.
        """
        valued_size = action_size if trajectory_size is None else trajectory_size
        make = functools.partial(_make_network, self, observation_size + valued_size)
        if reward_size is None:
            return StateActionValue(make(key))
        return StateActionValues(eqx.filter_vmap(make)(jr.split(key, reward_size)))


def _make_network(factory: Critic, input_size: int, key: PRNGKeyArray) -> MLP:
    return MLP(input_size, 1, factory.hidden_sizes, factory.activation, key=key)
