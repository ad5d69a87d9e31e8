from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray

import eqrl

from ..agents_under_test import sac
from ..skilled import specs_of_begin
from ..toy import Compass, GetKey, Scribe, random_transitions


SPEC = eqrl.EnvSpec(observation_size=4, action_size=2)


class Countdown(eqrl.AbstractReward[Float[Array, ""]]):
    """Worth what it has learnt, of which an update takes one away."""

    def init(self, spec: eqrl.EnvSpec, *, key: PRNGKeyArray) -> Float[Array, ""]:
        del spec, key
        return jnp.full((), 5.0)

    def observe(
        self, state: Float[Array, ""], transitions: eqrl.Transition
    ) -> Float[Array, ""]:
        return state + 100 * transitions.timestep.shape[0]

    def reward(
        self,
        state: Float[Array, ""],
        batch: eqrl.Transition,
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        del key
        return jnp.full(batch.timestep.shape, state + step)

    def update(
        self, state: Float[Array, ""], batch: eqrl.Transition, *, key: PRNGKeyArray
    ) -> tuple[Float[Array, ""], eqrl.Metrics]:
        del batch, key
        return state - 1, {"countdown": state}


def begin(agent: Any, getkey: GetKey) -> tuple[Any, Any]:
    """A state and three transitions."""
    batch = random_transitions(getkey(), 3, observation_size=4, action_size=2)
    return agent.init(SPEC, key=getkey()), batch


def test_a_batch_is_scored_by_the_reward_from_before_the_update(getkey: GetKey) -> None:
    agent = eqrl.Intrinsic(Compass(), Countdown())
    state, batch = begin(agent, getkey)
    state, metrics = agent.update(state, batch, step=jnp.asarray(2), key=getkey())
    # Each of three transitions is worth 5 + 2.
    assert metrics["reward"] == 3 * 7
    assert metrics["intrinsic_reward"] == 7
    assert metrics["countdown"] == 5
    assert state.reward == 4
    later = eqrl.Intrinsic(Compass(), Countdown(), score_after_update=True)
    _, metrics = later.update(state, batch, step=jnp.asarray(2), key=getkey())
    # It has learned 4 and then 3, by which it scores.
    assert metrics["reward"] == 3 * 5


def test_a_reward_may_learn_several_times_from_a_batch(getkey: GetKey) -> None:
    agent = eqrl.Intrinsic(Compass(), Countdown(), reward_minibatches=3)
    state, batch = begin(agent, getkey)
    after, metrics = agent.update(state, batch, step=jnp.asarray(2), key=getkey())
    # All is scored by the reward from before.
    assert metrics["reward"] == 3 * 7
    # It counted 5, 4 and 3.
    assert metrics["countdown"] == 4
    assert after.reward == 2


def test_the_environments_reward_is_added_with_its_weight(getkey: GetKey) -> None:
    agent = eqrl.Intrinsic(Compass(), Countdown(), environment_weight=0.5)
    state, batch = begin(agent, getkey)
    _, metrics = agent.update(state, batch, step=jnp.asarray(0), key=getkey())
    expected = 15 + 0.5 * jnp.sum(batch.reward)
    np.testing.assert_allclose(metrics["reward"], expected, rtol=1e-6)
    assert metrics["intrinsic_reward"] == 5


def test_each_draws_from_a_key_of_its_own(
    getkey: GetKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[tuple[int, ...]] = []

    def recording(method: Callable[..., Any]) -> Callable[..., Any]:
        def record(*args: Any, key: PRNGKeyArray, **options: Any) -> Any:
            keys.append(tuple(jr.key_data(key).tolist()))
            return method(*args, key=key, **options)

        return record

    for kind, name in (
        (Countdown, "reward"),
        (Countdown, "update"),
        (Scribe, "update"),
    ):
        monkeypatch.setattr(kind, name, recording(getattr(kind, name)))
    agent: eqrl.AbstractAgent[Any, Any, Any] = eqrl.Intrinsic(Scribe(), Countdown())
    state, batch = begin(agent, getkey)
    agent.update(state, batch, step=jnp.asarray(0), key=getkey())
    assert len(set(keys)) == 3


def test_the_agent_is_told_the_step(getkey: GetKey) -> None:
    agent: eqrl.AbstractAgent[Any, Any, Any] = eqrl.Intrinsic(Scribe(), Countdown())
    state, batch = begin(agent, getkey)
    state, _ = agent.update(state, batch, step=jnp.asarray(7), key=getkey())
    assert state.agent.last_step == 7


def test_the_agent_begins_with_a_scalar_reward(
    getkey: GetKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = eqrl.EnvSpec(observation_size=4, action_size=2, reward_size=3)
    specs = specs_of_begin(monkeypatch)
    agent = eqrl.Intrinsic(Compass(), Countdown())
    state = agent.init(spec, key=getkey())
    agent.begin(state, spec, index=jnp.asarray(0), key=getkey())
    assert [spec.reward_size for spec in specs] == [None]


@pytest.mark.parametrize("method", ["observe", "reward"])
def test_a_reward_of_skills_needs_an_agent_with_skills(
    method: str, getkey: GetKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = eqrl.Intrinsic(Compass(), Countdown())
    state, batch = begin(agent, getkey)
    # The transitions are the last argument that is given by its place.
    monkeypatch.setattr(Countdown, method, lambda *args, **_: args[-1].extras.skill)
    with pytest.raises(ValueError, match=r"`Countdown` .* Compass, .*SkillConditioned"):
        agent.observe(state, batch)
        agent.update(state, batch, step=jnp.asarray(0), key=getkey())


@pytest.mark.parametrize("weight", [None, 0.5])
def test_fresh_transitions_reach_both(weight: float | None, getkey: GetKey) -> None:
    agent = eqrl.Intrinsic(Compass(), Countdown(), environment_weight=weight)
    state, fresh = begin(agent, getkey)
    state = agent.observe(state, fresh)
    assert state.reward == 305
    expected = 0.0 if weight is None else weight * jnp.sum(fresh.reward)
    np.testing.assert_allclose(state.agent, expected, rtol=1e-6)


def test_an_agent_of_scalar_rewards_can_learn_where_they_are_vectors(
    getkey: GetKey,
) -> None:
    spec = eqrl.EnvSpec(observation_size=4, action_size=2, reward_size=3)
    agent = eqrl.Intrinsic(sac(), Countdown())
    eqx.filter_eval_shape(agent.init, spec, key=getkey())


def test_a_vector_of_rewards_cannot_be_added(getkey: GetKey) -> None:
    spec = eqrl.EnvSpec(observation_size=4, action_size=2, reward_size=3)
    agent = eqrl.Intrinsic(sac(), Countdown(), environment_weight=1.0)
    with pytest.raises(ValueError, match=r"`environment_weight`.*vector"):
        agent.init(spec, key=getkey())
    # The reward is told of the environment's own, which the agent never sees.
    skilled = eqrl.SkillConditioned(Compass(), 2)
    smerl: Any = eqrl.Intrinsic(skilled, eqrl.SMERL(eqrl.Discriminator(2)))
    with pytest.raises(ValueError, match="rewards are vectors"):
        smerl.init(spec, key=getkey())


def test_the_weight_is_a_finite_number() -> None:
    with pytest.raises(ValueError, match="`environment_weight=inf`"):
        eqrl.Intrinsic(sac(), Countdown(), environment_weight=jnp.inf)


def test_names_of_metrics_of_one_within_another_do_not_collide(getkey: GetKey) -> None:
    inside = eqrl.Intrinsic(Compass(), Countdown(), environment_weight=1.0)
    agent = eqrl.Intrinsic(inside, Countdown())
    state = agent.init(SPEC, key=getkey())
    assert isinstance(state.agent, eqrl.IntrinsicState)
    inner = eqrl.IntrinsicState(agent=state.agent.agent, reward=jnp.asarray(2.0))
    state = eqrl.IntrinsicState(agent=inner, reward=state.reward)
    batch = random_transitions(getkey(), 3, observation_size=4, action_size=2)
    _, metrics = agent.update(state, batch, step=jnp.asarray(0), key=getkey())
    found = {name: float(value) for name, value in metrics.items() if value.ndim == 0}
    assert (found["intrinsic_reward"], found["countdown"]) == (5, 5)
    assert (found["inner_intrinsic_reward"], found["inner_countdown"]) == (2, 2)
    assert found["reward"] == 3 * (5 + 2)


def test_a_sum_weighs_rewards_and_lets_each_learn(getkey: GetKey) -> None:
    reward = eqrl.Sum((Countdown(), Countdown()), weights=(2.0, -0.5))
    state = reward.init(SPEC, key=getkey())
    state = eqrl.SumState((jnp.asarray(3.0), jnp.asarray(8.0)))
    batch = random_transitions(getkey(), 3, observation_size=4, action_size=2)
    found = reward.reward(state, batch, step=jnp.asarray(1), key=getkey())
    np.testing.assert_array_equal(found, [2 * 4 - 0.5 * 9] * 3)
    even = eqrl.Sum((Countdown(), Countdown()))
    found = even.reward(state, batch, step=jnp.asarray(1), key=getkey())
    np.testing.assert_array_equal(found, [4 + 9] * 3)
    after, metrics = reward.update(state, batch, key=getkey())
    assert after.rewards == (2, 7)
    assert metrics == {"0_countdown": 3, "1_countdown": 8}
    assert reward.observe(state, batch).rewards == (303, 308)


def test_rewards_of_a_sum_draw_with_keys_of_their_own(
    getkey: GetKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[tuple[int, ...]] = []

    def draw(result: Any, *, key: PRNGKeyArray) -> Any:
        keys.append(tuple(jr.key_data(key).tolist()))
        return result

    results: dict[str, Any] = {"init": jnp.zeros(()), "reward": jnp.zeros(3)}
    results["update"] = (jnp.zeros(()), {})
    for name, result in results.items():
        give = lambda *_, key, result=result, **__: draw(result, key=key)
        monkeypatch.setattr(Countdown, name, give)
    reward = eqrl.Sum((Countdown(), Countdown()))
    state = reward.init(SPEC, key=getkey())
    batch = random_transitions(getkey(), 3, observation_size=4, action_size=2)
    reward.reward(state, batch, step=jnp.asarray(1), key=getkey())
    reward.update(state, batch, key=getkey())
    assert len(set(keys)) == len(keys) == 6
    # One number for all transitions would broadcast.
    monkeypatch.setattr(Countdown, "reward", lambda *_, **__: jnp.zeros(()))
    with pytest.raises(ValueError, match=r"of Countdown gives .*shape \(\).*\(3,\)"):
        reward.reward(state, batch, step=jnp.asarray(1), key=getkey())


@pytest.mark.parametrize(
    ("number", "weights", "message"),
    [
        (0, None, "`rewards` is empty"),
        (2, (1.0,), "sequence of 2 numbers"),
        (2, 1.0, "sequence of 2 numbers"),
        (1, (jnp.nan,), r"`weights\[0\]=nan`"),
    ],
)
def test_a_sum_needs_a_weight_for_each_reward(
    number: int, weights: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        eqrl.Sum((Countdown(),) * number, weights=weights)
