import math

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, PRNGKeyArray

import eqrl

from ..toy import GetKey


def draw(prior: eqrl.AbstractSkillPrior, num: int, key: PRNGKeyArray) -> Array:
    return jax.vmap(lambda index, key: prior.sample(index=index, key=key))(
        jnp.arange(num), jr.split(key, num)
    )


def test_one_hot_skills_are_drawn_by_their_weights(getkey: GetKey) -> None:
    drawn = draw(eqrl.OneHotSkills(3, [1.0, 3.0, 0.0]), 4000, getkey())
    assert set(np.unique(drawn)) == {0, 1}
    np.testing.assert_array_equal(drawn.sum(axis=1), 1)
    frequencies = drawn.mean(axis=0)
    # Five standard deviations.
    np.testing.assert_allclose(frequencies[:2], [0.25, 0.75], atol=0.035)
    assert frequencies[2] == 0


def test_one_hot_skills_without_weights_are_equally_likely(getkey: GetKey) -> None:
    prior = eqrl.OneHotSkills(4)
    drawn = draw(prior, 4000, getkey())
    np.testing.assert_array_equal(drawn.sum(axis=1), 1)
    np.testing.assert_allclose(drawn.mean(axis=0), 0.25, atol=0.035)
    np.testing.assert_allclose(prior.log_prob(drawn[0]), -math.log(4), rtol=1e-6)
    assert jax.tree.leaves(prior) == []


def test_log_prob_of_one_hot_skills_is_that_of_their_share() -> None:
    prior = eqrl.OneHotSkills(3, [1.0, 3.0, 0.0])
    log_probs = jax.vmap(prior.log_prob)(jnp.eye(3))
    np.testing.assert_allclose(
        log_probs, [math.log(0.25), math.log(0.75), -math.inf], rtol=1e-6
    )


def test_one_skill_can_be_chosen_by_tree_at(getkey: GetKey) -> None:
    prior = eqrl.OneHotSkills(4, [1.0, 2.0, 3.0, 4.0])
    chosen = eqx.tree_at(lambda p: p.weights, prior, jnp.array([0.0, 0.0, 1.0, 0.0]))
    np.testing.assert_array_equal(
        draw(chosen, 20, getkey()), np.tile([0, 0, 1, 0], (20, 1))
    )


@pytest.mark.parametrize("num_envs", [6, 4])
def test_even_skills_are_assigned_in_turn(num_envs: int, getkey: GetKey) -> None:
    # Four environments are no multiple of three skills: the first has two of them.
    prior = eqrl.EvenOneHotSkills(3)
    drawn = draw(prior, num_envs, getkey())
    expected = [0, 1, 2, 0, 1, 2][:num_envs]
    np.testing.assert_array_equal(drawn.argmax(axis=1), expected)
    np.testing.assert_allclose(prior.log_prob(drawn[0]), -math.log(3), rtol=1e-6)


@pytest.mark.parametrize(("size", "area"), [(2, 2 * math.pi), (3, 4 * math.pi)])
def test_sphere_skills_are_unit_vectors_all_around(
    size: int, area: float, getkey: GetKey
) -> None:
    prior = eqrl.SphereSkills(size)
    drawn = draw(prior, 4000, getkey())
    np.testing.assert_allclose(jnp.linalg.norm(drawn, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=0.06)
    np.testing.assert_allclose((drawn**2).mean(axis=0), 1 / size, atol=0.03)
    np.testing.assert_allclose(prior.log_prob(drawn[0]), -math.log(area), rtol=1e-5)


def test_normal_skills_have_the_density_of_the_standard_normal(
    getkey: GetKey,
) -> None:
    prior = eqrl.NormalSkills(2)
    drawn = draw(prior, 4000, getkey())
    np.testing.assert_allclose(drawn.mean(axis=0), 0, atol=0.08)
    np.testing.assert_allclose(drawn.std(axis=0), 1, atol=0.06)
    log_prob = prior.log_prob(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(log_prob, -math.log(2 * math.pi) - 2.5, rtol=1e-6)


@pytest.mark.parametrize("prior", [eqrl.OneHotSkills, eqrl.EvenOneHotSkills])
@pytest.mark.parametrize("num_skills", [1, 0])
def test_there_are_two_skills_at_least(prior: type, num_skills: int) -> None:
    with pytest.raises(ValueError, match="num_skills"):
        prior(num_skills)


@pytest.mark.parametrize(
    "weights", [[1.0, 2.0], [0.0, 0.0, 0.0], [1.0, -1.0, 1.0], [1.0, math.nan, 1.0]]
)
def test_weights_that_are_none_are_refused(weights: list[float]) -> None:
    with pytest.raises(ValueError, match="`weights"):
        eqrl.OneHotSkills(3, weights)


def test_a_circle_is_the_least_of_spheres() -> None:
    with pytest.raises(ValueError, match="num_dimensions"):
        eqrl.SphereSkills(1)


def test_what_is_no_prior_is_refused() -> None:
    with pytest.raises(ValueError, match="OneHotSkills"):
        eqrl.SkillConditioned(eqrl.SAC(), "eight")  # pyright: ignore[reportArgumentType]


def test_uniform_skills_fill_their_cube(getkey: GetKey) -> None:
    prior = eqrl.UniformSkills(3, low=0.0, high=2.0)
    drawn = np.asarray(draw(prior, 4000, getkey()))
    assert drawn.min() >= 0
    assert drawn.max() <= 2
    np.testing.assert_allclose(drawn.mean(axis=0), 1, atol=0.05)
    np.testing.assert_allclose(drawn.var(axis=0), 4 / 12, atol=0.03)
    np.testing.assert_allclose(prior.log_prob(jnp.ones(3)), -3 * math.log(2), rtol=1e-6)
    assert prior.log_prob(jnp.array([1.0, 1.0, 2.1])) == -jnp.inf
    with pytest.raises(ValueError, match=r"`low=1.*` must be less than `high=1"):
        eqrl.UniformSkills(2, low=1.0)
