from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import PRNGKeyArray

from eqrl import nn


GetKey = Callable[[], PRNGKeyArray]


def test_a_categorical_network_gives_its_outputs_as_logits() -> None:
    network = nn.CategoricalNetwork(lambda x: jnp.stack([x[0], 2 * x[0]]))
    np.testing.assert_array_equal(network(jnp.array([3.0])).logits, [3, 6])


def test_a_normal_network_clips_its_scale() -> None:
    network = nn.NormalNetwork(lambda x: jnp.concatenate([x, jnp.array([-9.0, 9.0])]))
    distribution = network(jnp.array([1.0, 2.0]))
    np.testing.assert_array_equal(distribution.mean, [1, 2])
    np.testing.assert_array_equal(distribution.log_scale, [-3, 2])


@pytest.mark.parametrize(
    ("output", "concentration"), [(0.0, 1.0), (-9.0, np.exp(-3)), (9.0, np.exp(5))]
)
def test_a_von_mises_fisher_network_gives_a_unit_vector_and_clips(
    output: float, concentration: float
) -> None:
    network = nn.VonMisesFisherNetwork(
        lambda x: jnp.concatenate([x, jnp.array([output])])
    )
    distribution = network(jnp.array([3.0, 4.0]))
    np.testing.assert_allclose(distribution.direction, [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(distribution.concentration, concentration, rtol=1e-6)


@pytest.mark.parametrize(
    "factory",
    [
        nn.CategoricalDiscriminator((8,)),
        nn.NormalDiscriminator((8,)),
        nn.VonMisesFisherDiscriminator((8,)),
    ],
)
def test_a_factory_makes_a_network_for_skills_of_the_size(
    factory: Callable[..., nn.SkillDiscriminator], getkey: GetKey
) -> None:
    mode = eqx.filter_eval_shape(
        lambda key: factory(4, 3, key=key)(jnp.ones(4)).mode(), getkey()
    )
    assert mode.shape == (3,)
