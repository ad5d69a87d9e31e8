import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, PRNGKeyArray

import eqrl
from eqrl._rewards.feature_set import FeatureSet
from eqrl._rewards.scale import RunningMean

from ..skilled import MAX_STEPS, described_transitions
from ..toy import GetKey
from .incremental_restated import Restated


SPEC = eqrl.EnvSpec(
    observation_size=4, action_size=2, state_descriptor_size=2, max_steps=MAX_STEPS
)
ZERO = jnp.zeros((), int)


def features_of(batch: eqrl.Transition[Any], feature: str) -> np.ndarray:
    assert batch.next_state_descriptor is not None
    reached = np.asarray(batch.next_state_descriptor)
    if feature == "next_state":
        return reached
    assert batch.state_descriptor is not None
    return reached - np.asarray(batch.state_descriptor)


@eqx.filter_jit
def init(reward: eqrl.Incremental, key: PRNGKeyArray) -> Any:
    return reward.init(SPEC, key=key)


@eqx.filter_jit
def score(
    reward: eqrl.Incremental, state: Any, batch: Any, *, key: PRNGKeyArray
) -> Array:
    return reward.reward(state, batch, step=ZERO, key=key)


@eqx.filter_jit
def updated(
    reward: eqrl.Incremental, state: Any, batch: Any, *, key: PRNGKeyArray
) -> Any:
    return reward.update(state, batch, key=key)


@eqx.filter_jit
def observed(reward: eqrl.Incremental, state: Any, batch: Any) -> Any:
    return reward.observe(state, batch)


@eqx.filter_jit
def with_past(
    reward: eqrl.Incremental, state: Any, batch: Any, mask: Array | np.ndarray
) -> Any:
    return reward.with_past(state, batch, jnp.asarray(mask))


@eqx.filter_jit
def begun(reward: eqrl.Incremental, state: Any, num_updates: int) -> Any:
    return reward.begin_skill(state, num_updates=num_updates)


def as_after_calls(state: eqrl.IncrementalState, calls: int) -> eqrl.IncrementalState:
    return eqx.tree_at(lambda state: state.scale.all_calls, state, jnp.asarray(calls))


def check_course(
    reward: eqrl.Incremental,
    getkey: GetKey,
    random: np.random.Generator,
    *,
    shape: tuple[int, ...] = (40,),
    first_logged: int = 0,
) -> None:
    """Three skills, of which the restatement must say the same.

    From `first_logged` on, the second update of each skill is one that is logged.
    """
    state = init(reward, getkey())
    restated = Restated(
        normalization=reward.normalization,
        k=reward.k,
        alpha=float(reward.alpha),
        beta=float(reward.beta),
        recent_rows=state.recent.features.shape[1],
        per_timestep=reward.per_timestep,
    )
    for skill in range(3):
        if skill > 0:
            for length in (MAX_STEPS, 2):
                episodes = described_transitions(random, 3, MAX_STEPS)
                # Some episodes end early.
                mask = np.arange(MAX_STEPS)[None] < np.array([[length], [3], [1]])
                state = with_past(reward, state, episodes, mask)
                restated.with_past(features_of(episodes, reward.feature), mask)
            state = begun(reward, state, 4)
            restated.begin_skill(4, clear_recent=reward.preset.clear_recent)
        for calls in range(3):
            fresh = described_transitions(random, 5)
            state = observed(reward, state, fresh)
            restated.observe(
                features_of(fresh, reward.feature), np.asarray(fresh.timestep)
            )
            batch = described_transitions(random, *shape)
            features = features_of(batch, reward.feature).reshape(-1, 2)
            timesteps = np.asarray(batch.timestep).reshape(-1)
            found = np.asarray(score(reward, state, batch, key=getkey()))
            assert found.shape == shape
            np.testing.assert_allclose(
                found.reshape(-1),
                restated.reward(features, timesteps),
                rtol=1e-5,
                atol=1e-5,
            )
            if calls == 0:
                before = 9_998 if skill >= first_logged else 0
                state = as_after_calls(state, before)
                restated.all_calls = before
            state, metrics = updated(reward, state, batch, key=getkey())
            restated.update(features, timesteps)
            diversity, consistency = restated.means[-1]
            expected = [np.nan_to_num(diversity, nan=1), np.nan_to_num(consistency)]
            names = ("diversity", "consistency")
            np.testing.assert_allclose(
                [metrics[name] for name in names], expected, rtol=1e-5
            )


@pytest.mark.parametrize(
    ("normalization", "per_timestep"),
    [
        ("previous_skill_mean", False),
        ("previous_skill_mean", True),
        ("batch_mean", False),
        ("none", False),
    ],
)
def test_the_reward_is_what_it_is_said_to_be(
    normalization: Any, per_timestep: bool, getkey: GetKey
) -> None:
    reward = eqrl.Incremental(
        alpha=2.0,
        beta=0.5,
        k=2,
        normalization=normalization,
        per_timestep=per_timestep,
        feature="next_state" if per_timestep else "delta",
        recent_capacity=4,
        past_capacity=30,
    )
    check_course(
        reward,
        getkey,
        np.random.default_rng(0),
        shape=(5, 8) if per_timestep else (40,),
    )


@pytest.mark.parametrize("first_logged", [0, 1, 3])
def test_the_released_normalization_begins_with_a_1_where_nothing_was_logged(
    first_logged: int, getkey: GetKey
) -> None:
    reward = eqrl.Incremental(
        alpha=2.0, beta=0.5, mode="released", recent_capacity=4, past_capacity=30
    )
    check_course(reward, getkey, np.random.default_rng(0), first_logged=first_logged)


def on_a_line(*places: float) -> eqrl.Transition[None]:
    """Transitions from 0 to these places, at timestep 0."""
    there = np.stack([places, np.zeros(len(places))], axis=1)
    batch = described_transitions(np.random.default_rng(0), len(places))
    return dataclasses.replace(
        batch,
        timestep=jnp.asarray(np.zeros(len(places)), int),
        state_descriptor=jnp.asarray(np.zeros_like(there), float),
        next_state_descriptor=jnp.asarray(there, float),
    )


def state_of(
    reward: eqrl.Incremental, past: tuple[float, ...], recent: tuple[float, ...]
) -> eqrl.IncrementalState:
    """Past and recent features at these places on a line."""
    state = init(reward, jr.key(0))

    def put(points: FeatureSet, places: tuple[float, ...]) -> FeatureSet:
        features = np.zeros(points.features.shape)
        features[0, : len(places), 0] = places
        counts = np.full(points.counts.shape, len(places))
        return FeatureSet(
            features=jnp.asarray(features, float), counts=jnp.asarray(counts, int)
        )

    return eqrl.IncrementalState(
        past=put(state.past, past), recent=put(state.recent, recent), scale=state.scale
    )


def plain(**options: Any) -> eqrl.Incremental:
    options = {"k": 2, "recent_capacity": 8, "past_capacity": 8} | options
    return eqrl.Incremental(**options)


def test_it_is_good_to_be_far_from_the_past_and_near_to_the_recent(
    getkey: GetKey,
) -> None:
    reward = plain(alpha=3.0, beta=2.0, normalization="none")
    state = state_of(reward, past=(0, 1, 5), recent=(9, 10, 20))
    # From 10 to the second nearest: 9 and 1. From 2: 2 and 8.
    found = score(reward, state, on_a_line(10, 2), key=getkey())
    np.testing.assert_allclose(found, [2 * 9 - 3 * 1, 2 * 2 - 3 * 8])


def test_without_a_past_diversity_is_1_whatever_the_normalization(
    getkey: GetKey,
) -> None:
    for normalization in ("previous_skill_mean", "batch_mean", "none"):
        reward = plain(beta=0.7, normalization=normalization)
        state = state_of(reward, past=(3,), recent=(5,))
        found = score(reward, state, on_a_line(1, 4), key=getkey())
        np.testing.assert_allclose(found, [0.7, 0.7], rtol=1e-6)


def test_nothing_was_logged_in_the_released_normalization(getkey: GetKey) -> None:
    # Both weights cancel, and the temperature goes from -1 to 1 within a skill.
    reward = plain(mode="released", k=2, alpha=60.0, beta=7.0)
    state = state_of(reward, past=(0, 1, 5), recent=(9, 10, 20))
    state = reward.begin_skill(state, num_updates=100)
    rewards = []
    for calls in (0, 50, 100):
        at = eqx.tree_at(lambda s: s.scale.calls, state, jnp.asarray(calls))
        rewards.append(score(reward, at, on_a_line(2, 2), key=getkey())[0])
    tanh_4 = 0.9993293
    np.testing.assert_allclose(rewards, [2 + 8 * tanh_4, 2, 2 - 8 * tanh_4], rtol=1e-5)


def test_a_logged_penalty_turns_consistency_round_in_the_released_normalization(
    getkey: GetKey,
) -> None:
    reward = plain(mode="released", k=2, alpha=60.0)
    state = as_after_calls(state_of(reward, past=(), recent=(9, 10, 20)), 9_999)
    # The penalty of a first skill is -60 * 4.
    state, _ = updated(reward, state, on_a_line(5, 5), key=getkey())
    state = reward.begin_skill(state, num_updates=100)
    np.testing.assert_allclose(state.scale.consistency.factor, 1 / (60 * -60 * 5))
    end = eqx.tree_at(lambda s: s.scale.calls, state, jnp.asarray(100))
    nearer, farther = score(reward, end, on_a_line(9, 2), key=getkey())
    assert farther > nearer


def test_an_empty_pasts_1_is_divided_too_in_the_released_normalization(
    getkey: GetKey,
) -> None:
    reward = plain(mode="released", k=2, alpha=0.0, beta=10.0)
    state = as_after_calls(state_of(reward, past=(), recent=()), 9_999)
    # The bonus of a first skill is 10 * 1, by which the 1 of the second is divided.
    state, _ = updated(reward, state, on_a_line(5, 5), key=getkey())
    state = reward.begin_skill(state, num_updates=100)
    found = score(reward, state, on_a_line(5, 5), key=getkey())
    np.testing.assert_allclose(found, [10 * 1 / (10 * 10)] * 2, rtol=1e-6)


def test_the_divisor_is_at_least_a_hundredth_of_the_batchs_mean(
    getkey: GetKey,
) -> None:
    reward = plain()
    state = state_of(reward, past=(), recent=(0, 0))
    # A first skill that is all but perfectly consistent.
    state, _ = updated(reward, state, on_a_line(1e-6, 1e-6), key=getkey())
    state = observed(reward, reward.begin_skill(state, num_updates=1), on_a_line(0, 0))
    found = score(reward, state, on_a_line(1, 3), key=getkey())
    np.testing.assert_allclose(found, [1 - 100 / 2, 1 - 300 / 2], rtol=1e-5)


@pytest.mark.parametrize(
    "normalization", ["previous_skill_mean", "batch_mean", "none", "released"]
)
def test_distances_of_0_give_finite_rewards(normalization: Any, getkey: GetKey) -> None:
    same, other = on_a_line(1, 1), on_a_line(5, 6)
    for weight in (0.0, 1.0):
        reward = plain(alpha=weight, beta=weight, normalization=normalization)
        state = as_after_calls(state_of(reward, past=(1, 1), recent=(1, 1)), 9_999)
        for _ in range(2):
            state, metrics = updated(reward, state, same, key=getkey())
            for batch in (same, other):
                rewards = score(reward, state, batch, key=getkey())
                assert np.all(np.isfinite(rewards))
            assert np.all(np.isfinite(list(jax.device_get(metrics).values())))
            state = observed(reward, begun(reward, state, 0), same)
        leaves = jax.tree.leaves(jax.device_get(state))
        assert all(np.all(np.isfinite(leaf)) for leaf in leaves)


def test_weights_are_leaves_that_retrace_nothing(getkey: GetKey) -> None:
    num_traces = 0
    batch = on_a_line(10, 2)

    @eqx.filter_jit
    def counted(reward: eqrl.Incremental, state: Any, key: PRNGKeyArray) -> Array:
        nonlocal num_traces
        num_traces += 1
        return reward.reward(state, batch, step=ZERO, key=key)

    for weights in ({}, {"alpha": 3.0}, {"beta": 2}):
        reward = plain(normalization="none", **weights)
        counted(reward, state_of(reward, (0, 1), (9, 10)), getkey())
    assert num_traces == 1


def test_a_stack_of_weights_can_be_mapped_over(getkey: GetKey) -> None:
    make = lambda alpha: plain(alpha=alpha, normalization="none", num_samples=4)
    rewards = eqx.filter_vmap(make)(jnp.array([0.0, 1.0, 2.0]))
    state = state_of(plain(num_samples=4), (0, 1, 5), (9, 10, 20))
    score_one = lambda reward, key: score(reward, state, on_a_line(10), key=key)
    found = eqx.filter_vmap(score_one)(rewards, jr.split(getkey(), 3))
    np.testing.assert_allclose(found[:, 0], [9, 8, 7])


def test_each_key_draws_other_points(getkey: GetKey) -> None:
    reward = plain(num_samples=4, past_capacity=30, normalization="none")
    state = state_of(reward, tuple(range(30)), ())
    key, batch = getkey(), on_a_line(*range(30))
    first = score(reward, state, batch, key=jr.clone(key))
    np.testing.assert_array_equal(first, score(reward, state, batch, key=key))
    assert not np.array_equal(first, score(reward, state, batch, key=getkey()))


def test_the_past_can_be_emptied_and_filled_again(getkey: GetKey) -> None:
    reward = plain(normalization="none", alpha=0.0)
    state = state_of(reward, (0, 1), (9, 10))
    emptied = reward.without_past(state)
    assert eqx.tree_equal(emptied.recent, state.recent)
    assert score(reward, emptied, on_a_line(5, 5), key=getkey())[0] == 1
    episodes = jax.tree.map(lambda x: x[None], on_a_line(7, 8, 9))
    mask = jnp.array([[True, True, False]])
    again = with_past(reward, emptied, episodes, mask)
    assert again.past.counts.tolist() == [2]
    assert score(reward, again, on_a_line(5, 5), key=getkey())[0] == 3


@pytest.mark.parametrize("mode", ["paper", "pseudocode", "released"])
def test_a_skill_begins_with_the_past_and_without_the_recent_if_the_mode_says_so(
    mode: Any,
) -> None:
    reward = plain(mode=mode, per_timestep=False)
    state = as_after_calls(state_of(reward, (0, 1), (9, 10)), 7)
    begun = reward.begin_skill(state, num_updates=10)
    assert eqx.tree_equal(begun.past, state.past)
    assert begun.recent.counts.tolist() == ([2] if mode == "released" else [0])
    assert (begun.scale.calls, begun.scale.expected_calls) == (0, 10)
    assert begun.scale.all_calls == 7
    before, after = jax.tree.map(lambda x: (x.shape, x.dtype), (state, begun))
    assert before == after


def test_updates_without_points_are_no_part_of_the_means(getkey: GetKey) -> None:
    reward = plain()
    state = state_of(reward, past=(), recent=())
    state, _ = updated(reward, state, on_a_line(5, 5), key=getkey())
    state = observed(reward, state, on_a_line(9, 10))
    state, _ = updated(reward, state, on_a_line(5, 5), key=getkey())
    scale = reward.begin_skill(state, num_updates=1).scale
    # From 5 to the second nearest of 9 and 10; of diversity nothing is known.
    assert (scale.consistency.previous, scale.diversity.previous) == (5, 0)


def test_a_mean_over_very_many_updates_is_not_lost_to_rounding() -> None:
    nothing = RunningMean(mean=jnp.zeros(()), count=jnp.zeros((), int))
    value, counts = jnp.asarray(0.01), jnp.asarray(True)
    add = lambda _, mean: mean.add(value, counts)
    after = jax.jit(lambda mean: lax.fori_loop(0, 1_000_000, add, mean))(nothing)
    np.testing.assert_allclose(after.mean, 0.01, rtol=1e-4)


def test_no_gradient_flows_through_the_reward(getkey: GetKey) -> None:
    reward = plain()
    state = state_of(reward, (0, 1), (9, 10))
    batch, key = on_a_line(3, 4), getkey()

    def total(reward: eqrl.Incremental, scale: Array) -> Array:
        assert batch.next_state_descriptor is not None
        reached = scale * batch.next_state_descriptor
        moved = dataclasses.replace(batch, next_state_descriptor=reached)
        return jnp.sum(reward.reward(state, moved, step=ZERO, key=key))

    gradients = jax.jit(jax.grad(total, argnums=(0, 1)))(reward, jnp.asarray(1.0))
    assert all(gradient == 0 for gradient in jax.tree.leaves(gradients))
