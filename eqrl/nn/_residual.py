import equinox as eqx
import jax
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from .._pytree.fields import check_key
from ._mlp import (
    Activation,
    Linear,
    check_activation,
    check_hidden_sizes,
    check_sizes,
)


class ResidualBlock(eqx.Module):
    """Adds to its input what two layers make of it, normalized."""

    norm: eqx.nn.LayerNorm
    widening: Linear
    narrowing: Linear
    activation: Activation = eqx.field(static=True)

    def __init__(
        self, size: int, activation: Activation = jax.nn.relu, *, key: PRNGKeyArray
    ) -> None:
        """**Arguments:**

        - `size`: length of input and output; between the layers it is four times that.
        - `activation`: elementwise, between the layers.
        - `key`: for the initial weights and biases.
        """
        first_key, second_key = jr.split(key)
        self.norm = eqx.nn.LayerNorm(size)
        self.widening = Linear(size, 4 * size, key=first_key)
        self.narrowing = Linear(4 * size, size, key=second_key)
        self.activation = activation

    def __call__(self, x: Float[Array, " size"]) -> Float[Array, " size"]:
        """Maps one vector to one of the same length."""
        return x + self.narrowing(self.activation(self.widening(self.norm(x))))


class ResidualMLP(eqx.Module):
    """Residual blocks between two linear layers, of which the last is normalized.

    The simplicity bias of such a network lets it grow without overfitting; it is that
    of SimBa ([Lee et al. 2025](https://arxiv.org/abs/2410.09754)), without the
    normalization of observations, for which there is `eqrl.Normalized`.
    """

    input: Linear
    blocks: tuple[ResidualBlock, ...]
    norm: eqx.nn.LayerNorm
    output: Linear

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
        - `hidden_sizes`: width of each block, all the same; at least one.
        - `activation`: elementwise, within the blocks.
        - `key`: for the initial weights and biases, as in `Linear`.
        """
        check_hidden_sizes(hidden_sizes)
        check_sizes(input_size=input_size, output_size=output_size)
        check_activation(activation)
        check_key(key)
        if len(set(hidden_sizes)) != 1:
            raise ValueError(
                f"`hidden_sizes={hidden_sizes}` must be the same width for each "
                "residual block, such as (256, 256)."
            )
        width = hidden_sizes[0]
        input_key, output_key, *keys = jr.split(key, 2 + len(hidden_sizes))
        self.input = Linear(input_size, width, key=input_key)
        self.blocks = tuple(
            ResidualBlock(width, activation, key=block_key) for block_key in keys
        )
        self.norm = eqx.nn.LayerNorm(width)
        self.output = Linear(width, output_size, key=output_key)

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Maps one input vector to one output vector."""
        x = self.input(x)
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))
