"""Rewards of novelty and curiosity, and CIC, restated in NumPy."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax

import eqrl
from eqrl._rewards.icm import lengths as icm_lengths
from eqrl._rewards.running_statistics import (
    mean_size,
    no_statistics,
    root_mean_square,
)
from eqrl._rewards.scaled import ScaledState
from eqrl.spaces import Discrete

from ..skilled import skill_transitions
from ..toy import GetKey, random_transitions


SPEC = eqrl.EnvSpec(observation_size=4, action_size=2)
ZERO = jnp.zeros((), int)
LINEAR = eqrl.nn.Features(())
PLAIN: dict[str, Any] = {"lr": 0.1, "make_network": LINEAR, "make_optimizer": optax.sgd}


def updated(reward: Any, state: Any, batch: Any) -> tuple[Any, dict[str, Any]]:
    return reward.update(state, batch, key=jr.key(0))


def transitions(getkey: GetKey, size: int = 6) -> Any:
    return random_transitions(getkey(), size, observation_size=4, action_size=2)


def linear(network: Any, x: np.ndarray) -> np.ndarray:
    (layer,) = network.layers
    return x @ np.asarray(layer.weight, np.float64) + np.asarray(layer.bias, np.float64)


def score(reward: Any, state: Any, batch: Any) -> np.ndarray:
    """The rewards of a batch, also with two axes in place of one."""
    flat = reward.reward(state, batch, step=ZERO, key=jr.key(0))
    folded = jax.tree.map(lambda x: x.reshape(2, -1, *x.shape[1:]), batch)
    again = reward.reward(state, folded, step=ZERO, key=jr.key(0))
    np.testing.assert_allclose(again.ravel(), flat, rtol=1e-5)
    return np.asarray(flat)


def lengths(x: np.ndarray) -> np.ndarray:
    return np.linalg.norm(x, axis=-1)


def particles(
    features: np.ndarray, k: int, scale: float, clip: float = 0.0
) -> np.ndarray:
    apart = np.sort(lengths(features[:, None] - features[None]), axis=1)[:, 1 : k + 1]
    apart = np.maximum(apart / scale - clip, 0)
    assert clip == 0 or 0 < np.mean(apart == 0) < 1
    return np.log1p(np.mean(apart, axis=1))


def test_rnd_pays_for_the_error_at_the_state_reached(getkey: GetKey) -> None:
    reward = eqrl.RND(num_features=3, clip=1.5, **PLAIN)
    begun: Any = reward.init(SPEC, key=getkey())
    batch = transitions(getkey)
    state: Any = reward.observe(begun, batch)
    scaled = eqrl.Scaled(reward).observe(ScaledState(begun, no_statistics(1)), batch)
    assert eqx.tree_equal(scaled.reward, state) and not eqx.tree_equal(begun, state)
    reached = np.asarray(batch.next_observation, np.float64)
    rows = np.clip((reached - reached.mean(0)) / reached.std(0), -1.5, 1.5)
    assert np.any(np.abs(rows) == 1.5)
    difference = linear(state.network, rows) - linear(state.target, rows)
    errors = np.mean(difference**2, axis=1)
    # Nothing was learned from yet, so that errors are as they are.
    np.testing.assert_allclose(score(reward, state, batch), errors, rtol=1e-4)
    after, metrics = updated(reward, state, batch)
    np.testing.assert_allclose(metrics["predictor_loss"], errors.mean(), rtol=1e-4)
    weight = np.asarray(state.network.layers[0].weight, np.float64)
    weight -= 0.1 * 2 / (6 * 3) * rows.T @ difference
    np.testing.assert_allclose(after.network.layers[0].weight, weight, rtol=1e-4)
    assert eqx.tree_equal(after.target, state.target)
    errors = np.mean(
        (linear(after.network, rows) - linear(state.target, rows)) ** 2, axis=1
    )
    before = np.mean(difference**2, axis=1)
    scale = np.sqrt(np.mean(before**2))
    np.testing.assert_allclose(score(reward, after, batch), errors / scale, rtol=1e-4)


def test_what_was_seen_often_is_worth_less_to_rnd_also_in_a_stack(
    getkey: GetKey,
) -> None:
    reward = eqrl.RND(lr=1e-3, make_network=eqrl.nn.Features((16,)), num_features=8)
    states: Any = eqx.filter_vmap(lambda key: reward.init(SPEC, key=key))(
        jr.split(getkey(), 2)
    )
    batch = transitions(getkey, 32)
    rows = jnp.concatenate([jnp.full((32, 1), 1.0), jnp.zeros((32, 3))], axis=1)
    seen = dataclasses.replace(batch, next_observation=rows)
    new = dataclasses.replace(batch, next_observation=-rows)

    arrays, static = eqx.partition(states, eqx.is_array)
    step = lambda state: reward.update(state, seen, key=jr.key(0))[0]

    @eqx.filter_jit
    def trained(arrays: Any) -> Any:
        def one(arrays: Any) -> Any:
            state = reward.observe(eqx.combine(arrays, static), batch)
            for_arrays = lambda _, arrays: eqx.filter(
                step(eqx.combine(arrays, static)), eqx.is_array
            )
            return jax.lax.fori_loop(
                0, 300, for_arrays, eqx.filter(state, eqx.is_array)
            )

        return jax.vmap(one)(arrays)

    after = eqx.combine(trained(arrays), static)
    assert eqx.tree_equal(after.target, states.target)
    for index in range(2):
        state = jax.tree.map(lambda x, i=index: x[i] if eqx.is_array(x) else x, after)
        old, fresh = (score(reward, state, each)[0] for each in (seen, new))
        assert old < 0.1 * fresh


def test_icm_pays_for_what_it_cannot_predict(getkey: GetKey) -> None:
    reward = eqrl.ICM(scale=2.0, **PLAIN)
    state: Any = reward.init(SPEC, key=getkey())
    batch = transitions(getkey)
    given = np.asarray(jnp.concatenate([batch.observation, batch.action], 1))
    reached = np.asarray(batch.next_observation, np.float64)
    error = linear(state.model.forward, given) - reached
    expected = np.log1p(2 * lengths(error))
    np.testing.assert_allclose(score(reward, state, batch), expected, rtol=1e-4)
    after, metrics = updated(reward, state, batch)
    assert metrics.keys() == {"forward_loss"}
    np.testing.assert_allclose(metrics["forward_loss"], lengths(error).mean(), 1e-4)
    slope = given.T @ (error / lengths(error)[:, None]) / 6
    moved = np.asarray(state.model.forward.layers[0].weight) - 0.1 * slope
    found = after.model.forward.layers[0].weight
    np.testing.assert_allclose(found, moved, rtol=1e-4, atol=1e-5)


def test_an_encoder_learns_from_choices_and_not_from_the_state_reached(
    getkey: GetKey,
) -> None:
    reward = eqrl.ICM(num_features=3, make_encoder=LINEAR, **PLAIN)
    spec = eqrl.EnvSpec(observation_size=4, action=Discrete(5))
    state: Any = reward.init(spec, key=getkey())
    batch = dataclasses.replace(transitions(getkey), action=jnp.arange(6) % 5)
    left, reached = (
        linear(state.model.encoder, np.asarray(x))
        for x in (batch.observation, batch.next_observation)
    )
    choice = np.eye(5)[np.arange(6) % 5]
    error = linear(state.model.forward, np.concatenate([left, choice], 1)) - reached
    expected = np.log1p(lengths(error))
    np.testing.assert_allclose(score(reward, state, batch), expected, rtol=1e-4)
    after, metrics = updated(reward, state, batch)
    guess = linear(state.model.inverse, np.concatenate([left, reached], 1))
    log_softmax = guess - np.log(np.exp(guess).sum(1, keepdims=True))
    inverse = -np.sum(choice * log_softmax, axis=1).mean()
    np.testing.assert_allclose(metrics["inverse_loss"], inverse, rtol=1e-4)
    # The gradient of the encoder: by the state left from both losses, by the state
    # reached from the inverse one alone.
    pull = error / lengths(error)[:, None] / 6
    forward = np.asarray(state.model.forward.layers[0].weight)[:3]
    blame = (np.exp(log_softmax) - choice) / 6
    back = blame @ np.asarray(state.model.inverse.layers[0].weight).T
    slope = np.asarray(batch.observation).T @ (pull @ forward.T + back[:, :3])
    slope = slope + np.asarray(batch.next_observation).T @ back[:, 3:]
    moved = np.asarray(state.model.encoder.layers[0].weight) - 0.1 * slope
    found = after.model.encoder.layers[0].weight
    np.testing.assert_allclose(found, moved, rtol=1e-3, atol=1e-5)


def test_disagreement_pays_for_the_variance_of_models(getkey: GetKey) -> None:
    # Also of models that predict perfectly the gradient is finite.
    assert not jnp.any(jax.grad(lambda x: jnp.sum(icm_lengths(x)))(jnp.zeros((1, 2))))
    reward = eqrl.Disagreement(num_models=3, **PLAIN)
    state: Any = reward.init(SPEC, key=getkey())
    batch = transitions(getkey)
    given = np.asarray(jnp.concatenate([batch.observation, batch.action], 1))
    weight = np.asarray(state.models.layers[0].weight, np.float64)
    bias = np.asarray(state.models.layers[0].bias, np.float64)
    predicted = given[None] @ weight + bias[:, None]
    variance = np.var(predicted, axis=0, ddof=1).mean(axis=1)
    np.testing.assert_allclose(score(reward, state, batch), variance, rtol=1e-4)
    after, metrics = updated(reward, state, batch)
    error = predicted - np.asarray(batch.next_observation)[None]
    np.testing.assert_allclose(metrics["forward_loss"], lengths(error).mean(), 1e-4)
    slope = np.einsum("bi,mbd->mid", given, error / lengths(error)[..., None]) / 18
    found = after.models.layers[0].weight
    np.testing.assert_allclose(found, weight - 0.1 * slope, rtol=1e-3, atol=1e-5)
    before = reward.reward(
        eqx.tree_at(lambda s: s.models, after, state.models), batch, step=ZERO,
        key=getkey(),
    )  # fmt: skip
    scale = np.sqrt(np.mean(variance**2))
    np.testing.assert_allclose(before, variance / scale, rtol=1e-4)


def test_particle_entropy_is_scaled_by_the_mean_distance_so_far(
    getkey: GetKey,
) -> None:
    reward = eqrl.ParticleEntropy(num_neighbors=2)
    state: Any = reward.init(SPEC, key=getkey())
    batch = transitions(getkey)
    reached = np.asarray(batch.next_observation, np.float64)
    expected = particles(reached, 2, 1.0)
    np.testing.assert_allclose(score(reward, state, batch), expected, rtol=1e-4)
    state, metrics = updated(reward, state, batch)
    mean = float(np.mean(np.expm1(expected)))
    np.testing.assert_allclose(metrics["neighbor_distance"], mean, rtol=1e-4)
    expected = particles(reached, 2, mean)
    np.testing.assert_allclose(score(reward, state, batch), expected, rtol=1e-4)
    clipped = score(eqrl.ParticleEntropy(num_neighbors=2, clip=0.9), state, batch)
    np.testing.assert_allclose(clipped, particles(reached, 2, mean, 0.9), rtol=1e-4)
    learned = eqrl.ParticleEntropy(num_neighbors=2, make_encoder=LINEAR, **PLAIN)
    state = learned.init(SPEC, key=getkey())
    expected = particles(linear(state.model.encoder, reached), 2, 1.0)
    np.testing.assert_allclose(score(learned, state, batch), expected, rtol=1e-4)
    after, metrics = updated(learned, state, batch)
    assert metrics.keys() == {"neighbor_distance", "forward_loss", "inverse_loss"}
    ends = (batch.observation, batch.next_observation)
    features = [linear(state.model.encoder, np.asarray(x)) for x in ends]
    guess = np.tanh(linear(state.model.inverse, np.concatenate(features, 1)))
    inverse = lengths(np.asarray(batch.action) - guess).mean()
    np.testing.assert_allclose(metrics["inverse_loss"], inverse, rtol=1e-4)
    assert not eqx.tree_equal(after.model, state.model)


def test_cic_pays_for_entropy_and_for_telling_skills_apart(getkey: GetKey) -> None:
    options: dict[str, Any] = {"num_neighbors": 2, "num_features": 3}
    skills = eqrl.UniformSkills(5, low=0.0, high=1.0)
    weights = {"entropy_weight": 2.0, "contrastive_weight": 0.5}
    reward = eqrl.CIC(skills, temperature=0.3, clip=0.9, **weights, **options, **PLAIN)
    state: Any = reward.init(SPEC, key=getkey())
    batch: Any = skill_transitions(getkey(), skill=jr.uniform(getkey(), (6, 5)))
    networks = state.networks
    left, reached = (
        linear(networks.state, np.asarray(x))
        for x in (batch.observation, batch.next_observation)
    )
    key = linear(networks.pair, np.concatenate([left, reached], 1))
    query = linear(networks.skill, np.asarray(batch.extras.skill))
    unit = lambda x: x / lengths(x)[:, None]
    similar = unit(query) @ unit(key).T / 0.3
    loss = np.log(np.exp(similar).sum(1)) - np.diagonal(similar)
    expected = 2 * particles(reached, 2, 1.0, 0.9) + 0.5 * (np.log(6) - loss)
    np.testing.assert_allclose(score(reward, state, batch), expected, rtol=1e-4)
    after, metrics = updated(reward, state, batch)
    np.testing.assert_allclose(metrics["contrastive_loss"], loss.mean(), rtol=1e-4)
    mean = np.mean(np.expm1(particles(reached, 2, 1.0)))
    np.testing.assert_allclose(mean_size(after.distances), mean, rtol=1e-4)
    _, metrics = updated(reward, after, batch)
    assert metrics["contrastive_loss"] < loss.mean()
    agent = eqrl.SkillConditioned(eqrl.SAC(), skills, resample_every=50)
    eqrl.Intrinsic(agent, reward)
    assert eqrl.CIC(skills).contrastive_weight == 0


def test_a_scaled_reward_has_a_mean_square_of_one(getkey: GetKey) -> None:
    inner = eqrl.ICM(**PLAIN)
    reward: Any = eqrl.Scaled(inner)
    state: Any = reward.init(SPEC, key=getkey())
    batch = transitions(getkey)
    plain = score(inner, state.reward, batch)
    np.testing.assert_allclose(score(reward, state, batch), plain, rtol=1e-5)
    after, metrics = updated(reward, state, batch)
    assert metrics.keys() == {"forward_loss"}
    kept = eqx.tree_at(lambda state: state.reward, after, state.reward)
    scaled = score(reward, kept, batch)
    np.testing.assert_allclose(np.mean(scaled**2), 1, rtol=1e-4)
    agent = eqrl.Intrinsic(eqrl.SAC(), reward)
    assert eqrl.unwrap(agent, eqrl.ICM) is inner
    # A size is 1 as long as all were 0, as those of a sparse reward are.
    zeros = no_statistics(1).update(jnp.zeros((3, 1)))
    later = zeros.update(jnp.full((1, 1), 4.0))
    assert [mean_size(x) for x in (no_statistics(1), zeros, later)] == [1, 1, 1]
    assert [root_mean_square(x) for x in (no_statistics(1), zeros, later)] == [1, 1, 2]
