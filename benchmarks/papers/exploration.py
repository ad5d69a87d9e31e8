"""Rewards for what is new, on an ant, by the cells that training visits."""

import functools
from typing import Any

import eqrl

from .metra import Made, Unrewarded, report
from .paper import Experiment, Paper
from .standardized import make_standardized


def _made(make_reward: Any) -> Made:
    return make_reward(), None, None


def _contender(make_reward: Any, *, is_random: bool = False) -> Unrewarded:
    return Unrewarded(
        functools.partial(_made, make_reward),
        num_steps=300_800,
        evaluate_every=75_200,
        updates_per_iteration=200,
        is_random=is_random,
    )


PAPER = Paper(
    title="Exploration of an ant",
    text="""\
Four rewards that pay for what is new, without skills:
[RND](https://arxiv.org/abs/1810.12894), [APT](https://arxiv.org/abs/2103.04551), which
is `ParticleEntropy`, [ICM](https://arxiv.org/abs/1705.05363) and
[disagreement](https://arxiv.org/abs/1906.04161). SAC learns from each alone for 300,800
steps, beside uniform actions for as many.

The ant is EnvPool's, with the position in its observations, less constant means and
divided by constant deviations; episodes have 200 steps, and no fall ends them. 8
environments, and 200 updates after 200 steps of each; SAC with rates of 1e-4, batches
of 256, hidden layers of 256 and 256, a temperature from 0.01 and a target entropy of
minus half the number of actions; 11,200 steps by the policy that has learned
nothing (10,000 in whole iterations).
A reward learns before it scores a batch. Rewards have the library's defaults; APT
measures distances between observations, where its release learns features.

`cells of training` are the cells of 1 by 1, in x and y, of all states in training.
""",
    experiments=(
        Experiment(
            env="envpool/Ant-v4",
            contenders={
                "RND": _contender(eqrl.RND),
                "APT": _contender(eqrl.ParticleEntropy),
                "ICM": _contender(eqrl.ICM),
                "Disagreement": _contender(eqrl.Disagreement),
                "random": _contender(eqrl.RND, is_random=True),
            },
            options={"max_steps": 200},
            report=report,
            curves=("total_cells",),
            make=make_standardized,
        ),
    ),
)
