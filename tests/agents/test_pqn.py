"""`PQN` against NumPy."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

from ..agents_under_test import pqn
from .test_ppo import NUM_ACTIONS, NUM_ENVS, NUM_STEPS, SPEC, distance, rollout


def values_of(network: Any, observation: np.ndarray) -> np.ndarray:
    """Values of an MLP with relu and normalized layers, in NumPy."""
    x = observation
    for layer, norm in zip(network.layers[:-1], network.norms, strict=True):
        x = x @ layer.weight + layer.bias
        mean, variance = x.mean(axis=-1), x.var(axis=-1)
        x = (x - mean[..., None]) / np.sqrt(variance + 1e-5)[..., None]
        x = np.maximum(norm.weight * x + norm.bias, 0)
    return x @ network.layers[-1].weight + network.layers[-1].bias


def test_an_update_is_as_restated_in_numpy() -> None:
    agent: Any = pqn(
        discount=0.9,
        decay=0.7,
        reward_scale=2.0,
        lr=0.1,
        max_gradient_norm=1e6,
        num_epochs=1,
        num_minibatches=1,
        make_optimizer=optax.sgd,
        anneal_steps=4.0 * NUM_ENVS * NUM_STEPS,
        epsilon_steps=100.0 * NUM_ENVS * NUM_STEPS,
    )
    state: Any = agent.init(SPEC, key=jr.key(0))
    # Two rollouts came before this one, so half of the rate is left.
    state = dataclasses.replace(state, num_steps=jnp.array(3 * NUM_ENVS * NUM_STEPS))
    batch: Any = rollout()
    after: Any
    after, metrics = eqx.filter_jit(agent.update)(
        state, batch, step=jnp.asarray(0), key=jr.key(0)
    )
    state, after, batch, metrics = jax.device_get((state, after, batch, metrics))
    next_value = values_of(state.network, batch.next_observation).max(axis=-1)
    target = np.zeros((NUM_ENVS, NUM_STEPS))
    for env in range(NUM_ENVS):
        for time in reversed(range(NUM_STEPS)):
            following = next_value[env, time]
            if time < NUM_STEPS - 1 and not batch.truncated[env, time]:
                following = 0.3 * following + 0.7 * target[env, time + 1]
            if batch.terminated[env, time]:
                following = 0.0
            target[env, time] = 2 * batch.reward[env, time] + 0.9 * following
    taken = np.eye(NUM_ACTIONS)[batch.action]
    value = (values_of(state.network, batch.observation) * taken).sum(axis=-1)
    error = value - target
    np.testing.assert_allclose(
        metrics["critic_loss"], 0.5 * np.mean(error**2), rtol=1e-4
    )
    np.testing.assert_allclose(metrics["value"], value.mean(), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(metrics["epsilon"], 1 - 0.03 * 0.95, rtol=1e-6)
    gradient = (error[..., None] * taken).mean(axis=(0, 1))
    moved = after.network.layers[-1].bias - state.network.layers[-1].bias
    np.testing.assert_allclose(moved, -0.05 * gradient, rtol=1e-3, atol=1e-6)
    # A long gradient is scaled down.
    short = dataclasses.replace(agent, max_gradient_norm=0.01)
    after, _ = eqx.filter_jit(short.update)(
        state, batch, step=jnp.asarray(0), key=jr.key(0)
    )
    moved = distance(state.network, after.network)
    assert moved == pytest.approx(0.05 * 0.01, rel=1e-3)
