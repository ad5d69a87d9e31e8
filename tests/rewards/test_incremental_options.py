import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import pytest
from jaxtyping import Array, Float

import eqrl

from ..skilled import described_transitions


SPEC = eqrl.EnvSpec(
    observation_size=4, action_size=2, state_descriptor_size=2, max_steps=7
)


def init(reward: eqrl.Incremental, spec: eqrl.EnvSpec = SPEC) -> eqrl.IncrementalState:
    return reward.init(spec, key=jr.key(0))


# Mode, k, feature, normalization, shape of the recent set; then what the mode has
# `learn_skills` do: clear the recent set, collect all anew, include the newest, replay.
PRESETS = [
    ("paper", 3, "delta", "previous_skill_mean", (1, 7, 2), True, True, True, "half"),
    ("pseudocode", 5, "next_state", "none", (7, 100, 2), True, False, True, "keep"),
    ("released", 3, "delta", "released", (1, 7, 2), False, True, False, "half"),
]


@pytest.mark.parametrize("row", PRESETS)
def test_a_mode_decides_what_is_left_out(row: Any) -> None:
    reward = eqrl.Incremental(mode=row[0])
    preset = reward.preset
    assert row == (
        reward.mode,
        reward.k,
        reward.feature,
        reward.normalization,
        init(reward).recent.features.shape,
        preset.clear_recent,
        preset.recollect,
        preset.include_newest,
        preset.replay,
    )
    assert reward.per_timestep == (row[0] == "pseudocode")


def test_the_paper_is_the_default() -> None:
    reward = eqrl.Incremental()
    assert (reward.mode, reward.num_samples) == ("paper", 512)
    assert (reward.alpha, reward.beta) == (1, 1)


@pytest.mark.parametrize("mode", ["paper", "pseudocode", "released"])
def test_what_is_given_goes_before_what_the_mode_says(mode: Any) -> None:
    reward = eqrl.Incremental(
        mode=mode,
        k=1,
        feature="next_state",
        normalization="batch_mean",
        per_timestep=False,
        recent_capacity=5,
    )
    assert (reward.k, reward.feature) == (1, "next_state")
    assert (reward.normalization, reward.per_timestep) == ("batch_mean", False)
    assert init(reward).recent.features.shape == (1, 5, 2)


def test_a_set_has_room_for_no_fewer_than_k() -> None:
    reward = eqrl.Incremental(per_timestep=True, k=4)
    # One episode has one feature for each timestep.
    assert init(reward).recent.features.shape == (7, 4, 2)


def test_the_past_has_the_room_it_is_given() -> None:
    assert init(eqrl.Incremental(past_capacity=9)).past.features.shape == (1, 9, 2)
    per_timestep = eqrl.Incremental(past_capacity=9, per_timestep=True)
    assert init(per_timestep).past.features.shape == (7, 9, 2)


def first_two(observation: Float[Array, " obs"]) -> Float[Array, "2"]:
    return observation[:2]


@pytest.mark.parametrize("descriptor", ["state_descriptor", "observation", first_two])
def test_features_are_of_the_descriptor(descriptor: Any) -> None:
    batch = described_transitions(np.random.default_rng(0), 2, 3)
    assert batch.next_state_descriptor is not None
    left, reached = {
        "state_descriptor": (batch.state_descriptor, batch.next_state_descriptor),
        "observation": (batch.observation, batch.next_observation),
        first_two: (batch.observation[..., :2], batch.next_observation[..., :2]),
    }[descriptor]
    for feature in ("delta", "next_state"):
        reward = eqrl.Incremental(descriptor=descriptor, feature=feature)
        expected = reached - left if feature == "delta" else reached
        np.testing.assert_array_equal(reward.features(batch), expected)
        state = init(reward)
        assert state.recent.features.shape[-1] == expected.shape[-1]
        assert state.past.features.shape[-1] == expected.shape[-1]


def test_transitions_without_a_descriptor_are_refused() -> None:
    batch = described_transitions(np.random.default_rng(0), 3)
    batch = dataclasses.replace(batch, state_descriptor=None)
    with pytest.raises(ValueError, match="describes no behavior"):
        eqrl.Incremental().features(batch)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "page"}, r"`mode='page'`.*'paper', 'pseudocode', 'released'"),
        ({"k": 0}, r"`k=0` must be an integer, at least 1"),
        ({"num_samples": 2}, r"`num_samples=2` must be at least `k=3`.*lower `k`"),
        ({"num_samples": 0}, r"`num_samples=0` must be an integer, at least 1"),
        ({"k": 600}, r"`num_samples=512` must be at least `k=600`"),
        ({"recent_capacity": 2}, r"`recent_capacity=2` must be at least `k=3`"),
        ({"past_capacity": -1}, r"`past_capacity=-1` must be an integer, at least 0"),
        ({"alpha": jnp.inf}, r"`alpha=inf`.*finite"),
        ({"beta": jnp.nan}, r"`beta=nan`.*finite"),
        ({"beta": jnp.ones(2)}, r"`beta` has shape \(2,\).*filter_vmap"),
        ({"descriptor": "torso"}, r"`descriptor='torso'`.*'observation'"),
        ({"feature": "state"}, r"`feature='state'`.*'delta', 'next_state'"),
        (
            {"normalization": "mean"},
            r"`normalization='mean'`.*previous_skill_mean.*batch_mean.*none.*released",
        ),
    ],
)
def test_what_is_given_wrongly_is_refused(
    options: Any, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Without the tests' checks of types, as users have it.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ValueError, match=message):
        eqrl.Incremental(**options)


@pytest.mark.parametrize("options", [{}, {"per_timestep": True, "recent_capacity": 4}])
def test_without_a_time_limit_what_needs_one_is_refused(options: Any) -> None:
    spec = dataclasses.replace(SPEC, max_steps=None)
    with pytest.raises(ValueError, match=r"no time limit.*`eqrl.envs.TimeLimit`"):
        init(eqrl.Incremental(**options), spec)


def test_without_a_time_limit_a_capacity_is_enough() -> None:
    spec = dataclasses.replace(SPEC, max_steps=None)
    init(eqrl.Incremental(recent_capacity=4), spec)


def test_a_descriptor_the_environment_does_not_give_is_refused() -> None:
    spec = dataclasses.replace(SPEC, state_descriptor_size=None)
    with pytest.raises(ValueError, match=r"observations of size 4.*'observation'"):
        init(eqrl.Incremental(), spec)


def test_a_descriptor_must_be_a_vector_of_floats() -> None:
    with pytest.raises(ValueError, match="must give a vector of floats"):
        init(eqrl.Incremental(descriptor=jnp.sum))


def test_all_that_is_learnt_is_in_arrays_of_one_type() -> None:
    leaves = jax.tree.leaves(init(eqrl.Incremental(past_capacity=4)))
    assert {str(leaf.dtype) for leaf in leaves} == {"float32", "int32"}
    assert not any(leaf.weak_type for leaf in leaves)
