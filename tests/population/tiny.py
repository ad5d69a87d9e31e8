"""A tiny population, for tests that train it in processes of their own."""

import signal
from typing import Any, get_args

import jax
import jax.random as jr
import numpy as np
from jax.sharding import Mesh

import eqrl
from eqrl._training.mesh import Members
from eqrl.envs import Point

from ..agents_under_test import sac


AGENT = sac()
ENV = Point(max_steps=5, goal=(0.3, 0.1))
TRAINER = eqrl.Trainer(num_envs=2, batch_size=4, warmup_steps=20, capacity=100)
PBT = eqrl.PBT(
    where=lambda a: (a.actor_lr, a.discount),
    priors=(eqrl.LogUniform(1e-4, 1e-2), eqrl.OneMinus(eqrl.LogUniform(1e-3, 1e-1))),
    num_replaced=2,
    num_elite=2,
)
Found = dict[str, np.ndarray]


def train(
    mesh: Mesh | None,
    agent: eqrl.SAC = AGENT,
    *,
    num_generations: int = 3,
    steps_per_generation: int = 40,
    **options: Any,
) -> eqrl.PopulationSolution:
    return eqrl.train_population(
        agent,
        ENV,
        TRAINER,
        PBT,
        size=4,
        num_generations=num_generations,
        steps_per_generation=steps_per_generation,
        num_episodes=2,
        key=jr.key(0),
        mesh=mesh,
        **options,
    )


def solutions(mesh: Mesh | None) -> dict[str, eqrl.PopulationSolution]:
    """By how members run, which is all that is different between them."""
    return {members: train(mesh, members=members) for members in get_args(Members)}


def winner(solution: eqrl.PopulationSolution) -> eqrl.SACState:
    return eqrl.best(solution.states, solution.returns[-1])


def found(solution: eqrl.PopulationSolution) -> Found:
    """The history of a population and its best member, by name."""
    tree = {
        "returns": solution.returns,
        "scores": solution.scores,
        "parents": solution.parents,
        "metrics": solution.metrics,
        "hyperparameters": solution.hyperparameters,
        "winner": winner(solution),
    }
    return {
        jax.tree_util.keystr(path): np.asarray(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
        if isinstance(leaf, np.ndarray | jax.Array)
    }


def generations_if_interrupted(mesh: Mesh, agents: eqrl.SAC, *, here: bool) -> int:
    """Generations that are trained where Ctrl-C is pressed in the first of them."""

    def press(step: int, metrics: Any, solution: Any) -> None:
        del step, metrics, solution
        if here:
            signal.raise_signal(signal.SIGINT)

    # Python leaves it out where its parent ignores the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return len(train(mesh, agents, callback=press).returns)
    except eqrl.TrainingInterrupted as error:
        return len(error.solution.returns)
