from abc import abstractmethod
from typing import Any, Generic

import equinox as eqx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._types.custom_types import EnvState
from .._types.data import EnvSpec


class Outcome(eqx.Module):
    """What one step of an environment gives."""

    observation: Float[Array, " obs"]
    reward: Float[Array, ""] | Float[Array, " reward"]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


Outcome.__init__.__doc__ = """**Arguments:**

- `observation`: of the state reached, also where the episode ends there.
- `reward`: of the step; a vector where `EnvSpec.reward_size` says so.
- `terminated`: whether the state reached ends the episode and has no value.
- `truncated`: whether the time limit was reached and the episode did not terminate.
"""


class AbstractEnv(eqx.Module, Generic[EnvState]):
    """One environment, as pure functions. It never resets itself.

    Write it for a single environment; whatever uses it maps it over many.
    """

    @property
    @abstractmethod
    def spec(self) -> EnvSpec:
        """Sizes of what goes in and comes out."""

    @abstractmethod
    def reset(self, *, key: PRNGKeyArray) -> tuple[EnvState, Float[Array, " obs"]]:
        """Begins an episode.

        **Returns:**

        The state, of strongly typed arrays, and the first observation.
        """

    @abstractmethod
    def step(
        self, state: EnvState, action: Float[Array, " act"], *, key: PRNGKeyArray
    ) -> tuple[EnvState, Outcome]:
        """Advances by one step, whether or not the episode is over.

        **Arguments:**

        - `state`: from `reset` or from the last step.
        - `action`: in [-1, 1]; the environment rescales.
        - `key`: for whatever is random in the step.
        """

    @abstractmethod
    def state_descriptor(self, state: EnvState) -> Float[Array, " descriptor"] | None:
        """Describes `state` as behavior, such as a position; `None` if it cannot."""


AnyEnv = AbstractEnv[Any]
"""An environment whose state may be anything."""
