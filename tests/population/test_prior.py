from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from jaxtyping import Array, PRNGKeyArray

import eqrl
from eqrl import AbstractPrior, LogUniform, OneMinus, Uniform
from eqrl._population.prior import find_path, name_of_option

from ..toy import GetKey


def samples(prior: AbstractPrior, key: PRNGKeyArray) -> Array:
    return jax.vmap(lambda key: prior.sample(key=key))(jr.split(key, 2_000))


def perturbed(prior: AbstractPrior, value: float, key: PRNGKeyArray) -> list[float]:
    values = jax.vmap(lambda key: prior.perturb(jnp.asarray(value), key=key))(
        jr.split(key, 50)
    )
    return sorted({round(float(each), 5) for each in values})


def test_uniform_samples_are_even_over_the_range(getkey: GetKey) -> None:
    values = samples(Uniform(2.0, 4.0), getkey())
    assert jnp.all((values >= 2) & (values <= 4))
    assert jnp.mean(values < 2.5) == pytest.approx(0.25, abs=0.04)


def test_log_uniform_samples_are_even_over_the_logarithms(getkey: GetKey) -> None:
    values = samples(LogUniform(1e-4, 1e-2), getkey())
    assert jnp.all((values >= 1e-4) & (values <= 1e-2))
    assert jnp.mean(values < 1e-3) == pytest.approx(0.5, abs=0.04)


def test_one_minus_mirrors_its_prior(getkey: GetKey) -> None:
    values = samples(OneMinus(LogUniform(1e-3, 1e-1)), getkey())
    assert jnp.all((values >= 0.9) & (values <= 0.999))
    assert jnp.mean(values > 0.99) == pytest.approx(0.5, abs=0.04)


@pytest.mark.parametrize(
    ("prior", "value", "expected"),
    [
        (Uniform(0.0, 10.0), 4.0, [3.2, 5.0]),
        (LogUniform(1e-3, 10.0), 0.04, [0.032, 0.05]),
        # One minus 0.04 times 1.25 or 0.8.
        (OneMinus(LogUniform(1e-3, 1e-1)), 0.96, [0.95, 0.968]),
    ],
    ids=["uniform", "log-uniform", "one minus"],
)
def test_a_perturbation_is_a_factor_in_the_prior_s_coordinates(
    prior: AbstractPrior, value: float, expected: list[float], getkey: GetKey
) -> None:
    assert perturbed(prior, value, getkey()) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(
    ("prior", "value", "expected"),
    [
        (Uniform(3.9, 4.1), 4.0, [3.9, 4.1]),
        (LogUniform(0.039, 0.041), 0.04, [0.039, 0.041]),
        (OneMinus(LogUniform(0.039, 0.041)), 0.96, [0.959, 0.961]),
    ],
    ids=["uniform", "log-uniform", "one minus"],
)
def test_a_perturbation_stays_in_the_range(
    prior: AbstractPrior, value: float, expected: list[float], getkey: GetKey
) -> None:
    assert perturbed(prior, value, getkey()) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("bounds", [(2.0, 1.0), (1.0, 1.0)])
def test_bounds_in_the_wrong_order_are_refused(bounds: tuple[float, float]) -> None:
    with pytest.raises(ValueError, match="`high=1` is out of range"):
        Uniform(*bounds)


def test_priors_are_made_in_a_compiled_program() -> None:
    make = eqx.filter_jit(eqx.filter_vmap(Uniform))
    mapped = make(jnp.array([0.1, 0.2]), jnp.array([1.0, 2.0]))
    assert jnp.array_equal(mapped.low, jnp.array([0.1, 0.2]))


def test_a_logarithm_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="`low=0` is out of range"):
        LogUniform(0.0, 1.0)


def test_a_name_that_several_paths_end_in_is_ambiguous_but_for_an_option() -> None:
    trainer = eqrl.Trainer.on_policy(num_envs=2, num_steps=8)
    agent: Any = eqrl.Normalized(eqrl.PPO())
    listed = r"`clip` could be any of \['agent.clip', 'clip'\].* `\.clip`"
    with pytest.raises(ValueError, match=listed):
        find_path(agent, trainer, "clip")
    for name, path in {".clip": "clip", "agent.clip": "agent.clip"}.items():
        assert find_path(agent, trainer, name) == path
    # As `eqrl train ppo --clip` sets it.
    for name, path in {"clip": "agent.clip", ".clip": "clip"}.items():
        assert find_path(agent, trainer, name_of_option(agent, name)) == path
    # One that no other field has keeps its name.
    assert name_of_option(agent, "lr") == "lr"
    agent = eqrl.Intrinsic(agent, eqrl.RND())
    assert find_path(agent, trainer, name_of_option(agent, "lr")) == "agent.agent.lr"
    assert find_path(agent, trainer, "reward.lr") == "reward.lr"
