from collections.abc import Mapping
from typing import Any

from ._preset import Preset


_RATES: dict[str, Any] = {"actor_lr": 1e-3, "critic_lr": 1e-3}

_PENDULUM: dict[str, Any] = {
    "env": "gymnax/Pendulum-v1",
    "trainer": {"num_envs": 1, "batch_size": 64, "updates_per_iteration": 1},
    "num_steps": 20_000,
}
_INVERTED_PENDULUM: dict[str, Any] = {
    "env": "brax/inverted_pendulum",
    "backend": "generalized",
}
_REPLAYED_PENDULUM: dict[str, Any] = {
    **_INVERTED_PENDULUM,
    "trainer": {"num_envs": 4, "batch_size": 64, "updates_per_iteration": 4},
}

_ALL = (
    Preset(
        agent="sac",
        options={**_RATES, "temperature_lr": 1e-3},
        returns=(-140.9, -151.9, -145.6, -130.4, -137.3),
        **_PENDULUM,
    ),
    Preset(
        agent="td3",
        options=_RATES,
        returns=(-140.7, -149.2, -137.1, -135.7, -139.6),
        **_PENDULUM,
    ),
    Preset(
        agent="sac",
        options={**_RATES, "temperature_lr": 1e-3},
        num_steps=25_000,
        returns=(1000.0, 1000.0, 1000.0, 1000.0, 1000.0),
        **_REPLAYED_PENDULUM,
    ),
    Preset(
        agent="td3",
        options=_RATES,
        num_steps=50_000,
        returns=(1000.0, 1000.0, 1000.0, 1000.0, 1000.0),
        **_REPLAYED_PENDULUM,
    ),
    Preset(
        agent="ppo",
        env="gymnax/CartPole-v1",
        options={"lr": 2.5e-4, "value_clip": 0.2, "anneal_steps": 199_680.0},
        trainer={"num_envs": 4, "steps_per_iteration": 128},
        num_steps=199_680,
        returns=(500.0, 500.0, 488.9, 482.4, 497.7),
    ),
    Preset(
        agent="ppo",
        env="gymnax/Acrobot-v1",
        options={"lr": 2.5e-4, "value_clip": 0.2, "anneal_steps": 499_712.0},
        trainer={"num_envs": 4, "steps_per_iteration": 128},
        num_steps=499_712,
        returns=(-82.5, -82.2, -82.3, -83.1, -82.1),
    ),
    Preset(
        agent="ppo",
        env="gymnax/Catch-bsuite",
        options={"lr": 1e-3, "anneal_steps": 99_840.0},
        trainer={"num_envs": 8, "steps_per_iteration": 64},
        num_steps=99_840,
        returns=(1.0, 1.0, 1.0, 1.0, 1.0),
    ),
    Preset(
        agent="ppo",
        env="gymnax/Pendulum-v1",
        options={
            "lr": 1e-3,
            "discount": 0.95,
            "reward_scale": 0.1,
            "entropy_weight": 0.0,
            "num_epochs": 10,
            "num_minibatches": 8,
            "anneal_steps": 153_600.0,
        },
        trainer={"num_envs": 16, "steps_per_iteration": 64},
        normalize=True,
        num_steps=153_600,
        returns=(-151.1, -163.4, -141.0, -183.2, -148.0),
    ),
    Preset(
        agent="ppo",
        options={
            "lr": 3e-3,
            "discount": 0.97,
            "reward_scale": 0.1,
            "entropy_weight": 0.0,
            "num_epochs": 10,
            "num_minibatches": 8,
            "recompute_advantages": True,
            "anneal_steps": 20_480.0,
        },
        trainer={"num_envs": 16, "steps_per_iteration": 64},
        normalize=True,
        num_steps=20_480,
        returns=(1000.0, 1000.0, 1000.0, 1000.0, 1000.0),
        **_INVERTED_PENDULUM,
    ),
    Preset(
        agent="discrete-sac",
        env="gymnax/CartPole-v1",
        options={**_RATES, "temperature_lr": 1e-3, "reward_scale": 0.1},
        trainer={"num_envs": 8, "batch_size": 128, "updates_per_iteration": 2},
        num_steps=100_000,
        returns=(500.0, 500.0, 500.0, 500.0, 406.0),
    ),
    Preset(
        agent="pqn",
        env="gymnax/CartPole-v1",
        options={
            "lr": 1e-4,
            "decay": 0.95,
            "reward_scale": 0.1,
            "final_epsilon": 0.2,
            "epsilon_steps": 100_000.0,
            "anneal_steps": 499_712.0,
            "num_epochs": 4,
            "num_minibatches": 16,
        },
        trainer={"num_envs": 32, "steps_per_iteration": 64},
        hidden_sizes=(128, 128),
        num_steps=499_712,
        returns=(500.0, 500.0, 500.0),
    ),
)

PRESETS: Mapping[tuple[str, str], Preset] = {
    (preset.agent, preset.env): preset for preset in _ALL
}
"""All presets, by the agent's name on the command line and the environment."""
