"""`DQN` against numbers worked out by hand and written again in NumPy."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import optax
import pytest

import eqrl
from eqrl.losses import dqn_next_value, multi_step_return
from eqrl.nn import ActionValues, DuelingHeads
from eqrl.spaces import Discrete

from ..agents_under_test import dqn
from ..toy import transitions_of


SPEC = eqrl.EnvSpec(observation_size=3, action=Discrete(4))
BATCH_SIZE = 6
multi_step = jax.jit(multi_step_return)


# A discount of 1/2, rewards of 1, 2 and 4, and a value of 16 wherever it goes on.
@pytest.mark.parametrize(
    "terminated, truncated, expected",
    [
        (None, None, 5.0),
        (1, None, 2.0),
        (None, 1, 6.0),
        (0, None, 1.0),
        (None, 2, 5.0),
        (2, None, 3.0),
    ],
)
def test_rewards_are_summed_up_to_the_end_of_the_episode(
    terminated: int | None, truncated: int | None, expected: float
) -> None:
    ends, limits = np.zeros(3, bool), np.zeros(3, bool)
    if terminated is not None:
        ends[terminated] = True
    if truncated is not None:
        limits[truncated] = True
    rewards = jnp.array([1.0, 2.0, 4.0])
    total, last, discount = multi_step(
        rewards, jnp.asarray(ends), jnp.asarray(limits), 0.5
    )
    value = 0.0 if ends[last] else 16.0
    assert total + discount * value == expected


def test_whole_rewards_are_discounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    over = jnp.zeros(3, bool)
    given: Any = jnp.array([1, 2, 4])
    found = multi_step_return(given, over, over, 0.5)
    assert [float(x) for x in found] == [3.0, 2.0, 0.125]


def random_runs(length: int) -> eqrl.Transition[None]:
    """A batch, some of whose runs end in between."""
    draw = np.random.default_rng(0)
    shape = (BATCH_SIZE, length) if length > 1 else (BATCH_SIZE,)
    ends = draw.integers(0, 4, shape)
    return transitions_of(
        jnp.asarray(draw.normal(size=(*shape, 3)).astype(np.float32)),
        action=jnp.asarray(draw.integers(0, 4, shape).astype(np.int32)),
        reward=jnp.asarray(draw.normal(size=shape).astype(np.float32)),
        next_observation=jnp.asarray(draw.normal(size=(*shape, 3)).astype(np.float32)),
        terminated=jnp.asarray(ends == 0),
        truncated=jnp.asarray(ends == 1),
    )


def values_of(network: Any, observation: np.ndarray) -> np.ndarray:
    """Values of an MLP with relu, in NumPy."""
    x = observation
    for index, layer in enumerate(network.layers):
        x = x @ np.asarray(layer.weight) + np.asarray(layer.bias)
        if index < len(network.layers) - 1:
            x = np.maximum(x, 0)
    return x


def targets_of(agent: eqrl.DQN, state: Any, batch: Any) -> np.ndarray:
    """The targets of a batch in NumPy, by loops."""
    targets = []
    for row in range(BATCH_SIZE):
        run = jax.tree.map(lambda x, row=row: np.atleast_1d(x[row]), batch)
        run_next = batch.next_observation[row].reshape(-1, 3)
        total, discount = 0.0, 1.0
        time = 0
        for time in range(agent.return_steps):
            total += discount * float(agent.reward_scale) * run.reward[time]
            discount *= float(agent.discount)
            if run.terminated[time] or run.truncated[time]:
                break
        if not run.terminated[time]:
            target = values_of(state.target_network, run_next[time])
            online = values_of(state.network, run_next[time])
            total += discount * target[np.argmax(online if agent.double else target)]
        targets.append(total)
    return np.array(targets)


@pytest.mark.parametrize(
    "options",
    [{}, {"return_steps": 3, "huber": True}, {"double": False}],
    ids=["default", "three steps", "not double"],
)
def test_an_update_is_as_restated_in_numpy(options: dict[str, Any]) -> None:
    agent = dqn(
        reward_scale=2.0, discount=0.9, target_step_size=0.3, target_period=3, **options
    )
    agent = dataclasses.replace(agent, make_optimizer=optax.sgd, lr=0.1)
    state: Any = agent.init(SPEC, key=jr.key(0))
    # A target network of its own.
    other = agent.init(SPEC, key=jr.key(1)).network
    state = dataclasses.replace(state, target_network=other)
    batch: Any = random_runs(agent.return_steps)
    after: Any
    after, metrics = eqx.filter_jit(agent.update)(
        state, batch, step=jnp.asarray(2), key=jr.key(0)
    )
    state, after, batch, metrics = jax.device_get((state, after, batch, metrics))
    target = targets_of(agent, state, batch)
    first = batch.observation.reshape(BATCH_SIZE, -1, 3)[:, 0]
    action = batch.action.reshape(BATCH_SIZE, -1)[:, 0]
    value = values_of(state.network, first)[np.arange(BATCH_SIZE), action]
    error = value - target
    losses = 0.5 * error**2
    slope = error
    if agent.huber:
        losses = np.where(np.abs(error) <= 1, losses, np.abs(error) - 0.5)
        slope = np.clip(error, -1, 1)
    np.testing.assert_allclose(metrics["critic_loss"], losses.mean(), rtol=1e-4)
    np.testing.assert_allclose(metrics["value"], value.mean(), rtol=1e-4)
    # The gradient of the last bias is the sum of the errors of each action.
    gradient = np.zeros(4)
    np.add.at(gradient, action, slope / BATCH_SIZE)
    moved = after.network.layers[-1].bias - state.network.layers[-1].bias
    np.testing.assert_allclose(moved, -0.1 * gradient, rtol=1e-3, atol=1e-6)
    # Update number 2 is the third, at which all of these targets move.
    np.testing.assert_allclose(
        after.target_network.layers[0].weight,
        0.3 * after.network.layers[0].weight
        + 0.7 * state.target_network.layers[0].weight,
        rtol=1e-5,
    )


def test_a_target_waits_for_its_period() -> None:
    agent = dqn(target_period=3)
    state = agent.init(SPEC, key=jr.key(0))
    batch = random_runs(1)
    update = eqx.filter_jit(agent.update)
    for step in range(3):
        before = state
        state, _ = update(state, batch, step=jnp.asarray(step), key=jr.key(0))
        moved = not eqx.tree_equal(state.target_network, before.target_network)
        assert moved == (step == 2)
    assert eqx.tree_equal(state.target_network, state.network)


def test_the_online_network_chooses_and_the_target_network_values() -> None:
    online = lambda observation: jnp.array([1.0, 2.0, 0.0])
    target = lambda observation: jnp.array([5.0, 3.0, 4.0])
    nothing = jnp.zeros((1, 2))
    values = [dqn_next_value(online, target, nothing, double=x) for x in (True, False)]
    assert [float(value[0]) for value in values] == [3.0, 5.0]


def test_epsilon_goes_down_with_the_steps_of_all_environments() -> None:
    agent = dqn(initial_epsilon=1.0, final_epsilon=0.2, epsilon_steps=100.0)
    state = agent.init(SPEC, key=jr.key(0))
    batch = random_runs(1)
    update = eqx.filter_jit(agent.update)
    expected = {0: 1.0, 6: 0.952, 50: 0.6, 100: 0.2, 2**31 - 1: 0.2}
    for seen, epsilon in expected.items():
        state = dataclasses.replace(state, num_steps=jnp.asarray(seen))
        _, metrics = update(state, batch, step=jnp.asarray(0), key=jr.key(0))
        assert metrics["epsilon"] == pytest.approx(epsilon)
        choice: Any = agent.policy(state)(batch.observation[0])
        assert choice.epsilon == pytest.approx(epsilon)
    # It counts no further than an integer can.
    assert agent.observe(state, batch).num_steps == 2**31 - 1
    state = dataclasses.replace(state, num_steps=jnp.asarray(3))
    assert agent.observe(state, batch).num_steps == 3 + BATCH_SIZE


def test_two_heads_give_the_value_and_what_each_action_adds() -> None:
    factory = ActionValues((5, 4), dueling=True)
    network = factory(3, 2, key=jr.key(0))
    assert isinstance(network, DuelingHeads)
    observation = np.array([0.5, -1.0, 2.0], np.float32)
    given = network(jnp.asarray(observation))
    heads: Any = jax.device_get(network)
    # The trunk ends with the last hidden layer, whose activation the heads are given.
    features = np.maximum(values_of(heads.trunk, observation), 0)
    value = features @ heads.value.weight + heads.value.bias
    advantage = features @ heads.advantage.weight + heads.advantage.bias
    expected = value + advantage - advantage.mean()
    np.testing.assert_allclose(given, expected, rtol=1e-5)
    assert factory == ActionValues((5, 4), dueling=True) != ActionValues((5, 4))
    normalized: Any = ActionValues((5, 4), dueling=True, layer_norm=True)
    assert heads.norm is None and normalized(3, 2, key=jr.key(0)).norm is not None
    residual: Any = ActionValues((5, 4), dueling=True, residual=True)
    assert residual(3, 2, key=jr.key(0)).norm is not None
    with pytest.raises(ValueError, match="must have length 1 or more"):
        ActionValues((), dueling=True)(3, 2, key=jr.key(0))


@pytest.mark.parametrize(
    "make, message",
    [
        (eqrl.nn.Gaussian((8,)), "the value of each action"),
        (lambda size, num_actions, *, key: ActionValues((8,))(size, 3, key=key), "4"),
    ],
    ids=["a policy", "another size"],
)
def test_a_network_of_something_else_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eqrl.DQN(make_network=make).init(SPEC, key=jr.key(0))


def test_vectors_of_rewards_are_refused() -> None:
    spec = dataclasses.replace(SPEC, reward_size=2)
    with pytest.raises(ValueError, match="`DQN` learns from a scalar reward"):
        dqn().init(spec, key=jr.key(0))
