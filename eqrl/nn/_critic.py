import dataclasses
from collections.abc import Callable
from typing import Protocol, TypeAlias, overload, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from .._pytree.tree import described
from .._types.custom_types import ActionValueFunction, CriticFunction, Observation
from ._factory import MakeNetwork, Network, NetworkFactory, orthogonal
from ._mlp import Activation, Linear, as_floats


class StateActionValue(eqx.Module):
    """A critic: the value of one action at one observation."""

    network: Callable[[Float[Array, " inputs"]], Float[Array, " 1"]]
    observation_size: int | None = eqx.field(default=None, static=True)

    def __call__(
        self, observation: Observation[Array, " obs"], action: Float[Array, " act"]
    ) -> Float[Array, ""]:
        """The value of taking `action` at `observation`."""
        inputs = _joined(observation, action, self.observation_size)
        return self.network(inputs).reshape(())


StateActionValue.__init__.__doc__ = """**Arguments:**

- `network`: from an observation, concatenated with an action, to a vector of length 1.
- `observation_size`: length of the observation, to detect an action in its place;
    `None` allows any.
"""


class StateActionValues(eqx.Module):
    """A critic with one network for each dimension of a vector of rewards."""

    networks: Callable[[Float[Array, " inputs"]], Float[Array, " 1"]]
    observation_size: int | None = eqx.field(default=None, static=True)

    def __call__(
        self, observation: Observation[Array, " obs"], action: Float[Array, " act"]
    ) -> Float[Array, " reward"]:
        """The values of taking `action` at `observation`."""
        inputs = _joined(observation, action, self.observation_size)
        return eqx.filter_vmap(lambda network: network(inputs).reshape(()))(
            self.networks
        )


StateActionValues.__init__.__doc__ = """**Arguments:**

- `networks`: as in `StateActionValue`, a stack: each array has one more leading axis.
- `observation_size`: as in `StateActionValue`.
"""


def _joined(
    observation: Observation[Array, " obs"],
    action: Float[Array, " act"],
    size: int | None,
) -> Float[Array, " inputs"]:
    # Two vectors in the wrong order have the right total length, so that the network
    # alone would not notice.
    if size is not None and jnp.shape(observation) != (size,):
        raise ValueError(
            f"A critic for observations of length {size} was given one of "
            f"{described(observation)}. The observation comes first, then the action; "
            "map over a batch by `jax.vmap`."
        )
    return jnp.concatenate([as_floats(observation), action])


MakeCritic: TypeAlias = MakeNetwork[CriticFunction]
"""A factory `(observation_size, action_size, *, key)` of one critic."""


@runtime_checkable
class MakeTrajectoryCritic(Protocol):
    """A factory of critics that take a trajectory in place of an action."""

    def __call__(
        self,
        observation_size: int,
        action_size: int,
        /,
        *,
        trajectory_size: int,
        reward_size: int | None,
        key: PRNGKeyArray,
    ) -> CriticFunction:
        """One critic with fresh weights.

        Its second argument has the length `trajectory_size`, and its value the length
        `reward_size`; `None` makes it a scalar.
        """
        ...


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


ValueFunction = Callable[[Observation[Array, " obs"]], Float[Array, ""]]
"""A callable from one observation to the value of its state."""


@runtime_checkable
class MakeValue(Protocol):
    """A factory of critics that value observations."""

    def __call__(self, observation_size: int, /, *, key: PRNGKeyArray) -> ValueFunction:
        """One critic with fresh weights."""
        ...


class StateValue(eqx.Module):
    """A critic: the value of a state under the policy."""

    network: Callable[[Observation[Array, " obs"]], Float[Array, " 1"]]

    def __call__(self, observation: Observation[Array, " obs"]) -> Float[Array, ""]:
        """The value at `observation`."""
        return self.network(observation).reshape(())


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


class DuelingHeads(eqx.Module):
    """The values of actions, as the state's value plus an advantage for each."""

    trunk: Callable[[Observation[Array, " obs"]], Float[Array, " features"]]
    value: Callable[[Float[Array, " features"]], Float[Array, " 1"]]
    advantage: Callable[[Float[Array, " features"]], Float[Array, " actions"]]
    activation: Activation = eqx.field(static=True)
    norm: eqx.nn.LayerNorm | None = None

    def __call__(
        self, observation: Observation[Array, " obs"]
    ) -> Float[Array, " actions"]:
        """The value of each action at `observation`."""
        features = self.trunk(observation)
        if self.norm is not None:
            features = self.norm(features)
        features = self.activation(features)
        advantage = self.advantage(features)
        # Without subtracting the mean, a constant could move from one head to the
        # other, and neither would be determined.
        return self.value(features)[0] + advantage - jnp.mean(advantage)


DuelingHeads.__init__.__doc__ = """**Arguments:**

- `trunk`: from an observation to features, which both heads share.
- `value`: from these to the value of the state, a vector of length 1.
- `advantage`: from these to one number for each action; their mean is subtracted.
- `activation`: activation of the features.
- `norm`: normalization of the features before their activation; `None` for none.
"""


MakeActionValues: TypeAlias = MakeNetwork[ActionValueFunction]
"""A factory `(observation_size, num_actions, *, key)` of the values of all actions."""


@dataclasses.dataclass(frozen=True)
class ActionValues(NetworkFactory):
    """Makes a network of the value of each action. Equal factories share a compilation.

    If `dueling`, the last hidden layer leads to two heads, for the value of the state
    and the advantages of the actions ([Wang et al.
    2016](https://arxiv.org/abs/1511.06581)).

    **Arguments:** those of `NetworkFactory`, and

    - `dueling`: whether there are two heads.
    """

    hidden_sizes: tuple[int, ...] = (120, 84)
    dueling: bool = False

    def __call__(
        self, observation_size: int, num_actions: int, *, key: PRNGKeyArray
    ) -> Network | DuelingHeads:
        """One network with fresh weights."""
        if not self.dueling:
            return self._network(observation_size, num_actions, key=key)
        least = 2 if self.residual else 1
        if len(self.hidden_sizes) < least:
            raise ValueError(
                f"`hidden_sizes={self.hidden_sizes}` must have length {least} or more "
                f"if `dueling=True` and `residual={self.residual}`: the heads share "
                "the hidden layers, and the last one leads to them."
            )
        trunk_key, value_key, advantage_key = jr.split(key, 3)
        features = self.hidden_sizes[-1]
        is_normalized = self.layer_norm or self.residual
        # The last hidden layer becomes the trunk's output, which is linear, so
        # `DuelingHeads` adds its normalization and activation.
        trunk = dataclasses.replace(self, hidden_sizes=self.hidden_sizes[:-1])
        return DuelingHeads(
            trunk=trunk._network(observation_size, features, key=trunk_key),
            value=Linear(features, 1, key=value_key),
            advantage=Linear(
                features, num_actions, precision=self.precision, key=advantage_key
            ),
            activation=self.activation,
            norm=eqx.nn.LayerNorm(features) if is_normalized else None,
        )
