from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

from eqrl.nn import (
    MLP,
    CategoricalDiscriminator,
    Choice,
    Critic,
    Deterministic,
    Gaussian,
    Normal,
    NormalDiscriminator,
    ResidualMLP,
    Value,
    VonMisesFisherDiscriminator,
)
from eqrl.nn._factory import orthonormal
from eqrl.nn._mlp import Linear
from tests.toy import GetKey


FACTORIES = [
    Gaussian,
    Deterministic,
    Critic,
    CategoricalDiscriminator,
    NormalDiscriminator,
    VonMisesFisherDiscriminator,
]
Factory = Callable[..., Any]


@pytest.mark.parametrize("hidden_sizes", [(), (5,), (5, 7, 2)])
def test_mlp_multiplies_adds_and_activates_between_layers(
    hidden_sizes: tuple[int, ...], getkey: GetKey
) -> None:
    mlp = MLP(3, 4, hidden_sizes, jax.nn.relu, key=getkey())
    x = jr.normal(getkey(), (3,))
    expected = np.asarray(x)
    for index, layer in enumerate(mlp.layers):
        expected = expected @ np.asarray(layer.weight) + np.asarray(layer.bias)
        if index < len(hidden_sizes):
            expected = np.maximum(expected, 0)
    np.testing.assert_allclose(mlp(x), expected, rtol=1e-5, atol=1e-6)


def test_mlp_has_the_widths_asked_for(getkey: GetKey) -> None:
    mlp = MLP(3, 4, (5, 7), key=getkey())
    assert [layer.weight.shape for layer in mlp.layers] == [(3, 5), (5, 7), (7, 4)]


def test_layers_are_those_that_would_be_made_one_by_one(getkey: GetKey) -> None:
    key = getkey()
    mlp = MLP(3, 4, (5, 7), key=jr.clone(key))
    for layer, size, layer_key in zip(
        mlp.layers, (3, 5, 7), jr.split(key, 3), strict=True
    ):
        alone = Linear(size, layer.bias.shape[0], key=layer_key)
        np.testing.assert_array_equal(layer.weight, alone.weight)
        np.testing.assert_array_equal(layer.bias, alone.bias)


@pytest.mark.parametrize("leaf", ["weight", "bias"])
def test_layers_start_within_one_over_the_root_of_their_inputs(
    leaf: str, getkey: GetKey
) -> None:
    mlp = MLP(4, 300, (100,), key=getkey())
    spread = [float(np.max(np.abs(getattr(layer, leaf)))) for layer in mlp.layers]
    assert 0.45 < spread[0] <= 0.5
    assert 0.09 < spread[1] <= 0.1


def test_layers_of_an_mlp_start_with_weights_of_their_own(getkey: GetKey) -> None:
    # Drawn as one, and, with keys of this kind, one after another.
    for key in (getkey(), jr.key(0, impl="rbg")):
        mlp = MLP(4, 4, (4,), key=key)
        assert np.all(mlp.layers[0].weight != mlp.layers[1].weight)


@pytest.mark.parametrize("make", FACTORIES)
def test_factories_use_the_hidden_sizes_and_the_activation(
    make: Factory, getkey: GetKey
) -> None:
    network = make(hidden_sizes=(8, 6), activation=jnp.zeros_like)(2, 1, key=getkey())
    layers = network.network.layers
    assert [layer.weight.shape[1] for layer in layers[:-1]] == [8, 6]
    np.testing.assert_array_equal(
        network.network(jnp.ones(2 + (make is Critic))), layers[-1].bias
    )


def test_factories_are_compared_by_value() -> None:
    made = [make(hidden_sizes=(8,)) for make in FACTORIES]
    for make, first in zip(FACTORIES, made, strict=True):
        second = make(hidden_sizes=(8,))
        assert first == second
        assert hash(first) == hash(second)
        assert first != make(hidden_sizes=(9,))
        assert first != make(hidden_sizes=(8,), activation=jnp.tanh)
        # Nor is it equal to a factory of another kind.
        assert [first == other for other in made].count(True) == 1


class _Holder(eqx.Module):
    make: Factory = eqx.field(static=True)


@pytest.mark.parametrize("make", FACTORIES)
def test_equal_factories_share_a_trace(make: Factory) -> None:
    num_traces = 0

    @eqx.filter_jit
    def trace(holder: _Holder) -> None:
        nonlocal num_traces
        del holder
        num_traces += 1

    trace(_Holder(make(hidden_sizes=(8,))))
    trace(_Holder(make(hidden_sizes=(8,))))
    assert num_traces == 1
    trace(_Holder(make(hidden_sizes=(9,))))
    assert num_traces == 2


@pytest.mark.parametrize("make", FACTORIES)
def test_hidden_sizes_are_a_tuple_of_positive_integers(make: Factory) -> None:
    for hidden_sizes in ((0,), (8, -1)):
        with pytest.raises(
            ValueError, match=r"hidden_sizes.*tuple of positive integers"
        ):
            make(hidden_sizes=hidden_sizes)


def _normalized(x: np.ndarray) -> np.ndarray:
    return (x - x.mean()) / np.sqrt(x.var() + 1e-5)


def _through(layer: Any, x: np.ndarray) -> np.ndarray:
    return x @ np.asarray(layer.weight) + np.asarray(layer.bias)


def test_layers_are_normalized_before_their_activation(getkey: GetKey) -> None:
    mlp = MLP(3, 2, (5, 4), layer_norm=True, key=getkey())
    x = np.asarray(jr.normal(getkey(), (3,)))
    expected = x
    for layer in mlp.layers[:-1]:
        expected = np.maximum(_normalized(_through(layer, expected)), 0)
    expected = _through(mlp.layers[-1], expected)
    np.testing.assert_allclose(mlp(jnp.asarray(x)), expected, rtol=1e-4, atol=1e-5)


def test_residual_blocks_add_to_what_they_are_given(getkey: GetKey) -> None:
    network = ResidualMLP(3, 2, (4, 4), jnp.tanh, key=getkey())
    x = np.asarray(jr.normal(getkey(), (3,)))
    stream = _through(network.input, x)
    for block in network.blocks:
        wide = np.tanh(_through(block.widening, _normalized(stream)))
        stream = stream + _through(block.narrowing, wide)
    first, second = (np.asarray(x.widening.weight) for x in network.blocks)
    assert first.shape == (4, 16) and np.all(first != second)
    # Both layers of a block, too, are drawn alone.
    assert np.all(first.ravel() != 2 * network.blocks[0].narrowing.weight.ravel())
    expected = _through(network.output, _normalized(stream))
    np.testing.assert_allclose(network(jnp.asarray(x)), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="must be the same width"):
        ResidualMLP(3, 2, (4, 5), key=getkey())
    with pytest.raises(ValueError, match="leave `layer_norm` out"):
        Critic(layer_norm=True, residual=True)
    made = Gaussian((4,), residual=True)(3, 2, key=getkey())
    assert isinstance(made.network, ResidualMLP)


@pytest.mark.parametrize(
    "make, gain",
    [
        (lambda key: Choice((6, 5))(3, 2, key=key), 0.01),
        (lambda key: Normal((6, 5))(3, 2, key=key), 0.01),
        (lambda key: Value((6, 5))(3, key=key), 1.0),
    ],
    ids=["Choice", "Normal", "Value"],
)
def test_weights_on_policy_are_orthogonal(
    make: Callable[..., Any], gain: float, getkey: GetKey
) -> None:
    layers = make(getkey()).network.layers
    for layer, scale in zip(layers, (2**0.5, 2**0.5, gain), strict=True):
        weight = np.asarray(layer.weight, np.float64)
        # Of the shorter of its two sides.
        product = (
            weight.T @ weight if len(weight) > weight.shape[1] else weight @ weight.T
        )
        np.testing.assert_allclose(product, scale**2 * np.eye(len(product)), atol=1e-5)
        assert not np.any(layer.bias)


@pytest.mark.parametrize("shape", [(1, 5), (70, 30), (40, 40)])
def test_orthonormal_matrices_are_drawn_without_lapack(
    shape: tuple[int, int], getkey: GetKey
) -> None:
    make = lambda key: orthonormal(shape, key=key)
    first, second = (np.asarray(make(getkey()), np.float64) for _ in range(2))
    short = first.T @ first if shape[0] > shape[1] else first @ first.T
    np.testing.assert_allclose(short, np.eye(min(shape)), atol=3e-6)
    assert np.max(np.abs(first - second)) > 0.1
    # Stacks of its decompositions can wait for each other for ever.
    assert "householder" not in str(jax.make_jaxpr(make)(getkey()))
