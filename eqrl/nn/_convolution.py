import dataclasses
import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._pytree.fields import shown
from ._mlp import Linear, is_size


# Height and width of what a filter sees.
_WINDOW = 3


class ImageEncoder(eqx.Module):
    """A convolution of the image with which a flat observation begins.

    What is behind the image, such as a skill or an action, is handed on.
    """

    filters: Linear
    image_shape: tuple[int, int, int] = eqx.field(static=True)

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " features"]:
        """The features of the image, not negative, then what is behind it."""
        height, width, _ = self.image_shape
        size = math.prod(self.image_shape)
        image = x[:size].reshape(self.image_shape)
        rows, columns = height - _WINDOW + 1, width - _WINDOW + 1
        # Products of matrices stay such where networks are stacked; a convolution of
        # XLA with many sets of filters is slow on a CPU.
        patches = jnp.concatenate(
            [
                image[row : row + rows, column : column + columns]
                for row in range(_WINDOW)
                for column in range(_WINDOW)
            ],
            axis=-1,
        )
        patches = patches.reshape(rows * columns, -1)
        features = jax.nn.relu(jax.vmap(self.filters)(patches))
        return jnp.concatenate([features.reshape(-1), x[size:]])


ImageEncoder.__init__.__doc__ = """**Arguments:**

- `filters`: from the pixels of 3 by 3 places, row by row, channels last, to the
    channels of one place.
- `image_shape`: height, width and channels.
"""


class Encoded(eqx.Module):
    """A network of what an encoder makes of its input."""

    encoder: ImageEncoder
    network: Callable[[Float[Array, " features"]], Float[Array, " outputs"]]

    def __call__(self, x: Float[Array, " inputs"]) -> Float[Array, " outputs"]:
        """Maps one input vector to one output vector."""
        return self.network(self.encoder(x))


Encoded.__init__.__doc__ = """**Arguments:**

- `encoder`: from the input to features.
- `network`: from these to the output.
"""


@dataclasses.dataclass(frozen=True)
class Convolution:
    """Makes an `ImageEncoder`. Equal factories share a compilation.

    It has filters of 3 by 3 with a stride of 1, without padding, and ReLU, as the
    networks of MinAtar ([Young and Tian 2019](https://arxiv.org/abs/1903.03176)).

    **Arguments:**

    - `image_shape`: height, width and channels of the image, of which an observation
        was flattened; see `EnvSpec.observation_shape`.
    - `channels`: number of filters.
    """

    image_shape: tuple[int, int, int]
    channels: int = 16

    def __post_init__(self) -> None:
        shape = self.image_shape
        is_shape = isinstance(shape, tuple) and len(shape) == 3
        if not is_shape or not all(map(is_size, shape)) or min(shape[:2]) < _WINDOW:
            raise ValueError(
                f"`image_shape={shown(shape)}` must be a tuple of height, width and "
                f"channels, the first two at least {_WINDOW}, such as (10, 10, 4)."
            )
        if not is_size(self.channels):
            raise ValueError(
                f"`channels={shown(self.channels)}` must be an integer, at least 1."
            )

    def output_size(self, input_size: int) -> int:
        """Length of the features of an input of this length.

        Raises a `ValueError` if the image is larger than the input.
        """
        height, width, _ = self.image_shape
        size = math.prod(self.image_shape)
        if size > input_size:
            raise ValueError(
                f"`image_shape={self.image_shape}` has {size} elements, but the input "
                f"of the network only {input_size}. `env.spec.observation_shape` is "
                "the shape of an image."
            )
        places = (height - _WINDOW + 1) * (width - _WINDOW + 1)
        return places * self.channels + input_size - size

    def __call__(self, *, key: PRNGKeyArray) -> ImageEncoder:
        """One encoder with fresh weights."""
        pixels = _WINDOW**2 * self.image_shape[2]
        return ImageEncoder(Linear(pixels, self.channels, key=key), self.image_shape)
