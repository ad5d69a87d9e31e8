import dataclasses
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from ._factory import Network, NetworkFactory
from ._mlp import Activation, Linear


class DuelingHeads(eqx.Module):
    """The values of actions, as that of the state and what each adds to it."""

    trunk: Callable[[Float[Array, " obs"]], Float[Array, " features"]]
    value: Callable[[Float[Array, " features"]], Float[Array, " 1"]]
    advantage: Callable[[Float[Array, " features"]], Float[Array, " actions"]]
    activation: Activation = eqx.field(static=True)
    norm: eqx.nn.LayerNorm | None = None

    def __call__(self, observation: Float[Array, " obs"]) -> Float[Array, " actions"]:
        """The value of each action at `observation`."""
        features = self.trunk(observation)
        if self.norm is not None:
            features = self.norm(features)
        features = self.activation(features)
        advantage = self.advantage(features)
        return self.value(features)[0] + advantage - jnp.mean(advantage)


DuelingHeads.__init__.__doc__ = """**Arguments:**

- `trunk`: from an observation to features, which both heads share.
- `value`: from these to the value of the state, a vector of length 1.
- `advantage`: from these to one number for each action, of which the mean is
    subtracted.
- `activation`: of the features.
- `norm`: of the features before their activation; `None` for none.
"""


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
                f"`hidden_sizes={self.hidden_sizes}` must have {least} widths at least "
                f"if `dueling=True` and `residual={self.residual}`: the heads share "
                "the hidden layers, and the last one leads to them."
            )
        trunk_key, value_key, advantage_key = jr.split(key, 3)
        features = self.hidden_sizes[-1]
        is_normalized = self.layer_norm or self.residual
        trunk = dataclasses.replace(self, hidden_sizes=self.hidden_sizes[:-1])
        return DuelingHeads(
            trunk=trunk._network(observation_size, features, key=trunk_key),
            value=Linear(features, 1, key=value_key),
            advantage=Linear(features, num_actions, key=advantage_key),
            activation=self.activation,
            norm=eqx.nn.LayerNorm(features) if is_normalized else None,
        )
