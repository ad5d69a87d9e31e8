import math
from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float

from eqrl import nn

from ..toy import GetKey


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


def certain_normal(outputs: Float[Array, "3"]) -> nn.DiagonalNormal:
    return nn.NormalNetwork(lambda x: outputs[jnp.array([0, 2])] + 0 * x)(jnp.ones(1))


def certain_von_mises_fisher(outputs: Float[Array, "3"]) -> nn.VonMisesFisher:
    return nn.VonMisesFisherNetwork(lambda x: outputs + 0 * x)(jnp.ones(1))


@pytest.mark.parametrize(
    ("network", "certain", "least"),
    [
        (certain_von_mises_fisher, [1.0, 0.0, 9.0], math.log(2 * math.pi)),
        (certain_normal, [0.0, 0.0, -9.0], 0.5 * math.log(2 * math.pi * math.e)),
    ],
)
def test_a_network_that_was_certain_becomes_uncertain_again(
    network: Callable[[Array], nn.AbstractSkillDistribution],
    certain: list[float],
    least: float,
) -> None:
    # Of two opposite skills one is as likely as the other, whatever the network sees.
    skills = jnp.array([[1.0, 0.0], [-1.0, 0.0]])

    @jax.jit
    @jax.value_and_grad
    def loss_of(outputs: Float[Array, "3"]) -> Float[Array, ""]:
        distribution = network(outputs)
        length = distribution.mode().shape[0]
        return -jnp.mean(jax.vmap(distribution.log_prob)(skills[:, :length]))

    outputs, loss = jnp.array(certain), math.inf
    for _ in range(40):
        # A step of fixed length, as of Adam.
        loss, gradient = loss_of(outputs)
        outputs = outputs.at[2].add(-0.4 * jnp.sign(gradient[2]))
    assert loss < least + 0.2


@pytest.mark.parametrize(("output", "high", "low"), [(9.0, 0, 1), (-9.0, 1, 0)])
def test_beyond_a_bound_only_what_leads_back_has_a_gradient(
    output: float, high: float, low: float
) -> None:
    def log_scale(output: Array, sign: float) -> Array:
        network = nn.NormalNetwork(lambda x: jnp.append(x, output))
        return sign * network(jnp.ones(1)).log_scale[0]

    # A loss is descended, so 1 leads down and -1 up.
    for value, expected in ((output, (low, -high)), (0.5, (1, -1))):
        found = [jax.grad(log_scale)(jnp.asarray(value), sign) for sign in (1.0, -1.0)]
        np.testing.assert_array_equal(found, expected)


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
