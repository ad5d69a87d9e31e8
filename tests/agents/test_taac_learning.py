"""TAAC learns values that were worked out by hand."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest
from jaxtyping import Array

import eqrl
from eqrl.losses import critic_values
from tests.agents_under_test import taac
from tests.probe import Probe
from tests.toy import GetKey


DISCOUNT = 0.9
SPEC = Probe().spec
# One agent and one trainer, so that all probes share a compilation.
AGENT = taac(
    hidden_sizes=(32,),
    actor_lr=3e-3,
    critic_lr=3e-3,
    temperature_lr=1e-2,
    discount=DISCOUNT,
    target_step_size=0.05,
    initial_temperature=1e-2,
    target_entropy=-2.0,
    switch_target_entropy=0.1,
)
TRAINER = eqrl.Trainer(num_envs=4, batch_size=16, warmup_steps=256, capacity=10_000)


def learn(probe: Probe, *, key: Array) -> Any:
    return eqrl.train(AGENT, probe, TRAINER, num_steps=8_000, key=key).state


@eqx.filter_jit
def begin_and_value(state: Any, observations: Array) -> tuple[Array, Array]:
    """The action with which an episode begins, and its value in each of these."""
    memory = AGENT.begin(state, SPEC, index=jnp.asarray(0), key=jr.key(0))
    action, _, _ = AGENT.act(
        state, memory, observations[0], mode="greedy", key=jr.key(1)
    )
    actions = jnp.broadcast_to(action, (len(observations), *action.shape))
    return action, jnp.mean(critic_values(state.critics, observations, actions), 0)


@pytest.mark.long
def test_a_later_reward_is_discounted_and_the_best_action_found(getkey: GetKey) -> None:
    probe = Probe(
        length=3.0, last_weight=1.0, action_weight=1.0, best_action_by_sign=0.5
    )
    state = learn(probe, key=getkey())
    for sign in (-1.0, 1.0):
        seen = jnp.asarray([[sign, time] for time in (0.0, 1.0, 2.0)])
        action, values = jax.device_get(begin_and_value(state, seen))
        assert action[0] == pytest.approx(0.5 * sign, abs=0.1)
        assert values == pytest.approx([DISCOUNT**2, DISCOUNT, 1.0], abs=0.1)


@pytest.mark.long
def test_truncation_does_not_end_the_value(getkey: GetKey) -> None:
    # All states look alike, so all are worth the same: constant / (1 - discount).
    probe = Probe(length=3.0, terminates=0.0, constant=1.0, time_weight=0.0)
    state = learn(probe, key=getkey())
    _, (worth,) = begin_and_value(state, jnp.asarray([[1.0, 0.0]]))
    assert float(worth) == pytest.approx(1 / (1 - DISCOUNT), rel=0.05)
