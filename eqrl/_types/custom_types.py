from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import optax
from jaxtyping import Array, Float
from typing_extensions import TypeVar


if TYPE_CHECKING:
    # Static type checkers do not know jaxtyping's `PyTree` or types that contain it.
    PyTree: TypeAlias = Any
    _Anything: TypeAlias = Any
    from jaxtyping import Shaped as Observation
else:
    from jaxtyping import AbstractDtype, Bool, PyTree as PyTree, UInt8

    class Observation(AbstractDtype):
        """An array of one of the types that `EnvSpec.observation_dtype` names."""

        dtypes = (*Float.dtypes, *UInt8.dtypes, *Bool.dtypes)

    # From Python 3.13 on beartype fails at a union with a variable that is `Any` by
    # default.
    _Anything = object


FloatLike = float | int | Float[Array, ""]
"""A value that can be passed for a hyperparameter."""

Metrics = dict[str, Float[Array, ""]]
"""Scalars by name; `nan` means "not at this update" and is skipped by averages."""

Mode = Literal["random", "sample", "greedy"]
"""How an agent picks its actions."""

ObservationDtype = Literal["float32", "uint8", "bool"]
"""The type of the elements of an observation."""

MakeOptimizer = Callable[[FloatLike], optax.GradientTransformation]
"""From a learning rate to an Optax optimizer, whose state must not hold the rate."""

CriticFunction = Callable[
    [Observation[Array, " obs"], Float[Array, " act"]], Float[Array, "*reward"]
]
"""From one observation and one action to a scalar; to a vector if rewards are vectors.

Not to be confused with `eqrl.nn.Critic`, which makes one.
"""

ActionValueFunction = Callable[[Observation[Array, " obs"]], Float[Array, " actions"]]
"""From one observation to the value of each action."""

# The default is `Any`, so that in strict mode a plain `Solution` is one of any agent.

State = TypeVar("State", default=_Anything)
"""The state of an agent: all that it learns."""

Memory = TypeVar("Memory", default=_Anything)
"""What an agent carries from step to step within an episode."""

Extras = TypeVar("Extras", default=_Anything)
"""What an agent stores with each transition."""

Agents = TypeVar("Agents", default=_Anything)
"""One agent, or several as a stack."""

EnvState = TypeVar("EnvState", default=_Anything)
"""The state of an environment."""

RewardState = TypeVar("RewardState", default=_Anything)
"""The state of an intrinsic reward: all that it learns."""

Seen = TypeVar("Seen", default=_Anything, contravariant=True)
"""The extras that an intrinsic reward needs in transitions."""

Tree = TypeVar("Tree")
"""A pytree of any kind."""
