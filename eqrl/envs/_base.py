from abc import abstractmethod
from typing import Any, Generic, TypeAlias

import equinox as eqx
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._types.custom_types import EnvState
from .._types.data import EnvSpec


class Outcome(eqx.Module):
    """Result of one step of an environment."""

    observation: Float[Array, " obs"]
    reward: Float[Array, ""] | Float[Array, " reward"]
    terminated: Bool[Array, ""]
    truncated: Bool[Array, ""]


Outcome.__init__.__doc__ = """**Arguments:**

- `observation`: of the state reached, also if the episode ends there.
- `reward`: of the step; a vector if `EnvSpec.reward_size` is not `None`.
- `terminated`: whether the episode ends in the state reached, whose value is then 0.
- `truncated`: whether the time limit was reached and the episode did not terminate.
"""


class AbstractEnv(eqx.Module, Generic[EnvState]):
    """One environment as pure functions, which never resets itself.

    It is written for a single environment; its callers map it over many.
    """

    @property
    @abstractmethod
    def spec(self) -> EnvSpec:
        """Sizes of what the environment takes and returns, and its time limit."""

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
        - `key`: for the randomness of the step.
        """

    @abstractmethod
    def state_descriptor(self, state: EnvState) -> Float[Array, " descriptor"] | None:
        """Describes the behavior in `state`, such as a position, or is `None`."""


AnyEnv: TypeAlias = AbstractEnv[Any]
"""An environment with any state."""


class AbstractEnvWrapper(AbstractEnv[EnvState]):
    """An environment around another environment.

    What looks for something inside an environment, such as `eqrl.render`, looks inside
    every wrapper, so also inside one of your own.
    """

    @property
    @abstractmethod
    def inner(self) -> AnyEnv:
        """The environment inside."""

    @abstractmethod
    def inner_state(self, state: EnvState) -> Any:
        """The state of the environment inside: a part of `state`, or all of it.

        `state` may be a stack of states.
        """
