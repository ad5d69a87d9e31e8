"""Losses of skills, restated in NumPy from their formulas."""

from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import pytest
from jaxtyping import Array

import eqrl.losses

from ..toy import GetKey


def linear(matrix: Array, observation: Array) -> Array:
    return observation @ matrix


def log_sum_exp(x: np.ndarray) -> np.ndarray:
    return np.log(np.sum(np.exp(x), axis=-1))


@pytest.mark.parametrize("constraint", ["sum", "mean"])
def test_metra_loss_pays_for_steps_along_the_skill_and_limits_their_length(
    constraint: str, getkey: GetKey
) -> None:
    before, after, weight = (jr.normal(getkey(), (6, n)) for n in (3, 3, 2))
    # Steps of these lengths, so that some rows keep the constraint with room to spare.
    matrix = 0.3 * jr.normal(getkey(), (3, 2))
    loss = lambda matrix: eqrl.losses.metra_loss(
        lambda x: linear(matrix, x), before, after, weight, 30.0, 1e-3,
        constraint=constraint,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip
    (value, penalty), gradient = jax.value_and_grad(loss, has_aux=True)(matrix)

    step = np.asarray(after - before, np.float64)
    moved = step @ np.asarray(matrix, np.float64)
    share = 1 if constraint == "sum" else 1 / 2
    room = 1 - share * np.sum(moved**2, axis=1)
    violated = room < 1e-3
    assert 0 < violated.sum() < 6
    reward = np.sum(moved * np.asarray(weight), axis=1)
    expected = -np.mean(reward + 30 * np.minimum(room, 1e-3))
    pull = -np.asarray(weight) + 60 * share * moved * violated[:, None]
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(penalty, np.mean(np.minimum(room, 1e-3)), rtol=1e-5)
    np.testing.assert_allclose(gradient, step.T @ pull / 6, rtol=1e-5, atol=1e-6)


def test_a_constant_added_to_steps_changes_no_reward_of_centered_skills(
    getkey: GetKey,
) -> None:
    # The weights of a one-hot skill sum to 0, and without a multiplier only rewards
    # count.
    before, weight = jr.normal(getkey(), (5, 3)), jnp.eye(5)[:, :3] * 1.5 - 0.5
    weight = weight.at[3:].set(jnp.array([1.0, -0.5, -0.5]))
    after = before + jr.normal(getkey(), (5, 3))
    loss = lambda after: eqrl.losses.metra_loss(
        lambda x: x, before, after, weight, 0.0, 1e-3
    )[0]
    np.testing.assert_allclose(loss(after + 7.0), loss(after), atol=1e-5)


def test_csf_loss_prefers_the_skill_to_drawn_ones(getkey: GetKey) -> None:
    difference, skill = jr.normal(getkey(), (6, 2)), jr.normal(getkey(), (6, 2))
    negatives = jr.normal(getkey(), (9, 2))
    value, gradient = jax.value_and_grad(eqrl.losses.csf_loss)(
        difference, skill, negatives, 5.0
    )
    d, z, others = (np.asarray(x, np.float64) for x in (difference, skill, negatives))
    similar = d @ others.T
    expected = np.mean(5 * log_sum_exp(similar) - np.sum(d * z, axis=1))
    softmax = np.exp(similar - log_sum_exp(similar)[:, None])
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    np.testing.assert_allclose(gradient, (5 * softmax @ others - z) / 6, rtol=1e-5)


def test_contrastive_loss_is_that_of_telling_rows_apart(getkey: GetKey) -> None:
    query, key = jr.normal(getkey(), (5, 3)), jr.normal(getkey(), (5, 3))
    loss = lambda query: jnp.sum(eqrl.losses.contrastive_loss(query, key, 0.5))
    gradient = jax.grad(loss)(query)
    q, k = np.asarray(query, np.float64), np.asarray(key, np.float64)
    unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)
    similar = unit(q) @ unit(k).T / 0.5
    expected = log_sum_exp(similar) - np.diagonal(similar)
    value = eqrl.losses.contrastive_loss(query, key, 0.5)
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    softmax = np.exp(similar - log_sum_exp(similar)[:, None])
    towards = (softmax - np.eye(5)) @ unit(k) / 0.5
    along = np.sum(towards * unit(q), axis=1, keepdims=True) * unit(q)
    length = np.linalg.norm(q, axis=1, keepdims=True)
    np.testing.assert_allclose(gradient, (towards - along) / length, atol=1e-5)
    # Rows that fit their own keys alone, of which a small temperature overflows
    # nothing; a single row; and rows without a direction.
    loss_of = eqrl.losses.contrastive_loss
    rows = jnp.eye(4)
    np.testing.assert_allclose(
        loss_of(rows, rows, 0.5), np.log(np.exp(2.0) + 3) - 2, rtol=1e-5
    )
    np.testing.assert_allclose(loss_of(rows, rows, 0.01), 0, atol=1e-6)
    np.testing.assert_allclose(loss_of(query[:1], key[:1], 0.5), 0, atol=1e-6)
    zeros = jnp.zeros((4, 3))
    np.testing.assert_allclose(loss_of(zeros, zeros, 0.5), np.log(4), rtol=1e-6)
    flat = jax.grad(lambda query: jnp.sum(loss_of(query, zeros, 0.5)))(zeros)
    assert jnp.all(flat == 0)


def test_mixture_log_prob_is_that_of_unit_normals(
    getkey: GetKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits, target = jr.normal(getkey(), (5, 4)), jr.normal(getkey(), (5, 3))
    means = jr.normal(getkey(), (5, 4, 3))
    value = eqrl.losses.mixture_log_prob(logits, means, target)
    gradient = jax.grad(
        lambda means: jnp.sum(eqrl.losses.mixture_log_prob(logits, means, target))
    )(means)
    w, m, y = (np.asarray(x, np.float64) for x in (logits, means, target))
    away = y[:, None] - m
    density = np.prod(np.exp(-0.5 * away**2) / np.sqrt(2 * np.pi), axis=2)
    weight = np.exp(w) / np.sum(np.exp(w), axis=1, keepdims=True)
    total = np.sum(weight * density, axis=1)
    np.testing.assert_allclose(value, np.log(total), rtol=1e-5)
    share = (weight * density / total[:, None])[:, :, None]
    np.testing.assert_allclose(gradient, share * away, atol=1e-5)
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for wrong in ((logits[:, :1], means), (logits, means[..., :1])):
        with pytest.raises(ValueError, match=r"must be \(batch, components\)"):
            eqrl.losses.mixture_log_prob(*wrong, target)


def test_smerl_mask_takes_episodes_near_the_best() -> None:
    returns = jnp.array([899.0, 900.0, 1200.0, jnp.nan])
    mask = eqrl.losses.smerl_mask(returns, 1000.0, 100.0)
    np.testing.assert_array_equal(mask, [False, True, True, False])


def test_metra_loss_names_a_weight_of_another_size_and_another_constraint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = jnp.zeros((4, 2))
    with pytest.raises(ValueError, match=r"`weight` has the shape \(4, 3\)"):
        eqrl.losses.metra_loss(lambda x: x, rows, rows, jnp.zeros((4, 3)), 1.0, 1e-3)
    # `METRA` has a third one, which is in its networks.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    given: Any = {"constraint": "spectral"}
    with pytest.raises(ValueError, match="`constraint='spectral'`"):
        eqrl.losses.metra_loss(lambda x: x, rows, rows, rows, 1.0, 1e-3, **given)
