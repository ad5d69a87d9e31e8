"""CSF, whose update is restated in NumPy for linear networks."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from jaxtyping import PRNGKeyArray

import eqrl
from eqrl.losses._sac import sample_actions

from ..toy import GetKey, make_linear_gaussian, random_transitions


LINEAR = eqrl.nn.Features(())


def arrays(network: Any) -> tuple[np.ndarray, np.ndarray]:
    (layer,) = network.layers
    return np.asarray(layer.weight, np.float64), np.asarray(layer.bias, np.float64)


def least(features: np.ndarray, skill: np.ndarray) -> np.ndarray:
    """Of the critic that values the skill the least, row by row."""
    values = np.sum(features * skill, axis=2)
    chosen = np.argmin(values, axis=0)
    return np.stack([features[critic, row] for row, critic in enumerate(chosen)])


@pytest.mark.parametrize(("target_entropy", "asked"), [(-0.7, -0.7), (None, -1.5)])
def test_an_update_is_that_of_the_formulas(
    target_entropy: float | None, asked: float, getkey: GetKey
) -> None:
    agent = eqrl.CSF(
        2,
        actor_lr=0.1,
        critic_lr=0.2,
        temperature_lr=0.3,
        phi_lr=0.4,
        discount=0.9,
        target_step_size=0.25,
        initial_temperature=0.5,
        target_entropy=target_entropy,
        contrastive_weight=3.0,
        num_negatives=7,
        make_actor=make_linear_gaussian,
        make_critic=LINEAR,
        make_phi=LINEAR,
        make_optimizer=optax.sgd,
    )
    spec = eqrl.EnvSpec(observation_size=5, action_size=3)
    state: Any = agent.init(spec, key=getkey())
    targets = jax.tree.map(lambda x: 1.5 * x, state.target_critics)
    state = eqx.tree_at(lambda state: state.target_critics, state, targets)
    batch: Any = random_transitions(getkey(), 6, observation_size=5, action_size=3)
    # Both observations end with the same skill.
    joined = batch.next_observation.at[:, -2:].set(batch.observation[:, -2:])
    batch = dataclasses.replace(
        batch,
        next_observation=joined,
        terminated=jnp.arange(6) == 1,
        truncated=jnp.arange(6) == 2,
    )
    key = getkey()

    @eqx.filter_jit
    def update(state: Any, key: PRNGKeyArray) -> Any:
        negative_key, next_key, actor_key = jr.split(key, 3)
        drawn = jr.normal(negative_key, (7, 2))
        following = sample_actions(state.actor, batch.next_observation, key=next_key)
        chosen = sample_actions(state.actor, batch.observation, key=actor_key)
        updated = agent.update(state, batch, step=jnp.asarray(0), key=key)
        return updated, drawn, following[0], chosen, actor_key

    (after, metrics), drawn, next_action, (action, log_prob), actor_key = update(
        state, key
    )
    observation = np.asarray(batch.observation, np.float64)
    reached = np.asarray(batch.next_observation, np.float64)
    skill, step = observation[:, -2:], reached[:, :-2] - observation[:, :-2]
    negatives = np.asarray(drawn, np.float64)
    negatives /= np.linalg.norm(negatives, axis=1, keepdims=True)

    matrix, _ = arrays(state.phi)
    difference = step @ matrix
    similar = np.exp(difference @ negatives.T)
    sums = similar.sum(axis=1)
    expected = {
        "phi_loss": np.mean(3 * np.log(sums) - np.sum(difference * skill, axis=1))
    }
    pull = 3 * (similar / sums[:, None]) @ negatives - skill
    matrix = matrix - 0.4 * step.T @ pull / 6
    np.testing.assert_allclose(arrays(after.phi)[0], matrix, rtol=1e-4, atol=1e-5)

    # The critics' targets are made of the representation after its step.
    difference = step @ matrix
    expected["intrinsic_reward"] = np.mean(np.sum(difference * skill, axis=1))
    rows = lambda seen, action: np.concatenate([seen, np.asarray(action)], axis=1)
    features = lambda networks, rows: rows[None] @ networks[0] + networks[1][:, None]
    critics, targets = arrays(state.critics), arrays(state.target_critics)
    reachable = least(features(targets, rows(reached, next_action)), skill)
    going_on = 0.9 * reachable * ~np.asarray(batch.terminated)[:, None]
    inputs = rows(observation, batch.action)
    error = features(critics, inputs) - (difference + going_on)[None]
    expected["critic_loss"] = np.sum(np.mean(error**2, axis=(1, 2)))
    slope = 2 * error / 12
    moved = (
        critics[0] - 0.2 * np.einsum("bi,cbd->cid", inputs, slope),
        critics[1] - 0.2 * slope.sum(axis=1),
    )
    for found, wanted in zip(arrays(after.critics), moved, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    for found, new, old in zip(
        arrays(after.target_critics), moved, targets, strict=True
    ):
        np.testing.assert_allclose(found, old + (new - old) / 4, rtol=1e-4, atol=1e-5)

    # The actor follows the critics after their step.
    value = np.sum(least(features(moved, rows(observation, action)), skill) * skill, 1)
    expected["actor_loss"] = np.mean(0.5 * np.asarray(log_prob) - value)
    expected["entropy"] = -np.mean(np.asarray(log_prob))
    expected["temperature"] = 0.5
    expected["temperature_loss"] = 0.5 * (expected["entropy"] - asked)
    assert metrics.keys() == expected.keys()
    for name, wanted in expected.items():
        np.testing.assert_allclose(metrics[name], wanted, rtol=1e-4, err_msg=name)
    log_temperature = np.log(0.5) - 0.3 * expected["temperature_loss"]
    np.testing.assert_allclose(after.log_temperature, log_temperature, rtol=1e-4)
    weight, bias = (jnp.asarray(x, jnp.float32) for x in moved)

    def actor_loss(actor: Any) -> jax.Array:
        action, log_prob = sample_actions(actor, batch.observation, key=actor_key)
        seen = jnp.concatenate([batch.observation, action], axis=1)
        features = jnp.einsum("bi,cid->cbd", seen, weight) + bias[:, None]
        along = jnp.einsum("cbd,bd->cb", features, batch.observation[:, -2:])
        return jnp.mean(0.5 * log_prob - jnp.min(along, axis=0))

    gradient = eqx.filter_jit(eqx.filter_grad(actor_loss))(state.actor)
    stepped = jax.tree.map(lambda x, slope: x - 0.1 * slope, state.actor, gradient)
    for found, wanted in zip(
        *map(jax.tree.leaves, (after.actor, stepped)), strict=True
    ):
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_an_observation_without_room_for_a_skill_is_refused(getkey: GetKey) -> None:
    with pytest.raises(ValueError, match=r"SkillConditioned\(eqrl.CSF\(3\)"):
        eqrl.CSF(3).init(eqrl.EnvSpec(3, 1), key=getkey())


def test_networks_that_do_not_fit_are_refused(getkey: GetKey) -> None:
    narrow = lambda size, number, *, key: eqrl.nn.Features()(size, number - 1, key=key)
    for name, make, words in (
        ("make_critic", narrow, r"shape \(1,\) .* features of shape \(2,\)"),
        ("make_phi", narrow, r"shape \(1,\) .* features of shape \(2,\)"),
        ("make_critic", eqrl.nn.Critic(), "cannot be called as"),
    ):
        given: Any = {name: make}
        with pytest.raises(ValueError, match=f"`{name}.*{words}"):
            eqrl.CSF(2, **given).init(eqrl.EnvSpec(5, 1), key=getkey())


def test_a_skill_that_is_no_direction_is_refused(getkey: GetKey) -> None:
    spec, circle = eqrl.EnvSpec(3, 1), eqrl.SphereSkills(2)
    for skills in (eqrl.SphereSkills(3), eqrl.OneHotSkills(2)):
        agent = eqrl.SkillConditioned(eqrl.CSF(2), skills)
        with pytest.raises(ValueError, match=r"`CSF\(2\)` .*Skills.*give `SphereSk"):
            agent.init(spec, key=getkey())
    scaled = eqrl.SkillConditioned(eqrl.Normalized(eqrl.CSF(2)), circle)
    with pytest.raises(ValueError, match=r"`Normalized\(SkillConditioned\(CSF"):
        scaled.init(spec, key=getkey())
    around = eqrl.Normalized(eqrl.SkillConditioned(eqrl.CSF(2), circle))
    around.init(spec, key=getkey())
