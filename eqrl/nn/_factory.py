import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterator
from typing import Protocol, get_args, runtime_checkable

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray
from typing_extensions import TypeVar

from .._pytree.fields import check_callable, check_choice, shown
from .._pytree.tree import parts
from .._types.custom_types import Observation, PyTree
from ._mlp import (
    MLP,
    Activation,
    Linear,
    ResidualMLP,
    as_floats,
    check_layers,
    is_size,
)
from ._product import Precision, products_of_bfloat16


Made = TypeVar("Made", covariant=True, default=PyTree)


@runtime_checkable
class MakeNetwork(Protocol[Made]):
    """A factory of networks: any callable with these arguments, by position.

    The first size is that of an observation or descriptor, the second that of an action
    or skill, or the number of actions.

    Agents compare factories that define equality, as the library's own do, by value,
    and all others by identity: a fresh lambda compiles everything again.
    """

    def __call__(
        self, input_size: int, output_size: int, /, *, key: PRNGKeyArray
    ) -> Made:
        """One network with fresh weights."""
        ...


class ImageEncoder(eqx.Module):
    """A convolution of the image at the beginning of a flat observation.

    The rest of the input, such as a skill or an action, is passed on unchanged.
    """

    filters: Linear
    image_shape: tuple[int, int, int] = eqx.field(static=True)
    kernel: int = eqx.field(default=3, static=True)
    stride: int = eqx.field(default=1, static=True)

    def __call__(self, x: Observation[Array, " inputs"]) -> Float[Array, " features"]:
        """The nonnegative features of the image, then the rest of the observation."""
        x = as_floats(x)
        size = math.prod(self.image_shape)
        image = x[:size].reshape(self.image_shape)
        rows, columns = _places(self.image_shape, self.kernel, self.stride)
        # Matrix products stay matrix products when networks are stacked, while XLA's
        # convolution with many sets of filters is slow on a CPU.
        height, width = (self.stride * (n - 1) + 1 for n in (rows, columns))
        patches = jnp.concatenate(
            [
                lax.slice(
                    image,
                    (row, column, 0),
                    (row + height, column + width, image.shape[2]),
                    (self.stride, self.stride, 1),
                )
                for row in range(self.kernel)
                for column in range(self.kernel)
            ],
            axis=-1,
        )
        patches = patches.reshape(rows * columns, -1)
        features = jax.nn.relu(jax.vmap(self.filters)(patches))
        return jnp.concatenate([features.reshape(-1), x[size:]])


ImageEncoder.__init__.__doc__ = """**Arguments:**

- `filters`: from the `kernel` by `kernel` pixels under a filter, row by row, channels
    last, to the output channels at one position.
- `image_shape`: height, width and channels.
- `kernel`: height and width of a filter.
- `stride`: distance from one position of a filter to the next, down and across.
"""


def _places(shape: tuple[int, ...], kernel: int, stride: int) -> tuple[int, int]:
    """Numbers of positions of a filter within an image, down and across."""
    height, width, _ = shape
    return (height - kernel) // stride + 1, (width - kernel) // stride + 1


class Encoded(eqx.Module):
    """A network applied to the output of an encoder."""

    encoder: "ImageEncoder | Encoded"
    network: Callable[[Float[Array, " features"]], Float[Array, " outputs"]]

    def __call__(self, x: Observation[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Maps one input vector to one output vector."""
        return self.network(self.encoder(x))


Encoded.__init__.__doc__ = """**Arguments:**

- `encoder`: from the input to features: an `ImageEncoder`, or several in sequence, as
    an `Encoded`.
- `network`: from these to the output.
"""


@dataclasses.dataclass(frozen=True)
class Convolution:
    """Makes an `ImageEncoder` of one or more layers. Equal ones share a compilation.

    There is no padding, and ReLU after each layer. By default it is the one layer of
    the networks of MinAtar ([Young and Tian 2019](https://arxiv.org/abs/1903.03176)).
    The network of Atari games ([Mnih et al.
    2015](https://doi.org/10.1038/nature14236)) is

    ```python
    eqrl.nn.Convolution((84, 84, 4), (32, 64, 64), kernels=(8, 4, 3), strides=(4, 2, 1))
    ```

    Each of the last three arguments is one number for all layers, or a tuple with a
    number for each; tuples have the same length.

    **Arguments:**

    - `image_shape`: height, width and channels of the image before it was flattened
        into an observation; see `EnvSpec.observation_shape`.
    - `channels`: number of filters.
    - `kernels`: height and width of a filter.
    - `strides`: distance from one position of a filter to the next, down and across.
    """

    image_shape: tuple[int, int, int]
    channels: int | tuple[int, ...] = 16
    kernels: int | tuple[int, ...] = 3
    strides: int | tuple[int, ...] = 1

    def __post_init__(self) -> None:
        shape, given = self.image_shape, (self.channels, self.kernels, self.strides)
        tuples = [x if isinstance(x, tuple) else (x,) for x in given]
        lengths = {len(x) for x in given if isinstance(x, tuple)}
        if len(lengths) > 1 or not all(x and all(map(is_size, x)) for x in tuples):
            raise ValueError(
                f"`channels={shown(self.channels)}`, `kernels={shown(self.kernels)}` "
                f"and `strides={shown(self.strides)}` must each be an integer, at "
                "least 1, or a tuple of as many of them as there are layers."
            )
        is_shape = isinstance(shape, tuple) and len(shape) == 3
        if not (is_shape and all(map(is_size, shape))) or any(
            kernel > min(seen[:2]) for seen, _, kernel, _ in self._layers()
        ):
            raise ValueError(
                f"`image_shape={shown(shape)}` must be a tuple of height, width and "
                "channels, such as (10, 10, 4), whose height and width are not smaller "
                f"than the filters of `kernels={self.kernels}` in any layer."
            )

    def _layers(self) -> Iterator[tuple[tuple[int, int, int], int, int, int]]:
        """The image that each layer sees, its channels, kernel and stride."""
        given = (self.channels, self.kernels, self.strides)
        number = max(len(x) if isinstance(x, tuple) else 1 for x in given)
        columns = (x if isinstance(x, tuple) else (x,) * number for x in given)
        shape = self.image_shape
        for channels, kernel, stride in zip(*columns, strict=True):
            yield shape, channels, kernel, stride
            shape = (*_places(shape, kernel, stride), channels)

    def output_size(self, input_size: int) -> int:
        """Length of the features of an input of this length.

        Raises a `ValueError` if the image is larger than the input.
        """
        size = math.prod(self.image_shape)
        if size > input_size:
            raise ValueError(
                f"`image_shape={self.image_shape}` has {size} elements, but the input "
                f"of the network only {input_size}. `env.spec.observation_shape` is "
                "the shape of an image."
            )
        *_, (shape, channels, kernel, stride) = self._layers()
        features = math.prod(_places(shape, kernel, stride)) * channels
        return features + input_size - size

    def __call__(
        self, *, precision: Precision = "float32", key: PRNGKeyArray
    ) -> ImageEncoder | Encoded:
        """One encoder with fresh weights; an `Encoded` if it has several layers."""
        layers = list(self._layers())
        keys = jr.split(key, len(layers)) if len(layers) > 1 else [key]
        first, *others = (
            ImageEncoder(
                Linear(
                    kernel**2 * shape[2],
                    channels,
                    precision=precision,
                    key=layer_key,
                ),
                shape,
                kernel,
                stride,
            )
            for (shape, channels, kernel, stride), layer_key in zip(
                layers, keys, strict=True
            )
        )
        return functools.reduce(Encoded, others, first)


Network = MLP | ResidualMLP | Encoded
"""Networks that a `NetworkFactory` builds on."""


@dataclasses.dataclass(frozen=True)
class NetworkFactory:
    """Shared interface of network factories.

    Frozen dataclasses are compared by value, so that modules with equal factories among
    their static fields share a compilation.

    **Arguments:**

    - `hidden_sizes`: width of each hidden layer, or of each residual block.
    - `activation`: elementwise; a function defined once.
    - `layer_norm`: whether each hidden layer is normalized before its activation.
    - `residual`: whether the network is a `ResidualMLP`, which is normalized anyway,
        rather than an `MLP`.
    - `encoder`: reads the image at the beginning of the input; `None` if there is
        none.
    - `precision`: "float32", or "bfloat16" for products of factors that are rounded to
        bfloat16, with sums in float32, forward and in the gradients. Everything else
        stays in float32: weights, biases, normalizations, the output, the optimizer,
        and layers with fewer than 64 inputs or outputs. It is faster on CPUs with AMX
        or AVX512-BF16, where it was measured, and meant for GPUs, too. Other CPUs
        multiply the rounded factors in float32. With `jax_enable_x64`, weights are
        64-bit floats, and it has no effect.
    """

    hidden_sizes: tuple[int, ...] = (256, 256)
    activation: Activation = jax.nn.relu
    layer_norm: bool = dataclasses.field(default=False, kw_only=True)
    residual: bool = dataclasses.field(default=False, kw_only=True)
    encoder: Convolution | None = dataclasses.field(default=None, kw_only=True)
    precision: Precision = dataclasses.field(default="float32", kw_only=True)

    def __post_init__(self) -> None:
        check_layers(self.hidden_sizes)
        check_callable("activation", self.activation)
        if not isinstance(self.hidden_sizes, tuple):
            raise ValueError(
                f"`hidden_sizes={shown(self.hidden_sizes)}` must be a tuple, such as "
                f"{tuple(self.hidden_sizes)}: equal factories share a compilation."
            )
        for name in ("layer_norm", "residual"):
            if not isinstance(flag := getattr(self, name), bool):
                raise ValueError(f"`{name}={shown(flag)}` must be True or False.")
        if self.layer_norm and self.residual:
            raise ValueError(
                "`layer_norm=True` and `residual=True`: residual blocks are normalized "
                "anyway; leave `layer_norm` out."
            )
        if self.encoder is not None and not isinstance(self.encoder, Convolution):
            raise ValueError(
                f"`encoder={shown(self.encoder)}` must be an `eqrl.nn.Convolution`."
            )
        check_choice("precision", self.precision, get_args(Precision))

    def _network(
        self, input_size: int, output_size: int, *, key: PRNGKeyArray
    ) -> Network:
        if self.precision == "bfloat16" and products_of_bfloat16() != "bfloat16":
            warnings.warn(
                "`precision='bfloat16'`: this processor has no instructions for it, so "
                "factors are rounded to bfloat16 and multiplied in float32, without a "
                "gain in speed.",
                stacklevel=2,
            )
        encoder = None
        if self.encoder is not None:
            encoder_key, key = jr.split(key)
            input_size = self.encoder.output_size(input_size)
            encoder = self.encoder(precision=self.precision, key=encoder_key)
        sizes = (input_size, output_size, self.hidden_sizes, self.activation)
        if self.residual:
            network = ResidualMLP(*sizes, precision=self.precision, key=key)
        else:
            network = MLP(
                *sizes, layer_norm=self.layer_norm, precision=self.precision, key=key
            )
        return network if encoder is None else Encoded(encoder, network)


VectorFunction = Callable[[Float[Array, " inputs"]], Float[Array, " outputs"]]
"""From one vector to another, such as from a descriptor to a representation."""


@dataclasses.dataclass(frozen=True)
class Features(NetworkFactory):
    """Makes a network from one vector to another. Equal factories share a compilation.

    **Arguments:** those of `NetworkFactory`.
    """

    def __call__(
        self, input_size: int, output_size: int, *, key: PRNGKeyArray
    ) -> Network:
        """One network with fresh weights and a linear output."""
        return self._network(input_size, output_size, key=key)


def orthogonal(network: Network, gain: float, *, key: PRNGKeyArray) -> Network:
    """The same network with orthogonal weights and no biases.

    Weights of the hidden layers are multiplied by the square root of 2, those of the
    output, its last layer, by `gain`.
    """
    layers = parts(network, Linear)
    # The usual gain of hidden layers: ReLU halves the mean square of its input.
    gains = [math.sqrt(2)] * (len(layers) - 1) + [gain]
    keys = jr.split(key, len(layers))
    made: list[Linear] = []
    for layer, scale, layer_key in zip(layers, gains, keys, strict=True):
        rows, columns = layer.weight.shape
        weight = scale * orthonormal((rows, columns), key=layer_key)
        weight = weight.astype(layer.weight.dtype)
        made.append(
            eqx.tree_at(lambda x: (x.weight, x.bias), layer, (weight, 0 * layer.bias))
        )
    return eqx.tree_at(lambda x: parts(x, Linear), network, made)


def orthonormal(
    shape: tuple[int, int], *, key: PRNGKeyArray
) -> Float[Array, "rows columns"]:
    """A matrix drawn uniformly from those whose shorter side is orthonormal.

    It is made by the Gram-Schmidt method, in JAX's own operations. On a CPU JAX's QR
    decompositions of two stacks of matrices can wait for each other forever, each
    holding a thread that the other one needs: seen with two cores, when several seeds
    were initialized together.
    """
    drawn = jr.normal(key, (max(shape), min(shape)))

    def add_column(
        index: Int[Array, ""], basis: Float[Array, "long short"]
    ) -> Float[Array, "long short"]:
        column = drawn[:, index]
        # Later columns are still 0. Done twice, because of rounding.
        for _ in range(2):
            column = column - basis @ (basis.T @ column)
        return basis.at[:, index].set(column / jnp.linalg.norm(column))

    basis = lax.fori_loop(0, min(shape), add_column, jnp.zeros_like(drawn))
    return basis if shape[0] >= shape[1] else basis.T
