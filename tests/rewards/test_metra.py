import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import eqrl

from ..skilled import skill_transitions
from ..toy import GetKey


SPEC = eqrl.EnvSpec(observation_size=4, action_size=2, state_descriptor_size=2)
ZERO = jnp.zeros((), int)
LINEAR = eqrl.nn.Features(())
SMALL = eqrl.nn.Features((8, 8))


def unit_skills(number: int) -> np.ndarray:
    angle = np.arange(number) * 2 * np.pi / number
    return np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32)


@pytest.mark.parametrize(("constraint", "slack"), [("sum", 1e-3), ("mean", 0.02)])
def test_two_updates_are_those_of_the_formulas(
    constraint: Any, slack: float, getkey: GetKey
) -> None:
    # Plain gradient descent, whose steps say what the gradients were.
    reward = eqrl.METRA(
        eqrl.SphereSkills(2),
        lr=0.1,
        multiplier_lr=0.5,
        initial_multiplier=3.0,
        constraint=constraint,
        slack=slack,
        make_network=LINEAR,
        make_optimizer=optax.sgd,
    )
    state: Any = reward.init(SPEC, key=getkey())
    # Some steps are longer than the constraint allows, and some are not.
    where = lambda state: state.phi.layers[0].weight
    state = eqx.tree_at(where, state, 0.5 * jr.normal(getkey(), (4, 2)))
    batch: Any = skill_transitions(getkey(), skill=jnp.asarray(unit_skills(6)))
    step = np.asarray(batch.next_observation - batch.observation, np.float64)
    weight = np.asarray(batch.extras.skill, np.float64)
    (layer,) = state.phi.layers
    matrix, log_multiplier = np.asarray(layer.weight, np.float64), np.log(3.0)
    share = 1 if constraint == "sum" else 0.5
    for _ in range(2):
        moved = step @ matrix
        score = reward.reward(state, batch, step=ZERO, key=getkey())
        expected_score = np.sum(moved * weight, axis=1)
        np.testing.assert_allclose(score, expected_score, rtol=1e-5, atol=1e-6)
        state, metrics = reward.update(state, batch, key=getkey())
        length = share * np.sum(moved**2, axis=1)
        room = np.minimum(1 - length, slack)
        assert 0 < np.mean(length > 1) < 1
        pull = (
            2 * np.exp(log_multiplier) * share * (1 - length < slack)[:, None] * moved
        )
        expected = {
            "phi_loss": -np.mean(
                np.sum(moved * weight, axis=1) + np.exp(log_multiplier) * room
            ),
            "dual_penalty": np.mean(room),
            "log_lambda": log_multiplier,
            "step_length": np.mean(length),
            "violations": np.mean(length > 1),
        }
        assert metrics.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name], value, rtol=1e-5, err_msg=name)
        # The room is that from before the step, and not multiplied by the multiplier.
        log_multiplier -= 0.5 * np.mean(room)
        matrix = matrix - 0.1 * step.T @ (pull - weight) / 6
        (layer,) = state.phi.layers
        np.testing.assert_allclose(layer.weight, matrix, rtol=1e-5, atol=1e-6)


def test_one_hot_skills_are_centered_and_all_axes_of_a_batch_count(
    getkey: GetKey,
) -> None:
    reward = eqrl.METRA(3, make_network=LINEAR, descriptor="both")
    state: Any = reward.init(SPEC, key=getkey())
    batch: Any = skill_transitions(getkey(), skill=jnp.eye(3)[jnp.array([0, 1, 2, 1])])
    batch = dataclasses.replace(batch, truncated=jnp.array([True, False, False, True]))
    seen = lambda observation, descriptor: np.concatenate(
        [np.asarray(observation), np.asarray(descriptor)], axis=1
    )
    step = seen(batch.next_observation, batch.next_state_descriptor) - seen(
        batch.observation, batch.state_descriptor
    )
    (layer,) = state.phi.layers
    weight = 1.5 * np.asarray(batch.extras.skill) - 0.5
    expected = np.sum(step @ np.asarray(layer.weight) * weight, axis=1)
    score = reward.reward(state, batch, step=ZERO, key=getkey())
    np.testing.assert_allclose(score, expected, rtol=1e-4)
    folded = jax.tree.map(lambda x: x.reshape(2, 2, *x.shape[1:]), batch)
    score = reward.reward(state, folded, step=ZERO, key=getkey())
    np.testing.assert_allclose(score, expected.reshape(2, 2), rtol=1e-4)
    even = dataclasses.replace(reward, skills=eqrl.EvenOneHotSkills(3))
    again = even.reward(state, folded, step=ZERO, key=getkey())
    np.testing.assert_array_equal(again, score)
    after, metrics = reward.update(state, folded, key=getkey())
    flat, flat_metrics = reward.update(state, batch, key=getkey())
    jax.tree.map(np.testing.assert_array_equal, metrics, flat_metrics)
    assert eqx.tree_equal(after, flat)


def test_no_step_of_lsd_is_longer_than_in_its_descriptor(getkey: GetKey) -> None:
    reward = eqrl.LSD(
        eqrl.SphereSkills(2), lr=0.01, descriptor="state_descriptor", make_network=SMALL
    )
    state: Any = reward.init(SPEC, key=getkey())
    # Weights far above 1, which the normalization must undo.
    weights = lambda state: [layer.weight for layer in state.phi.layers]
    state = eqx.tree_at(weights, state, replace_fn=lambda weight: 10 * weight)
    # Directions of other weights, which each update turns a little.
    turned = jax.tree.map(lambda x: jnp.roll(x, 1), state.directions)
    state = dataclasses.replace(state, directions=turned)
    update = eqx.filter_jit(reward.update)
    batch: Any = skill_transitions(getkey(), skill=jnp.asarray(unit_skills(16)))
    metrics: eqrl.Metrics = {}
    for _ in range(50):
        state, metrics = update(state, batch, key=getkey())
    assert metrics.keys() == {"phi_loss", "step_length", "violations"}
    one, other = jr.normal(getkey(), (2, 500, 2))
    moved = reward.represent(state, one) - reward.represent(state, other)
    ratio = jnp.linalg.norm(moved, axis=1) / jnp.linalg.norm(one - other, axis=1)
    assert ratio.max() < 1.001
    bare = eqx.tree_at(weights, state, replace_fn=lambda weight: 3 * weight)
    biases = lambda state: [layer.bias for layer in state.phi.layers]
    none = lambda state: eqx.tree_at(biases, state, replace_fn=jnp.zeros_like)
    seen = lambda state: reward.represent(none(state), one)
    # Terms of the size of 1 may cancel to almost 0.
    np.testing.assert_allclose(seen(bare), seen(state), rtol=1e-4, atol=1e-6)


def test_a_linear_lsd_keeps_the_longest_step(getkey: GetKey) -> None:
    reward = eqrl.LSD(
        eqrl.SphereSkills(2), descriptor="state_descriptor", make_network=LINEAR
    )
    state = reward.init(SPEC, key=getkey())
    origin = reward.represent(state, jnp.zeros((2, 2)))
    rows = reward.represent(state, jnp.eye(2)) - origin
    np.testing.assert_allclose(np.linalg.norm(rows, 2), 1, rtol=1e-3)


def test_lsd_is_metra_with_what_it_is_given() -> None:
    lsd = eqrl.LSD(3, make_optimizer=optax.sgd)
    assert lsd.constraint == "spectral" and lsd.make_optimizer is optax.sgd


def test_weights_that_nothing_would_limit_are_refused(getkey: GetKey) -> None:
    lsd = eqrl.LSD(2, make_network=eqrl.nn.Features((4,), layer_norm=True))
    with pytest.raises(ValueError, match="made a MLP with weights outside of"):
        lsd.init(SPEC, key=getkey())
    # Each pixel is in up to nine patches.
    encoder = eqrl.nn.Convolution((5, 5, 1), channels=2)
    lsd = eqrl.LSD(2, make_network=eqrl.nn.Features((4,), encoder=encoder))
    with pytest.raises(ValueError, match=r"made a .* or with a convolution"):
        lsd.init(eqrl.EnvSpec(25, 2, observation_shape=(5, 5, 1)), key=getkey())


def test_skills_of_another_kind_are_refused() -> None:
    agent = eqrl.SkillConditioned(eqrl.SAC(), eqrl.SphereSkills(2))
    with pytest.raises(ValueError, match="`METRA` SphereSkills"):
        eqrl.Intrinsic(agent, eqrl.METRA(eqrl.SphereSkills(3)))
