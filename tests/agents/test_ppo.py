"""`PPO` against numbers worked out by hand and written again in NumPy."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
import pytest
from jaxtyping import Array, Int, PRNGKeyArray

import eqrl
from eqrl._agents.on_policy import (
    learn_in_minibatches,
    permutation,
    rollout_values,
)
from eqrl.losses import lambda_return, ppo_actor_loss, ppo_critic_loss
from eqrl.spaces import Discrete

from ..agents_under_test import ppo, pqn
from ..toy import transitions_of


NUM_ENVS, NUM_STEPS, NUM_ACTIONS = 3, 5, 4
SPEC = eqrl.EnvSpec(observation_size=3, action=Discrete(NUM_ACTIONS))
returns_of = jax.jit(lambda_return)


# A discount and a decay of 1/2, values of 1, 2, 3 before the steps and 2, 3, 4 behind.
@pytest.mark.parametrize(
    "reward, terminated, truncated, advantage",
    [
        ([1, 1, 1], None, None, [1.125, 0.5, 0]),
        ([1, 1, 1], 1, None, [0.75, -1, 0]),
        ([1, 1, 5], None, 1, [1.125, 0.5, 4]),
        ([1, 1, 5], None, None, [1.375, 1.5, 4]),
    ],
)
def test_what_comes_after_an_episode_does_not_count_for_it(
    reward: list[float],
    terminated: int | None,
    truncated: int | None,
    advantage: list[float],
) -> None:
    index = jnp.arange(3)
    returns = returns_of(
        jnp.asarray(reward, float),
        index == (-1 if terminated is None else terminated),
        index == (-1 if truncated is None else truncated),
        jnp.array([2.0, 3.0, 4.0]),
        0.5,
        0.5,
    )
    np.testing.assert_array_equal(returns - jnp.array([1.0, 2.0, 3.0]), advantage)


def test_nothing_counts_less_for_being_far_if_all_of_it_counts() -> None:
    ends = jnp.zeros(40, bool)
    # More steps than are unrolled.
    returns = returns_of(jnp.ones(40), ends, ends, jnp.full(40, 7.0), 1.0, 1.0)
    np.testing.assert_array_equal(returns, 47.0 - np.arange(40))


def test_a_value_that_is_not_finite_behind_the_end_is_ignored() -> None:
    ends = jnp.array([False, True])
    values = jnp.array([1.0, jnp.nan])
    returns = returns_of(jnp.ones(2), ends, ~ends & False, values, 0.5, 0.5)
    np.testing.assert_array_equal(returns, [1 + 0.5 * (0.5 + 0.5), 1.0])
    truncated = returns_of(jnp.ones(2), ~ends & False, ~ends, values, 0.5, 0.5)
    assert truncated[0] == 1.5


def test_an_improvement_counts_until_it_is_clipped() -> None:
    ratio = jnp.array([1.5, 1.5, 0.5, 0.5, 1.1])
    advantage = jnp.array([1.0, -1.0, 1.0, -1.0, 2.0])
    old = jnp.full(5, -0.7)
    loss, metrics = ppo_actor_loss(old + jnp.log(ratio), old, advantage, 0.2)
    # The lesser of the two products: what got worse counts in full.
    products = [1.2, -1.5, 0.5, -0.8, 2.2]
    assert loss == pytest.approx(-np.mean(products), rel=1e-5)
    assert metrics["clip_fraction"] == pytest.approx(0.8)
    expected = np.mean(np.asarray(ratio) - 1 - np.log(ratio))
    assert metrics["kl"] == pytest.approx(expected, rel=1e-4)


def test_a_value_that_moved_far_is_clipped_where_asked() -> None:
    value, old = jnp.array([3.0, 0.5, -1.0]), jnp.array([1.0, 0.5, 1.0])
    target = jnp.array([4.0, 0.25, -2.0])
    free = ppo_critic_loss(value, old, target, None)
    assert free == pytest.approx(0.5 * np.mean([1.0, 0.0625, 1.0]))
    # Clipped the first value is 1.2 and the last 0.8, and the greater error counts.
    clipped = ppo_critic_loss(value, old, target, 0.2)
    assert clipped == pytest.approx(0.5 * np.mean([2.8**2, 0.0625, 2.8**2]))


def rollout(seed: int = 0) -> eqrl.Transition[Any]:
    """A rollout of discrete actions, some of whose episodes end in between."""
    draw = np.random.default_rng(seed)
    shape = (NUM_ENVS, NUM_STEPS)
    ends = draw.integers(0, 4, shape)
    seen = draw.normal(size=(NUM_ENVS, NUM_STEPS + 1, 3)).astype(np.float32)
    begun = draw.normal(size=seen[:, 1:-1].shape).astype(np.float32)
    # After an end an episode begins elsewhere.
    begun = np.where(ends[:, :-1, None] <= 1, begun, seen[:, 1:-1])
    action = jnp.asarray(draw.integers(0, NUM_ACTIONS, shape).astype(np.int32))
    return transitions_of(
        jnp.asarray(np.concatenate([seen[:, :1], begun], axis=1)),
        action=action,
        reward=jnp.asarray(draw.normal(size=shape).astype(np.float32)),
        next_observation=jnp.asarray(seen[:, 1:]),
        terminated=jnp.asarray(ends == 0),
        truncated=jnp.asarray(ends == 1),
        extras=action,
    )


def outputs_of(network: Any, observation: np.ndarray) -> np.ndarray:
    """Outputs of an MLP with tanh, in NumPy."""
    x = observation
    for index, layer in enumerate(network.layers):
        x = x @ np.asarray(layer.weight) + np.asarray(layer.bias)
        if index < len(network.layers) - 1:
            x = np.tanh(x)
    return x


def targets_of(agent: Any, state: Any, batch: Any) -> np.ndarray:
    """Returns in NumPy, as a sum of errors that goes on to the end of the episode."""
    value = outputs_of(state.critic.network, batch.observation)[..., 0]
    after = outputs_of(state.critic.network, batch.next_observation)[..., 0]
    after = np.where(batch.terminated, 0, after)
    error = agent.reward_scale * batch.reward + agent.discount * after - value
    over = batch.terminated | batch.truncated
    targets = np.zeros_like(value)
    for env in range(NUM_ENVS):
        for time in range(NUM_STEPS):
            weight = 1.0
            for later in range(time, NUM_STEPS):
                targets[env, time] += weight * error[env, later]
                weight *= agent.discount * agent.decay
                if over[env, later]:
                    break
    return targets + value


def test_an_update_is_as_restated_in_numpy() -> None:
    agent: Any = ppo(
        discrete=True,
        discount=0.9,
        decay=0.8,
        reward_scale=2.0,
        entropy_weight=0.3,
        value_weight=0.7,
        max_gradient_norm=1e6,
        lr=0.1,
        # Half of it is over before this rollout.
        anneal_steps=2.0 * 30,
        num_epochs=1,
        num_minibatches=1,
        make_optimizer=optax.sgd,
    )
    state: Any = agent.init(SPEC, key=jr.key(0))
    # Logits that tell actions from one another.
    state = eqx.tree_at(
        lambda x: x.actor.network.layers[-1].bias,
        state,
        jnp.array([0.5, 0.0, -0.5, 1.0]),
    )
    state = dataclasses.replace(state, num_steps=jnp.asarray(30 + NUM_ENVS * NUM_STEPS))
    batch: Any = rollout()
    after: Any
    after, metrics = eqx.filter_jit(agent.update)(
        state, batch, step=jnp.asarray(0), key=jr.key(0)
    )
    state, after, batch, metrics = jax.device_get((state, after, batch, metrics))
    target = targets_of(agent, state, batch)
    value = outputs_of(state.critic.network, batch.observation)[..., 0]
    logits = outputs_of(state.actor.network, batch.observation)
    probs = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    entropy = -(probs * np.log(probs)).sum(axis=-1)
    advantage = target - value
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    # The first ratios are 1.
    assert metrics["actor_loss"] == pytest.approx(0, abs=1e-6)
    assert metrics["kl"] == metrics["clip_fraction"] == 0
    np.testing.assert_allclose(metrics["entropy"], entropy.mean(), rtol=1e-5)
    critic_loss = 0.5 * np.mean((value - target) ** 2)
    np.testing.assert_allclose(metrics["critic_loss"], critic_loss, rtol=1e-4)
    taken = np.eye(NUM_ACTIONS)[batch.action]
    of_logits = -advantage[..., None] * (taken - probs)
    of_logits += 0.3 * probs * (np.log(probs) + entropy[..., None])
    moved = after.actor.network.layers[-1].bias - state.actor.network.layers[-1].bias
    np.testing.assert_allclose(
        moved, -0.05 * of_logits.mean(axis=(0, 1)), rtol=1e-3, atol=1e-6
    )
    moved = after.critic.network.layers[-1].bias - state.critic.network.layers[-1].bias
    np.testing.assert_allclose(
        moved, [-0.05 * 0.7 * np.mean(value - target)], rtol=1e-3, atol=1e-6
    )
    # A long gradient of both networks is scaled down.
    short = dataclasses.replace(agent, max_gradient_norm=0.01)
    after, _ = eqx.filter_jit(short.update)(
        state, batch, step=jnp.asarray(0), key=jr.key(0)
    )
    moved = distance((state.actor, state.critic), (after.actor, after.critic))
    assert moved == pytest.approx(0.05 * 0.01, rel=1e-3)


def test_a_second_epoch_is_clipped_and_computes_advantages_again_if_asked() -> None:
    # The clip is so wide that no ratio leaves it.
    def after(*, clip: float = 10.0, **options: Any) -> tuple[Any, eqrl.Metrics]:
        agent: Any = ppo(
            discrete=True,
            clip=clip,
            entropy_weight=0.0,
            max_gradient_norm=1e6,
            lr=0.1,
            num_minibatches=1,
            make_optimizer=optax.sgd,
            normalize_advantage=False,
            **options,
        )
        return agent.update(begun, batch, step=jnp.asarray(0), key=jr.key(0))

    agent: Any = ppo(discrete=True)
    begun, batch = agent.init(SPEC, key=jr.key(0)), rollout()
    first, metrics = after(num_epochs=1)
    twice, both = after(num_epochs=2, recompute_advantages=True)
    kept, _ = after(num_epochs=2)
    _, clipped = after(num_epochs=2, clip=0.01, value_clip=0.01)
    before = begun
    # The networks share nothing, so the critic learned as in two updates.
    begun = dataclasses.replace(first, actor=begun.actor)
    expected, _ = after(num_epochs=1)
    for leaf, wanted, other in zip(
        *(jax.tree.leaves(x.critic) for x in (twice, expected, kept)), strict=True
    ):
        np.testing.assert_allclose(leaf, wanted, rtol=1e-4, atol=1e-6)
        assert np.max(np.abs(leaf - other)) > 1e-5
    state, old, batch = jax.device_get((first, begun, batch))
    value = outputs_of(state.critic.network, batch.observation)[..., 0]
    advantage = targets_of(agent, state, batch) - value
    taken = np.eye(NUM_ACTIONS)[batch.action]
    log_probs = [
        (
            taken * jax.nn.log_softmax(outputs_of(x.actor.network, batch.observation))
        ).sum(axis=-1)
        for x in (state, old)
    ]
    ratio = np.exp(log_probs[0] - log_probs[1])
    second = -np.mean(ratio * advantage)
    mean = (float(metrics["actor_loss"]) + second) / 2
    assert both["actor_loss"] == pytest.approx(mean, rel=1e-4)
    # Without that, ratios and values may leave those of before by the clip alone.
    old_value = outputs_of(before.critic.network, batch.observation)[..., 0]
    target = targets_of(agent, before, batch)
    advantage = target - old_value
    bounded = np.clip(ratio, 0.99, 1.01)
    bounded_value = np.clip(value, old_value - 0.01, old_value + 0.01)
    assert np.any(bounded != ratio) and np.any(bounded_value != value)
    second = -np.mean(np.minimum(ratio * advantage, bounded * advantage))
    mean = (float(metrics["actor_loss"]) + second) / 2
    assert clipped["actor_loss"] == pytest.approx(mean, rel=1e-4)
    squares = np.maximum((value - target) ** 2, (bounded_value - target) ** 2)
    mean = (float(metrics["critic_loss"]) + np.mean(squares) / 2) / 2
    assert clipped["critic_loss"] == pytest.approx(mean, rel=1e-4)


@pytest.mark.parametrize("truncates", [True, False])
def test_each_step_has_the_values_of_the_states_before_and_after_it(
    truncates: bool,
) -> None:
    batch: Any = rollout()
    assert np.any(batch.truncated[:, :-1]) and np.any(batch.terminated[:, :-1])
    if not truncates:
        # Of a step that is truncated last the next one is not known either way.
        batch = dataclasses.replace(
            batch,
            terminated=batch.terminated | batch.truncated.at[:, -1].set(False),
            truncated=batch.truncated.at[:, :-1].set(False),
        )
    value, after = rollout_values(jnp.sum, batch)
    np.testing.assert_allclose(value, batch.observation.sum(axis=-1).ravel(), rtol=1e-6)
    counts = ~np.asarray(batch.terminated).ravel()
    expected = batch.next_observation.sum(axis=-1).ravel()
    np.testing.assert_allclose(after[counts], expected[counts], rtol=1e-6)


def test_a_truncation_in_any_column_is_one() -> None:
    batch: Any = rollout()
    values = jax.jit(lambda batch: rollout_values(jnp.sum, batch)[1])
    expected = batch.next_observation.sum(axis=-1)
    for column in range(NUM_STEPS):
        truncated = jnp.zeros((NUM_ENVS, NUM_STEPS), bool).at[1, column].set(True)
        one = dataclasses.replace(
            batch, truncated=truncated, terminated=batch.terminated & False
        )
        after = values(one).reshape(NUM_ENVS, NUM_STEPS)
        np.testing.assert_allclose(after[1, column], expected[1, column], rtol=1e-6)


def test_all_orders_are_as_likely_as_each_other() -> None:
    draw = jax.jit(permutation, static_argnums=1)
    three = jax.jit(jax.vmap(lambda key: permutation(key, 3)))
    orders = three(jr.split(jr.key(0), 6_000))
    _, counts = np.unique(np.asarray(orders), axis=0, return_counts=True)
    # Of six cells with 1,000 each; beyond 20.5 once in a thousand draws.
    assert len(counts) == 6 and np.sum((counts - 1_000) ** 2 / 1_000) < 20.5
    # More numbers than there are bits beside them for.
    many = np.asarray(draw(jr.key(1), 100_000))
    np.testing.assert_array_equal(np.sort(many), np.arange(100_000))
    # Neighbors are far from each other: a third of the size, on average.
    assert np.mean(np.abs(np.diff(many))) == pytest.approx(100_000 / 3, rel=0.02)


def test_old_probabilities_are_those_of_what_is_known_now() -> None:
    # The statistics moved while the rollout was collected.
    inner = ppo(discrete=True, num_epochs=1, num_minibatches=1)
    agent: Any = eqrl.Normalized(inner)
    state = agent.init(SPEC, key=jr.key(0))
    for seed in range(3):
        seen = 5 * rollout(seed).observation[:, 0] + 3
        statistics = state.statistics.update(seen)
        state = eqx.tree_at(lambda x: x.statistics, state, statistics)
    _, metrics = agent.update(state, rollout(), step=jnp.asarray(0), key=jr.key(0))
    assert metrics["kl"] == metrics["clip_fraction"] == 0


def distance(one: Any, other: Any) -> float:
    """How far all weights of two networks are from each other."""
    squares = jax.tree.map(
        lambda x, y: jnp.sum((x - y) ** 2),
        *(eqx.filter(x, eqx.is_array) for x in (one, other)),
    )
    return float(np.sqrt(sum(jax.tree.leaves(squares))))


def test_each_row_is_learned_from_once_in_an_epoch() -> None:
    orders: list[np.ndarray] = []
    keys: list[tuple[int, ...]] = []

    def record(index: np.ndarray, key: np.ndarray) -> None:
        orders.append(np.asarray(index))
        keys.append(tuple(np.asarray(key).tolist()))

    def learn(
        seen: Int[Array, " rows"], index: Int[Array, " minibatch"], key: PRNGKeyArray
    ) -> tuple[Array, eqrl.Metrics]:
        jax.debug.callback(record, index, jr.key_data(key), ordered=True)
        return seen.at[index].add(1), {"first": index[0].astype(float)}

    def run(rows: Array, num_minibatches: int) -> Any:
        return learn_in_minibatches(
            learn,
            jnp.zeros(12, int),
            rows,
            num_epochs=3,
            num_minibatches=num_minibatches,
            key=jr.key(0),
        )

    seen, metrics = run(jnp.arange(12), 4)
    jax.effects_barrier()
    np.testing.assert_array_equal(seen, np.full(12, 3))
    assert len(set(keys)) == len(keys) == 12
    epochs = np.concatenate(orders).reshape(3, 12)
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs.tolist())
    # Drawn, and anew for each epoch.
    assert len({tuple(epoch) for epoch in [*epochs.tolist(), range(12)]}) == 4
    first = np.mean([order[0] for order in orders])
    assert metrics["first"] == pytest.approx(first)
    with pytest.raises(ValueError, match="`num_minibatches=5` must divide the 12"):
        run(jnp.arange(12), 5)


def test_a_minibatch_of_one_cannot_be_normalized() -> None:
    def update(**options: Any) -> Any:
        agent: Any = ppo(discrete=True, num_minibatches=15, **options)
        state = agent.init(SPEC, key=jr.key(0))
        return eqx.filter_eval_shape(
            agent.update, state, rollout(), step=jnp.asarray(0), key=jr.key(0)
        )

    with pytest.raises(ValueError, match="`num_minibatches=15` leaves one transition"):
        update()
    update(normalize_advantage=False)


def test_the_rate_is_annealed_by_the_steps_of_all_environments() -> None:
    row = jax.tree.map(lambda x: x[:, 0], rollout())
    for agent in (ppo(discrete=True), pqn()):
        begun = eqx.filter_eval_shape(agent.init, SPEC, key=jr.key(0))
        state: Any = dataclasses.replace(begun, num_steps=jnp.asarray(3))
        assert agent.observe(state, row).num_steps == 3 + NUM_ENVS


def test_advantages_that_are_all_equal_ask_for_nothing() -> None:
    agent: Any = ppo(discrete=True)

    @eqx.filter_jit
    def loss(batch: Any, equal: Array) -> Any:
        state = agent.init(SPEC, key=jr.key(0))
        rows = agent._rows(state, batch)
        rows = dataclasses.replace(rows, value=0 * rows.value, target=equal)
        mean = jnp.mean(equal)
        return mean, agent._loss((state.actor, state.critic), rows)[1]["actor_loss"]

    # As they are rounded, the mean of equal numbers may be another one.
    equal = jnp.full(NUM_ENVS * NUM_STEPS, 1.1)
    mean, actor_loss = loss(rollout(), equal)
    assert mean != equal[0] and actor_loss == 0


def test_an_entropy_of_each_element_is_refused() -> None:
    class Unsummed(eqrl.nn.SquashedNormal):
        def entropy(self) -> Any:
            return self.log_scale

    def make_actor(
        observation_size: int, action_size: int, *, key: PRNGKeyArray
    ) -> Any:
        del observation_size, key
        scale = jnp.zeros(action_size)
        return lambda observation: Unsummed(
            mean=observation[:action_size], log_scale=scale, squash=False
        )

    with pytest.raises(ValueError, match=r"`entropy` of the Unsummed.*scalar"):
        eqrl.PPO(make_actor=make_actor).init(eqrl.EnvSpec(3, 2), key=jr.key(0))


@pytest.mark.parametrize(
    "options, message",
    [
        ({"make_actor": eqrl.nn.Gaussian((8,))}, "AbstractLikelihood"),
        ({"make_actor": eqrl.nn.Normal((8,))}, r"Box\(size=4\).*`eqrl.nn.Choice`"),
        ({"make_critic": lambda size, *, key: lambda x: x}, "must give a scalar"),
    ],
    ids=["no likelihood", "other actions", "a vector"],
)
def test_networks_of_something_else_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        eqx.filter_eval_shape(eqrl.PPO(**options).init, SPEC, key=jr.key(0))


def test_the_policy_fits_the_environment_by_default() -> None:
    init = eqrl.PPO().init
    discrete = eqx.filter_eval_shape(init, SPEC, key=jr.key(0))
    assert isinstance(discrete.actor, eqrl.nn.ChoicePolicy)
    vectors = eqx.filter_eval_shape(init, eqrl.EnvSpec(3, 2), key=jr.key(0))
    assert isinstance(vectors.actor, eqrl.nn.NormalPolicy)


def test_what_is_stored_is_what_was_drawn_before_clipping() -> None:
    agent = ppo()
    state: Any = agent.init(eqrl.EnvSpec(3, 2), key=jr.key(0))
    far = eqx.tree_at(lambda x: x.actor.log_scale, state, jnp.full(2, 3.0))
    action, _, drawn = agent.act(far, None, jnp.ones(3), mode="sample", key=jr.key(1))
    assert np.all(np.abs(drawn) > 1)
    np.testing.assert_array_equal(action, np.clip(drawn, -1, 1))
    # A random action has no draw of the policy, which stores its most likely one.
    action, _, drawn = agent.act(far, None, jnp.ones(3), mode="random", key=jr.key(1))
    np.testing.assert_allclose(drawn, far.actor(jnp.ones(3)).mean, rtol=1e-6)
    assert np.all(np.abs(action) < 1) and not np.allclose(action, drawn)
