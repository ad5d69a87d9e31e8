from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import pytest
from jaxtyping import Array, PRNGKeyArray

from eqrl._pytree.tree import parts
from eqrl.nn import (
    ActionValues,
    Choice,
    Convolution,
    Critic,
    Encoded,
    Gaussian,
    ImageEncoder,
    Value,
)
from tests.toy import GetKey


SHAPE = (5, 4, 2)
SIZE = 40


def convolved(
    image: np.ndarray, filters: Any, kernel: int = 3, stride: int = 1
) -> np.ndarray:
    """A convolution with ReLU, by loops."""
    weight, bias = np.asarray(filters.weight), np.asarray(filters.bias)
    rows = range(0, image.shape[0] - kernel + 1, stride)
    columns = range(0, image.shape[1] - kernel + 1, stride)
    features = np.zeros((len(rows), len(columns), len(bias)))
    for row in rows:
        for column in columns:
            seen = image[row : row + kernel, column : column + kernel].reshape(-1)
            place = (row // stride, column // stride)
            features[place] = np.maximum(seen @ weight + bias, 0)
    return features


def test_an_encoder_convolves_the_image_and_hands_on_the_rest(getkey: GetKey) -> None:
    encoder = Convolution(SHAPE, channels=3)(key=getkey())
    x = np.asarray(jr.normal(getkey(), (SIZE + 2,)))
    assert isinstance(encoder, ImageEncoder)
    features = convolved(x[:SIZE].reshape(SHAPE), encoder.filters)
    expected = np.concatenate([features.reshape(-1), x[SIZE:]])
    np.testing.assert_allclose(encoder(jnp.asarray(x)), expected, rtol=1e-5, atol=1e-6)
    # As many numbers as the layer behind it is made for.
    assert Convolution(SHAPE, channels=3).output_size(SIZE + 2) == len(expected)


def test_layers_follow_each_other(getkey: GetKey) -> None:
    shape, size = (9, 8, 2), 144
    factory = Convolution(shape, (3, 4, 5), kernels=(4, 2, 1), strides=(2, 1, 1))
    encoder, x = factory(key=getkey()), np.asarray(jr.normal(getkey(), (size + 2,)))
    features = x[:size].reshape(shape)
    # The second row of places of the first filters ends in the sixth row of the image,
    # so the ninth is not seen.
    for layer, kernel, stride in zip(
        parts(encoder, ImageEncoder), (4, 2, 1), (2, 1, 1), strict=True
    ):
        features = convolved(features, layer.filters, kernel, stride)
    assert features.shape == (2, 2, 5)
    first, second, _ = (x.filters.weight for x in parts(encoder, ImageEncoder))
    drawn = [np.ravel(x)[:9] * len(x) ** 0.5 for x in (first, second)]
    assert not np.any(np.isclose(*drawn))
    expected = np.concatenate([features.reshape(-1), x[size:]])
    encoded = eqx.filter_jit(encoder)(jnp.asarray(x))
    np.testing.assert_allclose(encoded, expected, rtol=1e-4, atol=1e-6)
    assert factory.output_size(size + 2) == len(expected)
    # One number is that of every layer.
    assert Convolution((9, 9, 1), (2, 3)).output_size(81) == 5 * 5 * 3
    atari = Convolution((84, 84, 4), (32, 64, 64), (8, 4, 3), (4, 2, 1))
    assert atari.output_size(84 * 84 * 4) == 7 * 7 * 64


def test_every_factory_takes_an_encoder(getkey: GetKey) -> None:
    encoder = Convolution(SHAPE, channels=3)
    x, key = jr.normal(getkey(), (SIZE,)), getkey()

    def traced(make: Any, *sizes: int) -> tuple[Any, Any]:
        """A network of these sizes and what it gives, as shapes."""

        def run(x: Array, key: PRNGKeyArray) -> tuple[Any, Any]:
            network = make(*sizes, key=key)
            return network, network(x)

        return eqx.filter_eval_shape(run, x, key)

    policy, distribution = traced(Gaussian((8,), encoder=encoder), SIZE, 2)
    assert isinstance(policy.network, Encoded) and distribution.mean.shape == (2,)
    assert traced(Choice(encoder=encoder), SIZE, 3)[1].logits.shape == (3,)
    assert traced(Value(encoder=encoder), SIZE)[1].shape == ()
    dueling = ActionValues((8,), dueling=True, encoder=encoder, layer_norm=True)
    assert traced(dueling, SIZE, 3)[1].shape == (3,)
    # The action is behind the image.
    critic = Critic((8,), encoder=encoder)(SIZE, 2, key=key)
    values = {float(critic(x, jnp.full(2, action))) for action in (0.0, 1.0)}
    assert len(values) == 2


@pytest.mark.parametrize("shape", [(5, 4), (2, 5, 1), (5, 4, 0), [5, 4, 1]])
def test_a_shape_of_no_image_is_refused(
    shape: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Where types are checked at run time, that finds it first.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=r"`image_shape=.*height, width and"):
        Convolution(shape)  # pyright: ignore[reportArgumentType]


def test_an_image_larger_than_the_observation_is_refused(
    getkey: GetKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=r"has 40 elements, but the input.*39"):
        Value(encoder=Convolution(SHAPE))(SIZE - 1, key=getkey())
    for wrong in (0, (), (2, 0), (2, 3, 4)):
        with pytest.raises(ValueError, match=r"`channels=.*`kernels=\(2, 1\)`"):
            Convolution(SHAPE, channels=wrong, kernels=(2, 1))
    with pytest.raises(ValueError, match=r"`kernels=\(3, 3\)` in any layer"):
        Convolution(SHAPE, kernels=(3, 3))
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match="`encoder=3` must be"):
        Value(encoder=3)  # pyright: ignore[reportArgumentType]
