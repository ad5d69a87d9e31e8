"""`DiscreteSAC` against closed forms and numbers written again in NumPy."""

import dataclasses
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest

import eqrl
from eqrl._agents.discrete_sac import default_target_entropy
from eqrl.losses import discrete_sac_actor_loss, discrete_sac_next_value
from eqrl.nn import Choice, Softmax
from eqrl.spaces import Discrete

from ..agents_under_test import discrete_sac
from .test_dqn import BATCH_SIZE, SPEC, random_runs, values_of


def log_softmax(x: np.ndarray) -> np.ndarray:
    return x - np.log(np.sum(np.exp(x), axis=-1, keepdims=True))


@pytest.mark.parametrize("given", [None, 0.5])
def test_an_update_is_as_restated_in_numpy(given: float | None) -> None:
    agent = discrete_sac(
        actor_lr=0.1,
        critic_lr=0.1,
        temperature_lr=0.1,
        discount=0.9,
        reward_scale=2.0,
        target_step_size=0.3,
        initial_temperature=0.5,
        target_entropy=given,
        make_optimizer=optax.sgd,
    )
    state: Any = agent.init(SPEC, key=jr.key(0))
    # Target critics of their own.
    other = agent.init(SPEC, key=jr.key(1)).critics
    state = dataclasses.replace(state, target_critics=other)
    batch: Any = random_runs(1)
    after: Any
    after, metrics = eqx.filter_jit(agent.update)(
        state, batch, step=jnp.asarray(0), key=jr.key(0)
    )
    state, after, batch, metrics = jax.device_get((state, after, batch, metrics))

    def values(critics: Any, observation: np.ndarray) -> np.ndarray:
        each = [jax.tree.map(lambda x, i=i: x[i], critics) for i in range(2)]
        return np.stack([values_of(critic, observation) for critic in each])

    def policy(actor: Any, observation: np.ndarray) -> np.ndarray:
        return log_softmax(values_of(actor.network, observation))

    next_log = policy(state.actor, batch.next_observation)
    least = values(state.target_critics, batch.next_observation).min(axis=0)
    next_value = np.sum(np.exp(next_log) * (least - 0.5 * next_log), axis=-1)
    target = 2 * batch.reward + 0.9 * np.where(batch.terminated, 0, next_value)
    rows = np.arange(BATCH_SIZE)
    error = values(state.critics, batch.observation)[:, rows, batch.action] - target
    np.testing.assert_allclose(
        metrics["critic_loss"], 0.5 * np.mean(error**2), rtol=1e-4
    )
    # The gradient of the last bias of each critic is the sum of its errors.
    gradient = np.zeros((2, 4))
    for critic in range(2):
        np.add.at(gradient[critic], batch.action, error[critic] / error.size)
    moved = after.critics.layers[-1].bias - state.critics.layers[-1].bias
    np.testing.assert_allclose(moved, -0.1 * gradient, rtol=1e-3, atol=1e-6)

    # The actor learns from the critics after their step.
    log = policy(state.actor, batch.observation)
    probs = np.exp(log)
    cost = 0.5 * log - values(after.critics, batch.observation).min(axis=0)
    loss = np.mean(np.sum(probs * cost, axis=-1))
    np.testing.assert_allclose(metrics["actor_loss"], loss, rtol=1e-4)
    # Of the expectation by the logits: each cost less the mean, times its probability.
    mean_cost = np.sum(probs * cost, axis=-1, keepdims=True)
    slope = np.mean(probs * (cost - mean_cost), axis=0)
    moved = after.actor.network.layers[-1].bias - state.actor.network.layers[-1].bias
    np.testing.assert_allclose(moved, -0.1 * slope, rtol=1e-3, atol=1e-6)

    entropy = -np.mean(np.sum(probs * log, axis=-1))
    np.testing.assert_allclose(metrics["entropy"], entropy, rtol=1e-5)
    # By default, of four: the best with 0.9, the others with a thirtieth each.
    default = -0.9 * np.log(0.9) - 0.1 * np.log(0.1 / 3)
    target_entropy = default if given is None else given
    np.testing.assert_allclose(
        after.log_temperature - state.log_temperature,
        -0.1 * 0.5 * (entropy - target_entropy),
        rtol=1e-4,
    )
    np.testing.assert_allclose(
        after.target_critics.layers[0].weight,
        0.3 * after.critics.layers[0].weight
        + 0.7 * state.target_critics.layers[0].weight,
        rtol=1e-5,
    )


def test_the_best_policy_is_the_softmax_of_values_by_temperature() -> None:
    values, temperature = jnp.array([1.0, 0.4]), 0.3

    def loss(logits: Any) -> Any:
        actor = lambda observation: Softmax(logits)
        stack = _Constant(values[None])
        return discrete_sac_actor_loss(actor, stack, jnp.zeros((1, 2)), temperature)[0]

    slope = jax.jit(jax.grad(loss))
    np.testing.assert_allclose(slope(values / temperature), [0.0, 0.0], atol=1e-6)
    assert np.abs(slope(values / temperature + jnp.array([0.1, 0.0]))).max() > 1e-3


class _Constant(eqx.Module):
    """A critic that gives the same values everywhere."""

    values: Any

    def __call__(self, observation: Any) -> Any:
        return self.values


@pytest.mark.parametrize(
    "num_actions, entropy", [(2, 0.325), (3, 0.394), (6, 0.486), (18, 0.608)]
)
def test_the_target_entropy_is_that_of_little_exploration(
    num_actions: int, entropy: float
) -> None:
    found = default_target_entropy(num_actions)
    assert found == pytest.approx(entropy, abs=5e-4)


def test_what_cannot_be_chosen_from_is_refused() -> None:
    one = dataclasses.replace(SPEC, action=Discrete(1))
    with pytest.raises(ValueError, match=r"nothing to choose.*`target_entropy`"):
        discrete_sac().init(one, key=jr.key(0))
    discrete_sac(target_entropy=0.0).init(one, key=jr.key(0))
    with pytest.raises(ValueError, match=r"`target_entropy=1\.5` is more than 1\.39"):
        discrete_sac(target_entropy=1.5).init(SPEC, key=jr.key(0))
    # The largest itself, which float32 rounds up, is allowed.
    three = eqrl.EnvSpec(2, action=eqrl.spaces.Discrete(3))
    agent = discrete_sac(target_entropy=math.log(3))
    eqx.filter_eval_shape(agent.init, three, key=jr.key(0))
    # Traced, as in a training, it is known when the program runs.
    init = eqx.filter_jit(lambda agent: agent.init(SPEC, key=jr.key(0)))
    with pytest.raises(eqx.EquinoxRuntimeError, match="`target_entropy` is more than"):
        init(discrete_sac(target_entropy=1.5))
    init(discrete_sac(target_entropy=1.3))
    gaussian = dataclasses.replace(discrete_sac(), make_actor=eqrl.nn.Gaussian((8,)))
    with pytest.raises(ValueError, match=r"must give an `eqrl.nn.Softmax`"):
        gaussian.init(SPEC, key=jr.key(0))


def test_orthogonal_weights_have_the_gains_asked_for() -> None:
    network: Any = Choice((8, 8))(3, 4, key=jr.key(0)).network
    for layer, gain in zip(network.layers, (2, 2, 1e-4), strict=True):
        weight = np.asarray(layer.weight)
        if weight.shape[0] > weight.shape[1]:
            weight = weight.T
        expected = gain * np.eye(len(weight))
        np.testing.assert_allclose(weight @ weight.T, expected, atol=1e-5 * gain)
        assert not np.any(layer.bias)


def test_an_action_that_is_ruled_out_adds_nothing() -> None:
    values = jnp.array([[1.0, 2.0, 7.0], [3.0, 1.0, 9.0]])
    observation, temperature = jnp.zeros((1, 3)), 0.5
    least = np.array([1.0, 1.0])

    class Fixed(eqx.Module):
        values: Any

        def __call__(self, observation: Any) -> Any:
            return self.values + 0 * jnp.sum(observation)

    def loss(logits: Any) -> Any:
        # The last one is ruled out.
        masked = jnp.where(jnp.arange(3) < 2, logits, -jnp.inf)
        actor, critics = (lambda x: Softmax(masked)), Fixed(values)
        value = discrete_sac_next_value(actor, critics, observation, temperature)
        found, metrics = discrete_sac_actor_loss(
            actor, critics, observation, temperature
        )
        return found, (value, metrics["entropy"])

    logits = jnp.array([0.3, -0.2, 0.1])
    (found, (value, entropy)), gradient = jax.value_and_grad(loss, has_aux=True)(logits)
    log_probs = log_softmax(np.array([0.3, -0.2]))
    probs = np.exp(log_probs)
    costs = temperature * log_probs - least
    np.testing.assert_allclose(found, np.sum(probs * costs), rtol=1e-5)
    np.testing.assert_allclose(value, [-np.sum(probs * costs)], rtol=1e-5)
    np.testing.assert_allclose(entropy, -np.sum(probs * log_probs), rtol=1e-5)
    wanted = probs * (costs - np.sum(probs * costs))
    np.testing.assert_allclose(gradient, [*wanted, 0], rtol=1e-4, atol=1e-6)
