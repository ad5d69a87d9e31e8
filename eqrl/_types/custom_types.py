from collections.abc import Callable
from typing import Literal

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
