from collections.abc import Callable
from typing import Literal, TypeVar

import optax
from jaxtyping import Array, Float


FloatLike = float | int | Float[Array, ""]
"""What a caller may pass for a hyperparameter."""

Metrics = dict[str, Float[Array, ""]]
"""Scalars by name; `nan` means "not this time" and is skipped by averages."""

Mode = Literal["random", "sample", "greedy"]
"""How an agent picks its actions."""

MakeOptimizer = Callable[[FloatLike], optax.GradientTransformation]
"""From a learning rate to an optimizer, whose state must not hold the rate."""

State = TypeVar("State")
"""What an agent learns."""

Memory = TypeVar("Memory")
"""What an agent carries from step to step within an episode."""

Extras = TypeVar("Extras")
"""What an agent asks to have stored with each transition."""

EnvState = TypeVar("EnvState")
"""The state of an environment."""

RewardState = TypeVar("RewardState")
"""What an intrinsic reward learns."""

Tree = TypeVar("Tree")
"""Any pytree."""
