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
    Critic,
    Deterministic,
    Gaussian,
    NormalDiscriminator,
    VonMisesFisherDiscriminator,
)
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


@pytest.mark.parametrize("leaf", ["weight", "bias"])
def test_layers_start_within_one_over_the_root_of_their_inputs(
    leaf: str, getkey: GetKey
) -> None:
    mlp = MLP(4, 300, (100,), key=getkey())
    spread = [float(np.max(np.abs(getattr(layer, leaf)))) for layer in mlp.layers]
    assert 0.45 < spread[0] <= 0.5
    assert 0.09 < spread[1] <= 0.1


def test_layers_of_an_mlp_start_with_weights_of_their_own(getkey: GetKey) -> None:
    mlp = MLP(4, 4, (4,), key=getkey())
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
