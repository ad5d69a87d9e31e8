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
        **_INVERTED_PENDULUM,
    ),
    Preset(
        agent="td3",
        options=_RATES,
        num_steps=50_000,
        returns=(1000.0, 1000.0, 1000.0, 1000.0, 1000.0),
        **_INVERTED_PENDULUM,
    ),
    Preset(
        agent="ppo",
        env="gymnax/CartPole-v1",
        options={"lr": 2.5e-4, "anneal_steps": 200_000.0},
        trainer={"num_envs": 4, "steps_per_iteration": 128},
        num_steps=199_680,
        returns=(499.9, 500.0, 500.0, 450.2, 500.0),
    ),
)

PRESETS: Mapping[tuple[str, str], Preset] = {
    (preset.agent, preset.env): preset for preset in _ALL
}
"""All presets, by the agent's name on the command line and the environment."""
