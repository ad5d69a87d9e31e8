"""What TAAC refuses, and that it says what was given."""

import math
from typing import Any

import jax.numpy as jnp
import optax
import pytest
from jaxtyping import PRNGKeyArray

import eqrl
from tests.agents_under_test import taac
from tests.toy import GetKey


class TestRefusals:
    @pytest.mark.parametrize(
        "options",
        [
            {"window_length": 0},
            {"actor_lr": -1.0},
            {"critic_lr": math.nan},
            {"temperature_lr": -0.1},
            {"discount": 1.1},
            {"discount": None},
            {"discount": (0.9, 1.1)},
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
            {"advantage_clip": 1.0},
            {"max_repeat_steps": 0},
            {"epsilon": 1.5},
            {"bootstrap": "both"},
            {"target": "two_step"},
            {"td_loss": lambda values, targets: jnp.sum(values - targets)},
            {"make_optimizer": (optax.sgd, optax.sgd)},
        ],
        # Not their values: a function's name holds an address.
        ids=", ".join,
    )
    def test_a_value_out_of_range_is_named(self, options: dict[str, Any]) -> None:
        (name,) = options
        with pytest.raises(ValueError, match=f"`{name}"):
            eqrl.TAAC(**options)

    def test_the_reference_has_one_bootstrap(self) -> None:
        with pytest.raises(ValueError, match="`faithful=True`"):
            eqrl.TAAC(faithful=True, bootstrap="sampled")

    @pytest.mark.parametrize("name", ["discount", "reward_weights"])
    @pytest.mark.parametrize("reward_size", [None, 3])
    def test_there_is_one_number_for_each_reward(
        self, name: str, reward_size: int | None, getkey: GetKey
    ) -> None:
        spec = eqrl.EnvSpec(2, 1, reward_size=reward_size)
        options: dict[str, Any] = {name: (0.5, 0.5)}
        agent = taac(**options)
        with pytest.raises(ValueError, match=rf"`{name}` has 2.*size={reward_size}"):
            agent.init(spec, key=getkey())

    def test_a_critic_of_another_size_is_refused(self, getkey: GetKey) -> None:
        agent = eqrl.TAAC(make_critic=_make_scalar_critic)
        spec = eqrl.EnvSpec(2, 1, reward_size=2)
        with pytest.raises(ValueError, match=r"`make_critic`.*must be of shape \(2,\)"):
            agent.init(spec, key=getkey())


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
