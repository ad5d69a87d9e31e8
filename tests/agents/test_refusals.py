"""Arguments that an agent raises an error for, and that the error names them."""

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import optax
import pytest
from jaxtyping import PRNGKeyArray

import eqrl
from tests.agents_under_test import taac


_RATES = ("actor_lr", "critic_lr", "temperature_lr")
_SHARES = ("discount", "target_step_size")
_NOISES = ("exploration_noise", "policy_noise", "noise_clip")
_BELOW = r"=-0\.1` is out of range"
_ABOVE = r"=1\.1` is out of range.*\[0, 1\]"
_LEAST = "=0` must be .*at least 1"

# Agents with an option, its value, and the error after the option's name.
REFUSED: list[tuple[type[eqrl.AbstractAgent], str, Any, str]] = [
    *((eqrl.SAC, name, -0.1, _BELOW) for name in (*_RATES, *_SHARES)),
    *((eqrl.TD3, name, -0.1, _BELOW) for name in (*_RATES[:2], *_SHARES, *_NOISES)),
    *((agent, x, 1.1, _ABOVE) for agent in (eqrl.SAC, eqrl.TD3) for x in _SHARES),
    *((eqrl.SAC, x, math.nan, "=nan`") for x in ("reward_scale", "target_entropy")),
    *((eqrl.TD3, name, 0, _LEAST) for name in ("policy_delay", "num_critics")),
    (eqrl.SAC, "actor_lr", math.nan, "=nan`"),
    (eqrl.SAC, "initial_temperature", -0.1, _BELOW),
    (eqrl.SAC, "initial_temperature", 0.0, r"=0`.*\(0, inf\)"),
    (eqrl.SAC, "num_critics", 0, _LEAST),
    (eqrl.SAC, "make_optimizer", (optax.sgd,) * 2, "=.*3, for actor, critic, temp"),
    (eqrl.TD3, "make_optimizer", (optax.sgd,) * 3, "=.*2, for actor, critic"),
    (eqrl.TD3, "make_optimizer", optax.sgd(0.1), "=.*from a learning rate"),
    (eqrl.TD3, "reward_scale", math.inf, "=inf`"),
    *(
        (eqrl.TAAC, name, value, "")
        for name, value in (
            ("window_length", 0),
            ("actor_lr", -1.0),
            ("critic_lr", math.nan),
            ("temperature_lr", -0.1),
            ("discount", 1.1),
            ("discount", None),
            ("discount", (0.9, 1.1)),
            ("discount", (0.9, None)),
            ("target_step_size", 2.0),
            ("target_period", 0),
            ("reward_weights", (1.0, math.inf)),
            ("reward_weights", (1.0, None)),
            ("reward_weights", 1.0),
            ("num_critics", 0),
            ("initial_temperature", 0.0),
            ("target_entropy", math.nan),
            ("switch_target_entropy", math.inf),
            ("advantage_clip", (1.0, 0.0)),
            ("advantage_clip", (1.0,)),
            ("advantage_clip", (None, 1.0)),
            ("advantage_clip", 1.0),
            ("max_repeat_steps", 0),
            ("max_repeat_steps", 1.5),
            ("epsilon", 1.5),
            ("bootstrap", "both"),
            ("target", "two_step"),
            ("td_loss", lambda values, targets: jnp.sum(values - targets)),
            ("make_optimizer", (optax.sgd, optax.sgd)),
        )
    ),
]


def test_a_value_out_of_range_is_named() -> None:
    for agent, name, value, message in REFUSED:
        with pytest.raises(ValueError, match=f"`{name}{message}"):
            agent(**{name: value})


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
        eqx.filter_eval_shape(agent.init, spec, key=jr.key(0))


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
