import itertools
import math
from collections.abc import Callable, Sequence
from typing import get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from .._pytree.fields import Count, check_choice, checked, shown
from .._pytree.tree import described
from .._types.custom_types import Observation
from ._product import NARROW, Precision, product


# Numbers drawn together. All are in memory while a network is made, 16 MiB in float32,
# and for a stack as much for each network.
_MOST_DRAWN = 2**22

Activation = Callable[[Float[Array, "..."]], Float[Array, "..."]]


def as_floats(observation: Observation[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Observations of any type as the floats that networks see.

    Networks of eqrl call it. A custom network that does not begin with one should, too,
    if it is for environments whose `spec.observation_dtype` is not "float32".

    **Arguments:**

    - `observation`: one observation, or a stack of them.

    **Returns:**

    Floats as they are, `uint8` divided by 255, and `bool` as 0 and 1.
    """
    if jnp.issubdtype(observation.dtype, jnp.floating):
        return observation
    floats = observation.astype(float)
    # XLA turns a division by a number into this product in some programs only.
    return floats * (1 / 255) if observation.dtype == jnp.uint8 else floats


class Linear(eqx.Module):
    """A dense layer with a weight of shape `(inputs, outputs)`.

    The weight of `equinox.nn.Linear` has the shape `(outputs, inputs)`. Mapped over a
    batch and a stack of networks, that layout makes XLA transpose on the CPU: there a
    gradient step of two critics took 1.4 times as long with it. The factor was measured
    on a CPU only.

    **Attributes:**

    - `weight`: multiplies the input from the right.
    - `bias`: added to the product.
    """

    weight: Float[Array, "inputs outputs"]
    bias: Float[Array, " outputs"]
    precision: Precision = eqx.field(static=True)

    def __init__(
        self,
        input_size: int,
        output_size: int,
        *,
        precision: Precision = "float32",
        key: PRNGKeyArray,
    ) -> None:
        """**Arguments:**

        - `input_size`: length of the input.
        - `output_size`: length of the output.
        - `precision`: of the factors of the product; see `NetworkFactory`. A layer with
            fewer than 64 inputs or outputs stays in float32.
        - `key`: for the initial weight and bias, both uniform between
            `-1 / sqrt(input_size)` and `1 / sqrt(input_size)`.
        """
        check_choice("precision", precision, get_args(Precision))
        weight_key, bias_key = jr.split(key)
        limit = 1 / math.sqrt(input_size)
        self.weight = jr.uniform(
            weight_key, (input_size, output_size), minval=-limit, maxval=limit
        )
        self.bias = jr.uniform(bias_key, (output_size,), minval=-limit, maxval=limit)
        is_narrow = min(input_size, output_size) < NARROW
        self.precision = "float32" if is_narrow else precision

    def __call__(self, x: Observation[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Maps one input vector to one output vector."""
        size = self.weight.shape[-2]
        if getattr(x, "shape", ()) != (size,) or self.weight.ndim != 2:
            raise ValueError(
                f"A layer for inputs of length {size} was given {described(x)}. "
                "Map over a batch by `jax.vmap`, over a stack of networks by "
                "`equinox.filter_vmap`; or does it belong to another environment?"
            )
        # Cast here, where networks begin, so that none needs to do so itself.
        return product(as_floats(x), self.weight, self.precision) + self.bias


class MLP(eqx.Module):
    """Multilayer perceptron with a linear output.

    **Attributes:**

    - `layers`: the hidden layers and the output, in order.
    - `norms`: one for each hidden layer, before its activation; empty without
        `layer_norm`.
    """

    layers: tuple[Linear, ...]
    norms: tuple[eqx.nn.LayerNorm, ...]
    activation: Activation = eqx.field(static=True)

    @checked
    def __init__(
        self,
        input_size: Count,
        output_size: Count,
        hidden_sizes: tuple[int, ...],
        activation: Activation = jax.nn.relu,
        *,
        layer_norm: bool = False,
        precision: Precision = "float32",
        key: PRNGKeyArray,
    ) -> None:
        """**Arguments:**

        - `input_size`: length of the input.
        - `output_size`: length of the output.
        - `hidden_sizes`: width of each hidden layer, in order; may be empty.
        - `activation`: elementwise, after each hidden layer. It is compared by
            identity: pass a function that is defined once, not a fresh lambda.
        - `layer_norm`: whether each hidden layer is normalized before its activation
            ([Ba et al. 2016](https://arxiv.org/abs/1607.06450)).
        - `precision`: of the products, as in `Linear`.
        - `key`: for the initial weights and biases, as in `Linear`.
        """
        check_layers(hidden_sizes)
        sizes = (input_size, *hidden_sizes, output_size)
        self.layers = _make_layers(sizes, precision, key=key)
        self.norms = tuple(
            eqx.nn.LayerNorm(size) for size in hidden_sizes if layer_norm
        )
        self.activation = activation

    def __call__(self, x: Observation[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Maps one input vector to one output vector."""
        for index, layer in enumerate(self.layers[:-1]):
            x = layer(x)
            if self.norms:
                x = self.norms[index](x)
            x = self.activation(x)
        return self.layers[-1](x)


def _make_layers(
    sizes: Sequence[int], precision: Precision, *, key: PRNGKeyArray
) -> tuple[Linear, ...]:
    """The layers between vectors of these sizes, as `Linear` makes them, bit for bit.

    Compiling the draw of one more shape takes longer than everything else about a
    layer. So all layers are drawn with the largest shape, and each takes the beginning,
    which is equal to its own draw.
    """
    keys = jr.split(key, len(sizes) - 1)
    # A size may be an integer of NumPy, which would be traced.
    ends = tuple(itertools.pairwise(map(int, sizes)))
    longest = max(fan_in * fan_out for fan_in, fan_out in ends)
    # With other generators, a short array is not the beginning of a longer one.
    is_threefry = str(jr.key_impl(key)) == "threefry2x32"
    begins_alike = is_threefry and jax.config.values["jax_threefry_partitionable"]
    if not begins_alike or 2 * len(ends) * longest > _MOST_DRAWN:
        return tuple(
            Linear(fan_in, fan_out, precision=precision, key=layer_key)
            for (fan_in, fan_out), layer_key in zip(ends, keys, strict=True)
        )

    def draw(
        key: PRNGKeyArray, limit: Float[Array, ""]
    ) -> Float[Array, "both longest"]:
        return jax.vmap(
            lambda key: jr.uniform(key, (longest,), minval=-limit, maxval=limit)
        )(jr.split(key))

    limits = jnp.asarray([1 / math.sqrt(fan_in) for fan_in, _ in ends], float)
    drawn = jax.vmap(draw)(keys, limits)
    like = {"precision": precision, "key": jax.eval_shape(lambda: jr.key(0))}
    layers = []
    for (fan_in, fan_out), (weight, bias) in zip(ends, drawn, strict=True):
        weight = weight[: fan_in * fan_out].reshape(fan_in, fan_out)
        layers.append(
            eqx.tree_at(
                lambda layer: (layer.weight, layer.bias),
                eqx.filter_eval_shape(Linear, fan_in, fan_out, **like),
                (weight, bias[:fan_out]),
            )
        )
    return tuple(layers)


def check_layers(hidden_sizes: object) -> None:
    """Checks the widths of the hidden layers of a network."""
    if not isinstance(hidden_sizes, Sequence) or not all(map(is_size, hidden_sizes)):
        raise ValueError(
            f"`hidden_sizes={shown(hidden_sizes)}` must be a tuple of positive "
            "integers, such as (256, 256)."
        )


def is_size(size: object) -> bool:
    if not isinstance(size, (int, np.integer)) or isinstance(size, bool):
        return False
    # The number of elements of a longer vector does not fit 32 bits.
    return 1 <= int(size) < 2**31


class ResidualBlock(eqx.Module):
    """Adds the output of two layers, which see the normalized input, to the input.

    **Attributes:**

    - `norm`: normalizes the input for the layers.
    - `widening`: the first layer, to four times the length.
    - `narrowing`: the second layer, back to the length of the input.
    """

    norm: eqx.nn.LayerNorm
    widening: Linear
    narrowing: Linear
    activation: Activation = eqx.field(static=True)

    def __init__(
        self,
        size: int,
        activation: Activation = jax.nn.relu,
        *,
        precision: Precision = "float32",
        key: PRNGKeyArray,
    ) -> None:
        """**Arguments:**

        - `size`: length of input and output; between the layers it is four times that.
        - `activation`: elementwise, between the layers.
        - `precision`: of the products, as in `Linear`.
        - `key`: for the initial weights and biases.
        """
        first_key, second_key = jr.split(key)
        self.norm = eqx.nn.LayerNorm(size)
        self.widening = Linear(size, 4 * size, precision=precision, key=first_key)
        self.narrowing = Linear(4 * size, size, precision=precision, key=second_key)
        self.activation = activation

    def __call__(self, x: Float[Array, " size"]) -> Float[Array, " size"]:
        """Maps one vector to one of the same length."""
        # The input passes unchanged, so gradients reach the first block whole.
        return x + self.narrowing(self.activation(self.widening(self.norm(x))))


class ResidualMLP(eqx.Module):
    """Residual blocks, then a normalization, between two linear layers.

    The simplicity bias of such a network lets it grow without overfitting; it is
    SimBa's ([Lee et al. 2025](https://arxiv.org/abs/2410.09754)), without the
    normalization of observations; see `eqrl.Normalized`.

    **Attributes:**

    - `input`: the layer before the blocks.
    - `blocks`: the residual blocks, in order.
    - `norm`: normalizes the output of the last block.
    - `output`: the layer after this normalization.
    """

    input: Linear
    blocks: tuple[ResidualBlock, ...]
    norm: eqx.nn.LayerNorm
    output: Linear

    @checked
    def __init__(
        self,
        input_size: Count,
        output_size: Count,
        hidden_sizes: tuple[int, ...],
        activation: Activation = jax.nn.relu,
        *,
        precision: Precision = "float32",
        key: PRNGKeyArray,
    ) -> None:
        """**Arguments:**

        - `input_size`: length of the input.
        - `output_size`: length of the output.
        - `hidden_sizes`: width of each block, all the same; at least one.
        - `activation`: elementwise, within the blocks.
        - `precision`: of the products, as in `Linear`.
        - `key`: for the initial weights and biases, as in `Linear`.
        """
        check_layers(hidden_sizes)
        if len(set(hidden_sizes)) != 1:
            raise ValueError(
                f"`hidden_sizes={hidden_sizes}` must be the same width for each "
                "residual block, such as (256, 256)."
            )
        width = hidden_sizes[0]
        input_key, output_key, *keys = jr.split(key, 2 + len(hidden_sizes))
        self.input = Linear(input_size, width, precision=precision, key=input_key)
        self.blocks = tuple(
            ResidualBlock(width, activation, precision=precision, key=block_key)
            for block_key in keys
        )
        self.norm = eqx.nn.LayerNorm(width)
        self.output = Linear(width, output_size, precision=precision, key=output_key)

    def __call__(self, x: Observation[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Maps one input vector to one output vector."""
        x = self.input(x)
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x))
