import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray


Activation = Callable[[Float[Array, "..."]], Float[Array, "..."]]


class Linear(eqx.Module):
    """A dense layer, whose weight is stored as `(inputs, outputs)`.

    `equinox.nn.Linear` stores it the other way round. Mapped over a batch and over a
    stack of networks, that layout makes XLA transpose on the CPU: a step of two critics
    took 1.4 times as long with it.
    """

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]

    def __init__(self, input_size: int, output_size: int, *, key: PRNGKeyArray) -> None:
        """**Arguments:**

        - `input_size`: length of the input.
        - `output_size`: length of the output.
        - `key`: for the initial weight and bias, both uniform in `1 / sqrt(input_size)`
            either side of zero.
        """
        weight_key, bias_key = jr.split(key)
        limit = 1 / math.sqrt(input_size)
        self.weight = jr.uniform(
            weight_key, (input_size, output_size), minval=-limit, maxval=limit
        )
        self.bias = jr.uniform(bias_key, (output_size,), minval=-limit, maxval=limit)

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Maps one input vector to one output vector."""
        return x @ self.weight + self.bias


class MLP(eqx.Module):
    """Dense layers with an activation between them and none behind the last."""

    layers: tuple[Linear, ...]
    activation: Activation = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        output_size: int,
        hidden_sizes: tuple[int, ...],
        activation: Activation = jax.nn.relu,
        *,
        key: PRNGKeyArray,
    ) -> None:
        """**Arguments:**

        - `input_size`: length of the input.
        - `output_size`: length of the output.
        - `hidden_sizes`: width of each hidden layer, in order; may be empty.
        - `activation`: elementwise, after each hidden layer. Pass a function defined
            once, not a fresh lambda: it is compared by identity.
        - `key`: for the initial weights and biases, as in `Linear`.
        """
        sizes = (input_size, *hidden_sizes, output_size)
        keys = jr.split(key, len(sizes) - 1)
        self.layers = tuple(
            Linear(fan_in, fan_out, key=layer_key)
            for fan_in, fan_out, layer_key in zip(
                sizes[:-1], sizes[1:], keys, strict=True
            )
        )
        self.activation = activation

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Maps one input vector to one output vector."""
        for layer in self.layers[:-1]:
            x = self.activation(layer(x))
        return self.layers[-1](x)


def check_hidden_sizes(hidden_sizes: tuple[int, ...]) -> None:
    """Raises a `ValueError` unless these are widths of layers, as a hashable tuple."""
    if not isinstance(hidden_sizes, tuple) or not all(
        isinstance(size, (int, np.integer)) and size >= 1 for size in hidden_sizes
    ):
        raise ValueError(
            f"`hidden_sizes={hidden_sizes!r}` must be a tuple of positive integers, "
            "such as (256, 256)."
        )
