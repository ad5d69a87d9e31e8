import dataclasses
from collections.abc import Callable
from typing import overload

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from ._factory import NetworkFactory


class StateActionValue(eqx.Module):
    """A critic: the value of one action at one observation."""

    network: Callable[[Float[Array, " inputs"]], Float[Array, " 1"]]

    def __call__(
        self, observation: Float[Array, " obs"], action: Float[Array, " act"]
    ) -> Float[Array, ""]:
        """The value of taking `action` at `observation`."""
        return self.network(jnp.concatenate([observation, action]))[0]


StateActionValue.__init__.__doc__ = """**Arguments:**

- `network`: from an observation, concatenated with an action, to a vector of length 1.
"""


class StateActionValues(eqx.Module):
    """A critic with one network for each dimension of a vector of rewards."""

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
class Critic(NetworkFactory):
    """Makes a `StateActionValue` on a network. Equal factories share a compilation.

    If rewards are vectors, it makes a `StateActionValues`, whose networks share no
    weights.

    **Arguments:** those of `NetworkFactory`.
    """

    @overload
    def __call__(
        self,
        observation_size: int,
        action_size: int,
        *,
        trajectory_size: int | None = None,
        reward_size: None = None,
        key: PRNGKeyArray,
    ) -> StateActionValue: ...

    @overload
    def __call__(
        self,
        observation_size: int,
        action_size: int,
        *,
        trajectory_size: int | None = None,
        reward_size: int,
        key: PRNGKeyArray,
    ) -> StateActionValues: ...

    @overload
    def __call__(
        self,
        observation_size: int,
        action_size: int,
        *,
        trajectory_size: int | None = None,
        reward_size: int | None,
        key: PRNGKeyArray,
    ) -> StateActionValue | StateActionValues: ...

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
        - `trajectory_size`: length of the vector that the critic takes in place of an
            action, such as an action with its velocity.
        - `reward_size`: length of the reward; `None` for a scalar.
        - `key`: for the weights.
        """
        valued_size = action_size if trajectory_size is None else trajectory_size
        input_size = observation_size + valued_size
        if reward_size is None:
            return StateActionValue(self._network(input_size, 1, key=key))
        networks = eqx.filter_vmap(lambda key: self._network(input_size, 1, key=key))
        return StateActionValues(networks(jr.split(key, reward_size)))
