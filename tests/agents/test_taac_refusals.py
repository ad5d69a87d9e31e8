"""Arguments that TAAC raises an error for, and that the error names them."""

import math
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import optax
import pytest
from jaxtyping import PRNGKeyArray

import eqrl
from tests.agents_under_test import taac


REFUSED: list[dict[str, Any]] = [
    {"window_length": 0},
    {"actor_lr": -1.0},
    {"critic_lr": math.nan},
    {"temperature_lr": -0.1},
    {"discount": 1.1},
    {"discount": None},
    {"discount": (0.9, 1.1)},
    {"discount": (0.9, None)},
    {"target_step_size": 2.0},
    {"target_period": 0},
    {"reward_weights": (1.0, math.inf)},
    {"reward_weights": (1.0, None)},
    {"reward_weights": 1.0},
    {"num_critics": 0},
    {"initial_temperature": 0.0},
    {"target_entropy": math.nan},
    {"switch_target_entropy": math.inf},
    {"advantage_clip": (1.0, 0.0)},
    {"advantage_clip": (1.0,)},
    {"advantage_clip": (None, 1.0)},
    {"advantage_clip": 1.0},
    {"max_repeat_steps": 0},
    {"max_repeat_steps": 1.5},
    {"epsilon": 1.5},
    {"bootstrap": "both"},
    {"target": "two_step"},
    {"td_loss": lambda values, targets: jnp.sum(values - targets)},
    {"make_optimizer": (optax.sgd, optax.sgd)},
]


def test_a_value_out_of_range_is_named() -> None:
    for options in REFUSED:
        (name,) = options
        with pytest.raises(ValueError, match=f"`{name}"):
            eqrl.TAAC(**options)


def test_the_reference_has_one_bootstrap() -> None:
    with pytest.raises(ValueError, match="`faithful=True`"):
        eqrl.TAAC(faithful=True, bootstrap="sampled")


def test_there_is_one_number_for_each_reward() -> None:
    for name in ("discount", "reward_weights"):
        options: dict[str, Any] = {name: (0.5, 0.5)}
        agent = taac(**options)
        for reward_size in (None, 3):
            spec = eqrl.EnvSpec(2, 1, reward_size=reward_size)
            message = rf"`{name}` has 2.*size={reward_size}"
            with pytest.raises(ValueError, match=message):
                agent.init(spec, key=jr.key(0))


def test_a_critic_of_another_size_is_refused() -> None:
    agent = eqrl.TAAC(make_critic=_make_scalar_critic)
    spec = eqrl.EnvSpec(2, 1, reward_size=2)
    with pytest.raises(ValueError, match=r"`make_critic`.*must be of shape \(2,\)"):
        agent.init(spec, key=jr.key(0))


def _make_scalar_critic(
    observation_size: int,
    action_size: int,
    *,
    trajectory_size: int,
    reward_size: int | None,
    key: PRNGKeyArray,
) -> Any:
    del action_size, reward_size
    return eqrl.nn.Critic((4,))(observation_size, trajectory_size, key=key)
