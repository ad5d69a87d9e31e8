from collections.abc import Callable
from typing import Any, Literal, TypeVar

import optax
from jaxtyping import Array, Float


FloatLike = float | int | Float[Array, ""]
"""A value that can be passed for a hyperparameter."""

Metrics = dict[str, Float[Array, ""]]
"""Scalars by name; `nan` means "not at this update" and is skipped by averages."""

Mode = Literal["random", "sample", "greedy"]
"""How an agent picks its actions."""

MakeOptimizer = Callable[[FloatLike], optax.GradientTransformation]
"""From a learning rate to an Optax optimizer, whose state must not hold the rate."""

CriticFunction = Callable[..., Any]
"""From one observation and one action to a scalar; to a vector if rewards are vectors.

Not to be confused with `eqrl.nn.Critic`, which makes one.
"""

ActionValueFunction = Callable[[Any], Any]
"""From one observation to the value of each action."""

State = TypeVar("State")
"""The state of an agent: all that it learns."""

Memory = TypeVar("Memory")
"""What an agent carries from step to step within an episode."""

Extras = TypeVar("Extras")
"""What an agent stores with each transition."""

EnvState = TypeVar("EnvState")
"""The state of an environment."""

RewardState = TypeVar("RewardState")
"""The state of an intrinsic reward: all that it learns."""

Tree = TypeVar("Tree")
"""Any pytree."""
