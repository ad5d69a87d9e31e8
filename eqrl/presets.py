"""Tuned hyperparameters of agents, by environment."""

import dataclasses
import functools
import math
import statistics
from collections.abc import Mapping
from typing import Any

import numpy as np

from ._agents.base import AnyAgent
from ._reporting.statistics import bootstrap_interval, rounded
from ._run.config import ConvolutionName, Run, Settings, Training
from ._training.trainer import Trainer
from .envs._base import AnyEnv
from .nn import Precision


@dataclasses.dataclass(frozen=True)
class Preset:
    """Tuned hyperparameters of an agent on an environment, and the return reached.

    All settings are options of the command line.

    **Attributes:**

    - `agent`: its name on the command line, such as `"sac"`.
    - `env`: its name, as in `eqrl.envs.make`.
    - `options`: arguments of the agent.
    - `trainer`: arguments of `eqrl.Trainer`; for an on-policy agent, `num_envs` and
        `steps_per_iteration`, the `num_steps` of `eqrl.Trainer.on_policy`.
    - `num_steps`: environment steps of each seed.
    - `returns`: the mean return of each of `num_seeds` seeds after `num_steps` steps,
        over 1,024 greedy episodes (64 in brax and in simulators outside JAX), the same
        for all presets of an environment: those that `eqrl train` ends with. Measured
        by `nox -s presets`.
    - `minutes`: duration of a training with one seed on two cores, with compilation.
    - `paper`: if not `None`, the paper and the contender whose runs these are, as in
        `nox -s papers -- td3 --contenders TD3`. They have the same settings and take
        long, so `returns` are those of their last evaluations, over 10 greedy episodes,
        and `minutes` those of one core.
    - `hidden_sizes`: width of each hidden layer of the networks.
    - `convolution`: the encoder of images, as `--convolution` of `eqrl train`.
    - `precision`: of the products of all networks.
    - `normalize`, `normalize_reward`: whether the agent is wrapped in an
        `eqrl.Normalized`, and in an `eqrl.NormalizedReward`.
    - `backend`: the backend of brax; `None` takes that of `eqrl.envs.make`.
    - `has_discrete_actions`: whether the actions of the environment are discrete.
    """

    agent: str
    env: str
    options: Mapping[str, float | int | bool]
    trainer: Mapping[str, int | str]
    num_steps: int
    returns: tuple[float, ...]
    minutes: float
    hidden_sizes: tuple[int, ...] = (64, 64)
    convolution: ConvolutionName | None = None
    precision: Precision = "float32"
    normalize: bool = False
    normalize_reward: bool = False
    backend: str | None = None
    has_discrete_actions: bool = False
    paper: tuple[str, str] | None = None

    @property
    def num_seeds(self) -> int:
        """The number of seeds that were trained: 20, fewer if each takes long."""
        return len(self.returns)

    @property
    def mean_return(self) -> float:
        """The mean over the seeds."""
        return sum(self.returns) / len(self.returns)

    @property
    def std_return(self) -> float:
        """The standard deviation over the seeds."""
        return statistics.stdev(self.returns)

    @property
    def interval(self) -> tuple[float, float]:
        """The `eqrl.bootstrap_interval` of 95 % for the mean over the seeds."""
        low, high = bootstrap_interval(np.asarray([self.returns]))
        return float(low[0]), float(high[0])

    @property
    def reached(self) -> str:
        """Describes the return that was reached."""
        return (
            f"{rounded(self.mean_return)} over {self.num_seeds} seeds, standard "
            f"deviation {rounded(self.std_return)}, after {self.num_steps} steps"
        )

    @property
    def settings(self) -> Settings:
        """The environment and the networks."""
        return Settings(
            env=self.env,
            backend=self.backend,
            hidden_sizes=self.hidden_sizes,
            convolution=self.convolution,
            precision=self.precision,
            normalize=self.normalize,
            normalize_reward=self.normalize_reward,
        )

    def make_agent(self) -> AnyAgent:
        """The agent, with networks of these sizes."""
        return self._run().make_agent()

    def make_env(self) -> AnyEnv:
        """The environment."""
        return self._run().make_env()

    def make_trainer(self) -> Trainer:
        """The trainer."""
        return self._run().make_trainer()

    def _run(self) -> Run[Training]:
        return Run(
            agent=self.agent,
            agent_options=dict(self.options),
            trainer_options=dict(self.trainer),
            settings=self.settings,
            schedule=Training(num_steps=self.num_steps),
        )

    def __str__(self) -> str:
        numbers: dict[str, Any] = {
            **self.options,
            **self.trainer,
            "hidden_sizes": self.hidden_sizes,
            "normalize": self.normalize,
        }
        for name, usual in (
            ("backend", None),
            ("convolution", None),
            ("precision", "float32"),
            ("normalize_reward", False),
        ):
            if getattr(self, name) != usual:
                numbers[name] = getattr(self, name)
        listed = ", ".join(f"{name}={value}" for name, value in numbers.items())
        return (
            f"{self.agent} on {self.env}: {listed}; it reached a mean return of "
            f"{self.reached}"
        )


def _numbers(text: str) -> tuple[float, ...]:
    return tuple(map(float, text.split()))


_RATES = {"actor_lr": 1e-3, "critic_lr": 1e-3}

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

_td3_on_mujoco = functools.partial(
    Preset,
    agent="td3",
    options=_RATES,
    trainer={"batch_size": 100, "capacity": 1_000_000, "warmup_steps": 10_000},
    hidden_sizes=(400, 300),
    num_steps=300_000,
    paper=("td3", "TD3"),
)
_sac_on_mujoco = functools.partial(
    Preset,
    agent="sac",
    trainer={"capacity": 1_000_000, "warmup_steps": 10_000},
    hidden_sizes=(256, 256),
    paper=("sac", "SAC"),
)

# Settings of PPO that several presets share.
_BOX2D = {"discount": 0.999, "reward_scale": 0.1, "num_minibatches": 32}
_TEN_EPOCHS = {"num_epochs": 10, "num_minibatches": 8}


def _pqn_on_minatar(
    game: str, num_steps: int, minutes: float, returns: tuple[float, ...]
) -> Preset:
    """The settings of PQN's paper, scaled to a number of steps."""
    return Preset(
        agent="pqn",
        env=f"gymnax/{game}-MinAtar",
        options={"epsilon_steps": num_steps / 10, "anneal_steps": float(num_steps)},
        trainer={"num_envs": 128, "steps_per_iteration": 32},
        hidden_sizes=(128,),
        convolution="minatar",
        has_discrete_actions=True,
        num_steps=num_steps,
        minutes=minutes,
        returns=returns,
    )


def _ppo(*, num_steps: int, options: Mapping[str, float], **others: Any) -> Preset:
    """PPO with a learning rate that falls to 0 by the last step."""
    annealed = {**options, "anneal_steps": float(num_steps)}
    return Preset(agent="ppo", num_steps=num_steps, options=annealed, **others)


_TUNED = (
    Preset(
        agent="sac",
        options={**_RATES, "temperature_lr": 1e-3},
        minutes=0.25,
        returns=_numbers(
            "-149.1 -146.8 -146.4 -151.6 -147.2 -148.9 -147.3 -144.8 -149.7 -144.8 "
            "-151.2 -149.3 -147.6 -152.3 -145.0 -152.9 -152.5 -147.3 -148.4 -148.0"
        ),
        **_PENDULUM,
    ),
    Preset(
        agent="td3",
        options=_RATES,
        minutes=0.24,
        returns=_numbers(
            "-150.8 -147.7 -143.7 -152.0 -147.5 -150.0 -148.4 -150.2 -145.7 -157.9 "
            "-148.7 -154.6 -150.2 -157.6 -145.3 -149.0 -151.7 -145.5 -145.2 -144.0"
        ),
        **_PENDULUM,
    ),
    Preset(
        agent="sac",
        options={**_RATES, "temperature_lr": 1e-3},
        num_steps=25_000,
        minutes=0.73,
        returns=(1000.0,) * 20,
        **_REPLAYED_PENDULUM,
    ),
    Preset(
        agent="td3",
        options=_RATES,
        num_steps=50_000,
        minutes=0.77,
        returns=(1000.0,) * 20,
        **_REPLAYED_PENDULUM,
    ),
    Preset(
        agent="sac",
        options={**_RATES, "temperature_lr": 1e-3, "reward_scale": 0.1},
        num_steps=80_000,
        minutes=2.68,
        returns=_numbers(
            "9357.9 9358.2 9359.8 9360.0 9356.4 9359.9 9359.9 9359.9 9359.7 9357.6 "
            "9358.5 9357.1 9360.0 9358.5 1961.7 9359.5 9356.4 9359.8 9359.8 9359.8"
        ),
        **{**_REPLAYED_PENDULUM, "env": "brax/inverted_double_pendulum"},
    ),
    Preset(
        agent="sac",
        env="brax/reacher",
        backend="generalized",
        options={**_RATES, "temperature_lr": 1e-3, "discount": 0.95},
        trainer={"num_envs": 4, "batch_size": 128, "updates_per_iteration": 4},
        normalize=True,
        num_steps=120_000,
        minutes=4.52,
        returns=_numbers(
            "-23.4 -23.5 -18.9 -29.9 -19.0 -19.0 -19.9 -18.4 -22.3 -19.2 "
            "-16.0 -23.9 -17.0 -19.6 -20.1 -24.5 -26.6 -14.7 -18.2 -17.7"
        ),
    ),
    _ppo(
        options={
            "lr": 3e-3,
            "reward_scale": 0.01,
            "entropy_weight": 0.0,
            **_TEN_EPOCHS,
            "recompute_advantages": True,
        },
        trainer={"num_envs": 16, "steps_per_iteration": 64},
        normalize=True,
        num_steps=409_600,
        minutes=3.4,
        returns=_numbers(
            "9353.8 9294.2 9353.8 9355.6 9355.6 9347.2 9358.6 9359.8 9355.7 9354.8 "
            "9357.8 6173.6 9356.4 9359.7 9121.6 9357.3 9356.1 9358.5 9359.5 9358.6"
        ),
        **{**_INVERTED_PENDULUM, "env": "brax/inverted_double_pendulum"},
    ),
    _ppo(
        env="gymnax/CartPole-v1",
        options={"lr": 2.5e-4, "value_clip": 0.2},
        trainer={"num_envs": 4, "steps_per_iteration": 128},
        has_discrete_actions=True,
        num_steps=199_680,
        minutes=0.22,
        returns=_numbers(
            "496.2 498.9 497.2 492.8 498.5 422.9 480.4 495.2 492.3 495.0 "
            "493.1 473.2 491.8 495.3 492.4 494.3 484.3 493.6 490.5 496.8"
        ),
    ),
    _ppo(
        env="gymnax/Acrobot-v1",
        options={"lr": 3e-3, "decay": 0.94, "value_clip": 0.2},
        trainer={"num_envs": 16, "steps_per_iteration": 256},
        normalize=True,
        has_discrete_actions=True,
        num_steps=1_507_328,
        minutes=0.91,
        returns=_numbers(
            "-74.2 -76.3 -76.3 -75.5 -77.0 -77.3 -75.8 -76.3 -77.2 -77.8 "
            "-78.5 -77.1 -74.8 -76.2 -75.6 -76.1 -76.9 -76.3 -76.7 -77.1"
        ),
    ),
    _ppo(
        env="gymnax/MountainCar-v0",
        options={"lr": 1e-3, "decay": 0.98, "entropy_weight": 0.0},
        trainer={"num_envs": 16, "steps_per_iteration": 16},
        normalize=True,
        has_discrete_actions=True,
        num_steps=999_936,
        minutes=0.32,
        returns=_numbers(
            "-107.6 -114.1 -105.6 -106.7 -103.0 -105.9 -116.8 -100.3 -112.8 -116.5 "
            "-103.9 -110.7 -105.3 -111.4 -101.2 -106.5 -113.3 -106.9 -112.1 -104.9"
        ),
    ),
    _ppo(
        env="gymnax/Catch-bsuite",
        options={"lr": 1e-3},
        trainer={"num_envs": 8, "steps_per_iteration": 64},
        has_discrete_actions=True,
        num_steps=99_840,
        minutes=0.23,
        returns=(1.0,) * 20,
    ),
    _ppo(
        env="gymnax/DiscountingChain-bsuite",
        options={"lr": 1e-3, "discount": 0.9},
        trainer={"num_envs": 16, "steps_per_iteration": 64},
        has_discrete_actions=True,
        num_steps=102_400,
        minutes=0.33,
        returns=(1.1,) * 20,
    ),
    _ppo(
        env="gymnax/UmbrellaChain-bsuite",
        options={"lr": 1e-3},
        trainer={"num_envs": 8, "steps_per_iteration": 128},
        has_discrete_actions=True,
        num_steps=102_400,
        minutes=0.26,
        returns=_numbers(
            "1.07 1.02 0.91 1.03 0.90 0.84 0.79 0.97 1.02 1.00 "
            "1.04 1.01 0.97 1.00 0.92 1.02 0.99 1.07 1.05 0.76"
        ),
    ),
    _ppo(
        env="gymnax/FourRooms-misc",
        options={"lr": 1e-3},
        trainer={"num_envs": 8, "steps_per_iteration": 128},
        has_discrete_actions=True,
        num_steps=204_800,
        minutes=0.31,
        returns=_numbers(
            "1.00 1.00 1.00 1.00 1.00 1.00 1.00 1.00 1.00 1.00 "
            "1.00 1.00 1.00 1.00 0.99 1.00 1.00 1.00 1.00 1.00"
        ),
    ),
    Preset(
        agent="dqn",
        env="gymnax/DeepSea-bsuite",
        options={
            "lr": 5e-4,
            "target_period": 100,
            "epsilon_steps": 33_333.0,
            "return_steps": 3,
        },
        trainer={"num_envs": 8, "batch_size": 128, "updates_per_iteration": 2},
        has_discrete_actions=True,
        num_steps=100_000,
        minutes=0.24,
        returns=(0.99,) * 20,
    ),
    _ppo(
        env="gymnax/Pendulum-v1",
        options={
            "lr": 3e-4,
            "discount": 0.98,
            "decay": 0.99,
            "reward_scale": 0.1,
            "entropy_weight": 0.02,
            **_TEN_EPOCHS,
        },
        trainer={"num_envs": 64, "steps_per_iteration": 32},
        normalize=True,
        num_steps=2_048_000,
        minutes=1.23,
        returns=_numbers(
            "-150.6 -146.8 -144.4 -151.3 -147.4 -150.1 -146.1 -146.9 -146.3 -145.1 "
            "-148.0 -148.7 -147.6 -150.9 -146.4 -148.3 -160.9 -148.3 -144.8 -145.0"
        ),
    ),
    _ppo(
        options={
            "lr": 3e-3,
            "discount": 0.97,
            "reward_scale": 0.1,
            "entropy_weight": 0.0,
            **_TEN_EPOCHS,
            "recompute_advantages": True,
        },
        trainer={"num_envs": 16, "steps_per_iteration": 64},
        normalize=True,
        num_steps=20_480,
        minutes=0.51,
        returns=_numbers(
            "1000.0 1000.0 1000.0 1000.0 1000.0 1000.0 1000.0 1000.0 1000.0 1000.0 "
            "1000.0 1000.0 1000.0 1000.0 1000.0 1000.0 761.3 1000.0 1000.0 1000.0"
        ),
        **_INVERTED_PENDULUM,
    ),
    Preset(
        agent="discrete-sac",
        env="gymnax/CartPole-v1",
        options={**_RATES, "temperature_lr": 1e-3, "reward_scale": 0.1},
        trainer={"num_envs": 8, "batch_size": 128, "updates_per_iteration": 2},
        has_discrete_actions=True,
        num_steps=100_000,
        minutes=0.42,
        returns=_numbers(
            "500.0 500.0 500.0 500.0 500.0 496.7 500.0 500.0 500.0 500.0 "
            "500.0 500.0 500.0 500.0 500.0 500.0 500.0 500.0 500.0 500.0"
        ),
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
        has_discrete_actions=True,
        num_steps=499_712,
        minutes=0.28,
        returns=(500.0,) * 20,
    ),
    Preset(
        agent="taac",
        env="gymnax/MountainCarContinuous-v0",
        options={**_RATES, "switch_target_entropy": 0.1985},
        trainer={
            "num_envs": 4,
            "batch_size": 16,
            "updates_per_iteration": 2,
            "warmup_steps": 40_000,
            "capacity": 150_000,
        },
        num_steps=150_000,
        minutes=1.16,
        returns=_numbers(
            "94.1 93.9 93.2 93.6 94.3 94.1 91.6 93.7 94.0 93.9 "
            "93.5 93.9 92.2 91.6 94.1 94.1 92.2 93.7 93.3 94.0"
        ),
    ),
    _ppo(
        env="envpool/LunarLanderContinuous-v3",
        options={"lr": 1e-3, **_BOX2D, "decay": 0.98, "entropy_weight": 0.0},
        trainer={"num_envs": 16, "steps_per_iteration": 256},
        normalize=True,
        num_steps=1_499_136,
        minutes=0.66,
        returns=_numbers(
            "254.1 213.9 275.1 274.1 228.0 259.9 266.4 281.2 286.4 270.7 "
            "231.2 278.6 273.4 289.5 278.4 278.8 266.8 273.6 279.9 281.7"
        ),
    ),
    _ppo(
        env="envpool/BipedalWalker-v3",
        options={"lr": 5e-4, **_BOX2D, "entropy_weight": 0.0, "num_epochs": 10},
        trainer={"num_envs": 32, "steps_per_iteration": 128},
        normalize=True,
        num_steps=3_014_656,
        minutes=11.7,
        returns=(265.7, 252.4, 257.7),
    ),
    _ppo(
        env="envpool/LunarLander-v3",
        options={"lr": 1e-3, **_BOX2D, "decay": 0.98},
        trainer={"num_envs": 16, "steps_per_iteration": 256},
        normalize=True,
        has_discrete_actions=True,
        num_steps=524_288,
        minutes=1.13,
        returns=_numbers(
            "224.3 271.8 277.1 177.9 231.4 272.4 278.4 273.0 281.8 276.5 "
            "279.7 278.0 273.7 284.0 248.9 269.7 277.1 277.1 276.5 271.9"
        ),
    ),
    _pqn_on_minatar("Asterix", 2_002_944, 3.7, (67.9, 68.3, 67.5, 68.0, 68.5)),
    _pqn_on_minatar("Breakout", 4_005_888, 5.23, (67.2, 62.3, 92.0, 77.3, 55.0)),
    _pqn_on_minatar("Freeway", 2_002_944, 4.35, (65.4, 65.7, 66.4, 65.6, 66.4)),
    _pqn_on_minatar(
        "SpaceInvaders", 2_002_944, 3.92, (159.0, 151.0, 151.0, 148.0, 151.0)
    ),
    _pqn_on_minatar("Seaquest", 2_002_944, 10.2, (73.0, 7.5, 59.1, 62.8, 48.4)),
    _td3_on_mujoco(
        env="envpool/Hopper-v4", minutes=24.47, returns=(2978.3, 3264.5, 1732.0)
    ),
    _td3_on_mujoco(
        env="envpool/Walker2d-v4", minutes=26.47, returns=(2924.3, 985.5, 4144.4)
    ),
    _td3_on_mujoco(
        env="envpool/Ant-v4", minutes=39.13, returns=(4151.1, 2006.6, 2310.2)
    ),
    _sac_on_mujoco(
        env="envpool/Ant-v4",
        options={**_RATES, "initial_temperature": 0.2, "learn_temperature": False},
        num_steps=300_000,
        minutes=42.97,
        returns=(3960.6, 4872.6, 1392.6),
    ),
    _sac_on_mujoco(
        env="envpool/HalfCheetah-v4",
        options={},
        num_steps=1_000_000,
        minutes=89.03,
        returns=(11384.6, 10236.2, 11196.5),
    ),
)


def _elsewhere(
    env: str, agent: str, *, minutes: float, returns: tuple[float, ...]
) -> Preset:
    """The settings of gymnax's environment in the same task of another library."""
    name = env.split("/")[1]
    (preset,) = (x for x in _TUNED if (x.agent, x.env) == (agent, f"gymnax/{name}"))
    return dataclasses.replace(preset, env=env, minutes=minutes, returns=returns)


_ALL = (
    *_TUNED,
    _elsewhere("envpool/CartPole-v1", "pqn", minutes=0.79, returns=(500.0,) * 20),
    _elsewhere(
        "envpool/Pendulum-v1",
        "sac",
        minutes=0.67,
        returns=_numbers(
            "-175.4 -137.4 -141.4 -131.2 -118.6 -156.7 -156.3 -145.7 -158.2 -141.0 "
            "-145.4 -147.4 -154.5 -147.5 -160.7 -158.5 -161.0 -152.1 -146.8 -145.2"
        ),
    ),
    _elsewhere(
        "gymnasium/Pendulum-v1",
        "sac",
        minutes=0.20,
        returns=_numbers(
            "-148.5 -156.0 -162.5 -134.4 -130.8 -130.8 -153.6 -158.3 -137.5 -143.6 "
            "-154.5 -157.4 -171.2 -145.7 -161.1 -166.5 -153.6 -157.7 -167.2 -158.4"
        ),
    ),
    _elsewhere(
        "envpool/MountainCar-v0",
        "ppo",
        minutes=0.45,
        returns=_numbers(
            "-104.8 -111.9 -109.1 -115.5 -108.3 -100.4 -102.4 -109.0 -111.3 -112.3 "
            "-104.0 -107.6 -109.7 -115.1 -104.8 -108.1 -106.7 -105.0 -111.4 -118.5"
        ),
    ),
    _elsewhere(
        "envpool/MountainCarContinuous-v0",
        "taac",
        minutes=0.45,
        returns=_numbers(
            "93.5 93.7 93.9 93.1 93.6 94.3 93.8 94.5 94.3 93.4 "
            "93.9 93.4 93.9 93.3 93.8 93.3 93.6 93.8 94.2 93.7"
        ),
    ),
    _elsewhere(
        "gymnasium/MountainCar-v0",
        "ppo",
        minutes=0.43,
        returns=_numbers(
            "-109.3 -103.7 -112.9 -111.1 -110.0 -111.6 -103.4 -107.0 -105.8 -111.9 "
            "-105.4 -107.3 -119.3 -110.4 -107.6 -104.8 -104.5 -114.7 -108.2 -101.5"
        ),
    ),
    _elsewhere(
        "gymnasium/MountainCarContinuous-v0",
        "taac",
        minutes=0.37,
        returns=_numbers(
            "93.4 93.3 93.7 92.9 93.6 93.6 93.6 93.7 93.5 91.7 "
            "93.8 93.8 94.4 93.5 94.2 93.9 93.2 93.9 94.2 94.1"
        ),
    ),
    _elsewhere(
        "gymnasium/Acrobot-v1",
        "ppo",
        minutes=1.04,
        returns=_numbers(
            "-76.3 -74.9 -74.6 -79.6 -75.3 -82.0 -77.5 -87.2 -80.0 -74.6 "
            "-74.6 -75.0 -76.3 -76.6 -82.0 -73.4 -73.2 -82.8 -81.7 -78.0"
        ),
    ),
    _elsewhere("gymnasium/CartPole-v1", "pqn", minutes=0.82, returns=(500.0,) * 20),
    _elsewhere(
        "envpool/Acrobot-v1",
        "ppo",
        minutes=1.37,
        returns=_numbers(
            "-77.1 -75.7 -76.8 -73.6 -78.1 -73.1 -75.5 -74.8 -76.8 -80.7 "
            "-78.0 -76.0 -74.2 -76.8 -78.0 -78.1 -72.9 -74.3 -74.9 -76.8"
        ),
    ),
)

PRESETS: Mapping[tuple[str, str], Preset] = {
    (preset.agent, preset.env): preset for preset in _ALL
}
"""All presets, by the agent's name on the command line and the environment."""


PUBLISHED: Mapping[str, float] = {
    "brax/inverted_double_pendulum": 9000.0,
    "brax/inverted_pendulum": 1000.0,
    "envpool/Acrobot-v1": -73.5,
    "envpool/Ant-v4": 1953.0,
    "envpool/BipedalWalker-v3": 287.9,
    "envpool/CartPole-v1": 500.0,
    "envpool/HalfCheetah-v4": 9535.0,
    "envpool/Hopper-v4": 2410.0,
    "envpool/LunarLander-v3": 242.1,
    "envpool/LunarLanderContinuous-v3": 270.9,
    "envpool/MountainCar-v0": -110.4,
    "envpool/MountainCarContinuous-v0": 94.7,
    "envpool/Pendulum-v1": -157.0,
    "envpool/Walker2d-v4": 3335.0,
    "gymnasium/Acrobot-v1": -73.5,
    "gymnasium/CartPole-v1": 500.0,
    "gymnasium/MountainCar-v0": -110.4,
    "gymnasium/MountainCarContinuous-v0": 94.7,
    "gymnasium/Pendulum-v1": -157.0,
    "gymnax/Acrobot-v1": -80.0,
    "gymnax/Asterix-MinAtar": 18.0,
    "gymnax/Breakout-MinAtar": 50.0,
    "gymnax/CartPole-v1": 500.0,
    "gymnax/Catch-bsuite": 1.0,
    "gymnax/DeepSea-bsuite": 0.99,
    "gymnax/DiscountingChain-bsuite": 1.1,
    "gymnax/FourRooms-misc": 1.0,
    "gymnax/Freeway-MinAtar": 59.0,
    "gymnax/MountainCar-v0": -118.0,
    "gymnax/MountainCarContinuous-v0": 92.0,
    "gymnax/Pendulum-v1": -130.0,
    "gymnax/Seaquest-MinAtar": 20.0,
    "gymnax/SpaceInvaders-MinAtar": 132.0,
    "gymnax/UmbrellaChain-bsuite": 1.0,
}
"""Published returns, by environment: those of gymnax's README; the greatest possible in
brax's inverted pendulum and, where the README gives 0, in DeepSea; 9,000 of at most
9,360 in brax's inverted double pendulum; in MinAtar the best of gymnax's own curves of
PPO after 10,000,000 steps, except that Breakout's is of pgx's PPO after 20,000,000 and
Seaquest's of DQN after 5,000,000; and for the environments of EnvPool and Gymnasium
those of the zoo of Stable-Baselines3, of SAC in HalfCheetah, Pendulum and
MountainCarContinuous and otherwise of PPO, except for Ant, Hopper and Walker2d, those
of TD3's paper after 300,000 steps. The version of both LunarLanders there is 2, and
that of HalfCheetah 3."""


def best(env: str) -> Preset | None:
    """The preset to train with in an environment, `None` if there is none.

    It is the one with the fewest minutes among those whose interval reaches the
    published return or, if that is greater or unknown, the greatest mean return of a
    preset.
    """
    found = [preset for preset in _ALL if preset.env == env]
    greatest = max((preset.mean_return for preset in found), default=math.inf)
    target = min(PUBLISHED.get(env, math.inf), greatest)
    # For equal returns, rounding may put the end of the interval just below their
    # mean.
    reaching = (
        preset
        for preset in found
        if max(preset.interval[1], preset.mean_return) >= target
    )
    return min(reaching, key=lambda preset: preset.minutes, default=None)


def find(agent: str, env: str) -> Preset | None:
    """The preset of an agent, by its name on the command line, for an environment.

    `None` if there is none.
    """
    return PRESETS.get((agent, env))
