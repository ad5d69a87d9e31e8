"""SAC on MuJoCo's tasks."""

import functools
from typing import Any

import eqrl

from .paper import Experiment, Paper, Published
from .training import Training


def _trainer() -> eqrl.Trainer:
    return eqrl.Trainer(capacity=1_000_000, warmup_steps=10_000)


def _ant() -> Any:
    return eqrl.SAC(
        actor_lr=1e-3, critic_lr=1e-3, initial_temperature=0.2, learn_temperature=False
    )


# Spinning Up's curve of HalfCheetah-v3, by step.
_CURVE = {100_000: 6081, 300_000: 9163, 500_000: 10351, 1_000_000: 11496}


def _rounded() -> Any:
    return eqrl.SAC(
        make_actor=eqrl.nn.Gaussian(precision="bfloat16"),
        make_critic=eqrl.nn.Critic(precision="bfloat16"),
    )


_EVERY_5K = functools.partial(Training, make_trainer=_trainer, evaluate_every=5_000)

PAPER = Paper(
    title="SAC on MuJoCo",
    text="""\
[Haarnoja et al.](https://arxiv.org/abs/1812.05905) show SAC on MuJoCo's tasks. The
numbers beside ours are from implementations that publish their results with settings.

`HalfCheetah-v4`, 1,000,000 steps: the settings of Stable-Baselines3's zoo. One
environment and one update a step after 10,000 random steps, batches of 256 from a
replay of 1,000,000, two hidden layers of 256 with ReLU, rates of 3e-4, a temperature
that is learned, discount 0.99, targets that move by 0.005. `SAC-bfloat16`, which runs
only if it is named, is the same with the products of its networks in bfloat16.

`Ant-v4`, 300,000 steps: those of Tianshou's example. Rates of 1e-3 and a fixed
temperature of 0.2, otherwise the same.

We evaluate in 10 greedy episodes every 5,000 steps. The greedy returns beside ours are
those at the end, as `last evaluation` is. Spinning Up's curve is read off a figure, has
rates of 1e-3, a fixed temperature of 0.2, batches of 100 and 50 updates after each 50
steps, and may be smoothed. CleanRL's number is of returns in training; it has rates of
1e-3 for critics and temperature, 5,000 random steps, and two updates of actor and
temperature after every second step.
""",
    experiments=(
        Experiment(
            env="envpool/HalfCheetah-v4",
            contenders={
                "SAC": _EVERY_5K(make_agent=eqrl.SAC, num_steps=1_000_000),
                "SAC-bfloat16": _EVERY_5K(make_agent=_rounded, num_steps=1_000_000),
            },
            named_only=("SAC-bfloat16",),
            published={
                "SAC": (
                    Published("SB3's zoo, greedy, one run", 9535),
                    Published("CleanRL, training, 3 runs", 9635, 1424),
                    *(
                        Published("Spinning Up, greedy, 10 runs", value, step=step)
                        for step, value in _CURVE.items()
                    ),
                )
            },
        ),
        Experiment(
            env="envpool/Ant-v4",
            contenders={"SAC": _EVERY_5K(make_agent=_ant, num_steps=300_000)},
            published={
                "SAC": (
                    Published("Tianshou, greedy, 5 runs", 3307, 807),
                    Published("Spinning Up, greedy, 10 runs", 1737, note="Ant-v3"),
                )
            },
        ),
    ),
)
