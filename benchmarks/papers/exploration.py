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
Four novelty rewards, without skills:
[RND](https://arxiv.org/abs/1810.12894), [APT](https://arxiv.org/abs/2103.04551), which
is `ParticleEntropy`, [ICM](https://arxiv.org/abs/1705.05363) and
[disagreement](https://arxiv.org/abs/1906.04161). SAC trains on each of them alone for
300,800 steps; the baseline is uniform random actions for as many steps.

The ant is EnvPool's, with the position in its observations, which are shifted and
scaled by constants; episodes last 200 steps and do not end when the ant falls. 8
environments, and 200 updates after 200 steps of each; SAC with rates of 1e-4, batches
of 256, hidden layers of 256 and 256, a temperature from 0.01 and a target entropy of
minus half the number of actions; 11,200 steps by the untrained policy (10,000, rounded
up to whole iterations).
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
