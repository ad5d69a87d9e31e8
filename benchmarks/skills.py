"""How distinct the skills of DIAYN are on a point in the plane, around several agents.

Hidden layers of 64 and 64, batches of 128, learning rates of 1e-3, initial temperatures
of 0.1, one environment of 50 steps. Skills are evaluated greedily. Run it as `nox -s
benchmarks -- skills`; `--pictures FOLDER` draws their paths.
"""

import argparse
import dataclasses
import math
import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqrl

from .precision import add_precision, in_precision


HIDDEN_SIZES = (64, 64)
NUM_DRAWN = 64


@dataclasses.dataclass(frozen=True)
class Task:
    """An agent with its skills, its number of steps and its seeds."""

    agent: str
    skills: int | eqrl.AbstractSkillPrior
    num_steps: int
    num_seeds: int


TASKS = {
    "sac-5": Task("sac", 5, 24_000, 5),
    "sac-8": Task("sac", 8, 40_000, 5),
    "td3-5": Task("td3", 5, 24_000, 3),
    "taac-5": Task("taac", 5, 24_000, 3),
    "sac-circle": Task("sac", eqrl.SphereSkills(), 40_000, 3),
    "sac-normal": Task("sac", eqrl.NormalSkills(), 40_000, 3),
}


def make_agent(name: str) -> eqrl.AbstractAgent[Any, Any, Any]:
    critic = eqrl.nn.Critic(HIDDEN_SIZES)
    rates: dict[str, Any] = {"actor_lr": 1e-3, "critic_lr": 1e-3}
    if name == "sac":
        return eqrl.SAC(
            temperature_lr=1e-3,
            initial_temperature=0.1,
            make_actor=eqrl.nn.Gaussian(HIDDEN_SIZES),
            make_critic=critic,
            **rates,
        )
    if name == "taac":
        return eqrl.TAAC(
            temperature_lr=1e-3,
            initial_temperature=0.1,
            make_actor=eqrl.nn.Gaussian(HIDDEN_SIZES),
            make_critic=critic,
            **rates,
        )
    return eqrl.TD3(
        make_actor=eqrl.nn.Deterministic(HIDDEN_SIZES), make_critic=critic, **rates
    )


def make_discriminator(skills: int | eqrl.AbstractSkillPrior) -> Any:
    if isinstance(skills, eqrl.SphereSkills):
        return eqrl.nn.VonMisesFisherDiscriminator(HIDDEN_SIZES)
    if isinstance(skills, eqrl.NormalSkills):
        return eqrl.nn.NormalDiscriminator(HIDDEN_SIZES)
    return eqrl.nn.CategoricalDiscriminator(HIDDEN_SIZES)


def evaluations(
    task: Task, *, seed: int, precision: eqrl.nn.Precision
) -> list[eqrl.SkillEvaluation]:
    """An evaluation of the skills of each seed, with one episode each."""
    agent = eqrl.diayn(
        make_agent(task.agent),
        task.skills,
        lr=1e-3,
        make_network=make_discriminator(task.skills),
    )
    agent = in_precision(agent, precision)
    env = eqrl.envs.Point()
    solution = eqrl.train_seeds(
        agent,
        env,
        eqrl.Trainer(batch_size=128),
        num_seeds=task.num_seeds,
        num_steps=task.num_steps,
        key=jr.key(seed),
    )
    shown = None if isinstance(task.skills, int) else NUM_DRAWN
    return [
        eqrl.evaluate_skills(
            agent,
            eqrl.member(solution.state, index),
            env,
            num_episodes=1,
            key=jr.key(seed + 1_000),
            skills=shown,
        )
        for index in range(task.num_seeds)
    ]


def share_of_ceiling(task: Task, evaluation: eqrl.SkillEvaluation) -> float:
    """The share of the diversity return of certainty at each of 50 steps."""
    if not isinstance(task.skills, int):
        return math.nan
    return float(evaluation.diversity_returns.mean()) / (50 * math.log(task.skills))


def error_at_end(evaluation: eqrl.SkillEvaluation) -> float:
    """Mean angle, in degrees, between skills and their estimates at the end."""
    skills, recovered = evaluation.skills, evaluation.recovered_skills[:, 0, -1]
    norms = [jnp.linalg.norm(x, axis=1) for x in (skills, recovered)]
    cosines = jnp.sum(skills * recovered, axis=1) / (norms[0] * norms[1])
    return float(jnp.degrees(jnp.arccos(jnp.clip(cosines, -1, 1))).mean())


def listed(values: list[float], digits: int) -> str:
    return ", ".join(f"{value:.{digits}f}" for value in values)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--pictures", type=Path)
    add_precision(parser)
    arguments = parser.parse_args()
    print(
        "| task | steps | accuracy | diversity return | share of its ceiling | "
        "angle at the end | minutes |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in arguments.tasks:
        task = TASKS[name]
        begin = time.perf_counter()
        results = evaluations(task, seed=arguments.seed, precision=arguments.precision)
        minutes = (time.perf_counter() - begin) / 60
        accuracies = [float(each.accuracy) for each in results]
        returns = [float(each.diversity_returns.mean()) for each in results]
        shares = [share_of_ceiling(task, each) for each in results]
        angles = [
            math.nan if isinstance(task.skills, int) else error_at_end(each)
            for each in results
        ]
        print(
            f"| {name} | {task.num_steps:,} | {listed(accuracies, 3)} | "
            f"{listed(returns, 1)} | {listed(shares, 3)} | {listed(angles, 1)} | "
            f"{minutes:.1f} |",
            flush=True,
        )
        if arguments.pictures is not None:
            arguments.pictures.mkdir(parents=True, exist_ok=True)
            chosen = int(np.argmax(returns))
            eqrl.draw_skills(
                arguments.pictures / f"{name}.png", results[chosen], title=name
            )


if __name__ == "__main__":
    main()
