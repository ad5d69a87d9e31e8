import dataclasses
from collections.abc import Callable
from typing import overload

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from .._pytree.tree import described
from ._factory import NetworkFactory


class StateActionValue(eqx.Module):
    """A critic: the value of one action at one observation."""

    network: Callable[[Float[Array, " inputs"]], Float[Array, " 1"]]
    observation_size: int | None = eqx.field(default=None, static=True)

    def __call__(
        self, observation: Float[Array, " obs"], action: Float[Array, " act"]
    ) -> Float[Array, ""]:
        """The value of taking `action` at `observation`."""
        _check_observation(observation, self.observation_size)
        return self.network(jnp.concatenate([observation, action]))[0]


StateActionValue.__init__.__doc__ = """**Arguments:**

- `network`: from an observation, concatenated with an action, to a vector of length 1.
- `observation_size`: length of the observation, by which an action in its place is
    noticed; `None` if it may have any.
"""


class StateActionValues(eqx.Module):
    """A critic with one network for each dimension of a vector of rewards."""

    networks: Callable[[Float[Array, " inputs"]], Float[Array, " 1"]]
    observation_size: int | None = eqx.field(default=None, static=True)

    def __call__(
        self, observation: Float[Array, " obs"], action: Float[Array, " act"]
    ) -> Float[Array, " reward"]:
        """The values of taking `action` at `observation`."""
        _check_observation(observation, self.observation_size)
        inputs = jnp.concatenate([observation, action])
        return eqx.filter_vmap(lambda network: network(inputs)[0])(self.networks)


StateActionValues.__init__.__doc__ = """**Arguments:**

- `networks`: as in `StateActionValue`, a stack: each array has one more leading axis.
- `observation_size`: as in `StateActionValue`.
"""


def _check_observation(observation: Array, size: int | None) -> None:
    if size is not None and jnp.shape(observation) != (size,):
        raise ValueError(
            f"A critic for observations of length {size} was given one of "
            f"{described(observation)}. The observation comes first, then the action; "
            "map over a batch by `jax.vmap`."
        )


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
            network = self._network(input_size, 1, key=key)
            return StateActionValue(network, observation_size)
        networks = eqx.filter_vmap(lambda key: self._network(input_size, 1, key=key))
        stack = networks(jr.split(key, reward_size))
        return StateActionValues(stack, observation_size)
