"""Agents learn what is known: environments whose values were worked out by hand."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import pytest
from jaxtyping import Array, PRNGKeyArray

import eqrl
from eqrl.losses import critic_values

from .agents_under_test import sac, td3
from .probe import Probe


GetKey = Callable[[], PRNGKeyArray]
DISCOUNT = 0.9

# Quick, and equal in everything static, so that each agent compiles once.
FAST: dict[str, Any] = {
    "hidden_sizes": (32, 32),
    "actor_lr": 3e-3,
    "critic_lr": 3e-3,
    "discount": DISCOUNT,
    "target_step_size": 0.05,
}
LEARNERS: dict[str, Any] = {
    "SAC": sac(initial_temperature=1e-3, learn_temperature=False, **FAST),
    "TD3": td3(exploration_noise=0.3, **FAST),
    "Normalized(TD3)": eqrl.Normalized(td3(exploration_noise=0.3, **FAST)),
}
TRAINER = eqrl.Trainer(num_envs=4, batch_size=64, warmup_steps=256, capacity=10_000)


@pytest.fixture(params=list(LEARNERS))
def agent(request: pytest.FixtureRequest) -> eqrl.AbstractAgent[Any, Any, Any]:
    return LEARNERS[request.param]


def learn(
    agent: eqrl.AbstractAgent[Any, Any, Any], probe: Probe, *, key: PRNGKeyArray
) -> Any:
    return eqrl.train(agent, probe, TRAINER, num_steps=10_000, key=key).state


def greedy(agent: Any, state: Any, observation: list[float]) -> Array:
    action, _, _ = agent.act(
        state, None, jnp.asarray(observation), mode="greedy", key=jr.key(0)
    )
    return action


def value(agent: Any, state: Any, observation: list[float]) -> float:
    """The mean value of what the agent would do at `observation`."""
    action = greedy(agent, state, observation)
    seen = jnp.asarray(observation)
    if isinstance(agent, eqrl.Normalized):
        seen, state = state.statistics.normalize(seen), state.agent
    return float(jnp.mean(critic_values(state.critics, seen[None], action[None])))


def test_a_constant_reward_is_valued_at_itself(agent: Any, getkey: GetKey) -> None:
    state = learn(agent, Probe(constant=1.0), key=getkey())
    assert value(agent, state, [1.0, 0.0]) == pytest.approx(1.0, abs=0.05)


def test_what_is_observed_decides_the_value(agent: Any, getkey: GetKey) -> None:
    state = learn(agent, Probe(sign_weight=1.0), key=getkey())
    values = [value(agent, state, [sign, 0.0]) for sign in (-1.0, 1.0)]
    assert values == pytest.approx([-1.0, 1.0], abs=0.1)


def test_a_later_reward_is_discounted(agent: Any, getkey: GetKey) -> None:
    state = learn(agent, Probe(length=3.0, last_weight=1.0), key=getkey())
    values = [value(agent, state, [1.0, time]) for time in (0.0, 1.0, 2.0)]
    assert values == pytest.approx([DISCOUNT**2, DISCOUNT, 1.0], abs=0.1)


def test_the_best_action_is_found(agent: Any, getkey: GetKey) -> None:
    state = learn(agent, Probe(action_weight=1.0, best_action=0.5), key=getkey())
    assert greedy(agent, state, [1.0, 0.0])[0] == pytest.approx(0.5, abs=0.1)


def test_the_best_action_follows_the_observation(agent: Any, getkey: GetKey) -> None:
    probe = Probe(action_weight=1.0, best_action_by_sign=0.5)
    state = learn(agent, probe, key=getkey())
    actions = [float(greedy(agent, state, [sign, 0.0])[0]) for sign in (-1.0, 1.0)]
    assert actions == pytest.approx([-0.5, 0.5], abs=0.1)


def test_termination_ends_the_value(agent: Any, getkey: GetKey) -> None:
    state = learn(agent, Probe(length=2.0, constant=1.0), key=getkey())
    values = [value(agent, state, [1.0, time]) for time in (0.0, 1.0)]
    assert values == pytest.approx([1 + DISCOUNT, 1.0], abs=0.1)


def test_truncation_does_not_end_the_value(agent: Any, getkey: GetKey) -> None:
    # Nothing tells the state behind the limit from the others, so all are worth the
    # same: constant / (1 - discount).
    probe = Probe(length=3.0, terminates=0.0, constant=1.0, time_weight=0.0)
    state = learn(agent, probe, key=getkey())
    expected = 1 / (1 - DISCOUNT)
    assert value(agent, state, [1.0, 0.0]) == pytest.approx(expected, rel=0.05)
