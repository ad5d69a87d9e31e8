"""Population based training of SAC on HalfCheetah, beside the same members alone."""

import dataclasses
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np

import eqrl

from .paper import AbstractContender, Experiment, Found, Outcome, Paper
from .training import resumed


SIZE = 8
NUM_GENERATIONS = 10
STEPS_PER_GENERATION = 10_000
NUM_EPISODES = 10
NUM_DRAWS = 10_000
RATE = eqrl.LogUniform(3e-5, 3e-3)
PRIORS = (
    RATE,
    RATE,
    RATE,
    eqrl.Uniform(0.9, 0.9999),
    eqrl.LogUniform(0.1, 10.0),
)


def _tuned(agent: eqrl.SAC) -> tuple[Any, ...]:
    rates = agent.actor_lr, agent.critic_lr, agent.temperature_lr
    return *rates, agent.discount, agent.reward_scale


@dataclasses.dataclass(frozen=True)
class Population(AbstractContender):
    """A population that PBT tunes, or, without `selection`, the same one alone."""

    selection: bool

    def run(
        self, experiment: Experiment, seed: int, folder: Path, label: str
    ) -> Outcome:
        pbt = eqrl.PBT(
            where=_tuned,
            priors=PRIORS,
            num_replaced=3,
            num_elite=5,
            resample_probability=1.0,
        )
        agents: Any = pbt.init(eqrl.SAC(), SIZE, key=jr.key(1_000 + seed))
        env = experiment.make_env()
        trainer = eqrl.Trainer(capacity=100_000, warmup_steps=5_000)
        initial = resumed(folder, agents, env, trainer)
        done = 0 if initial is None else len(initial.returns)

        def report(step: int, metrics: dict[str, Any], solution: object) -> None:
            del solution
            mean = float(np.mean(metrics["evaluation_return"]))
            print(f"{label}: step {step}, mean of members {mean:.5g}", flush=True)

        solution: Any = initial
        if done < NUM_GENERATIONS:
            with eqrl.Checkpoints(folder) as checkpoints:
                solution = eqrl.train_population(
                    agents,
                    env,
                    trainer,
                    pbt if self.selection else None,
                    size=SIZE,
                    num_generations=NUM_GENERATIONS - done,
                    steps_per_generation=STEPS_PER_GENERATION,
                    num_episodes=NUM_EPISODES,
                    key=jr.key(seed),
                    initial=initial,
                    callback=[report, checkpoints],
                )
        returns = solution.returns.mean(axis=-1)
        members = {f"member_{index}": returns[:, index] for index in range(SIZE)}
        steps = solution.metrics["step"]
        mean = returns.mean(axis=1)
        return Outcome({"step": steps, "evaluation_return": mean, **members})


def ends(found: Found, contender: str) -> dict[str, np.ndarray]:
    """Returns of the members after the last generation, by seed."""
    names = [f"member_{index}" for index in range(SIZE)]
    return {
        record.facts["seed"]: np.asarray([record.columns[x][-1] for x in names])
        for record in found.get(contender, ())
    }


def report(found: Found) -> list[str]:
    """A table of the members of each seed, and the interval over all pairs."""
    heads = ("", "seed", "mean", "median", "best")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for contender in found:
        for seed, members in ends(found, contender).items():
            numbers = (members.mean(), np.median(members), members.max())
            shown = " | ".join(f"{x:.5g}" for x in numbers)
            lines.append(f"| {contender} | {seed} | {shown} |")
    tuned, alone = ends(found, "PBT"), ends(found, "alone")
    seeds = [seed for seed in tuned if seed in alone]
    if seeds:
        pairs = [tuned[seed] - alone[seed] for seed in seeds]
        differences = np.concatenate(pairs)[None]
        low, high = eqrl.bootstrap_interval(differences, num_resamples=NUM_DRAWS)
        lines.append(
            f"\nOver the {differences.size} pairs of member i with PBT and member i "
            f"alone, which began with the same state and hyperparameters, the mean "
            f"difference is {differences.mean():.5g} ({low[0]:.5g} to {high[0]:.5g}). "
            "Members copy each other, so these pairs are not independent, and the "
            "interval is narrower than one over seeds."
        )
    return lines


PAPER = Paper(
    title="Population based training",
    text="""\
[Jaderberg et al.](https://arxiv.org/abs/1711.09846) claim a schedule of hyperparameters
and a higher return at equal steps. Their tasks are out of reach here. We train 8
members of SAC on HalfCheetah for 100,000 steps each, and the same 8 without selection,
from the same states and hyperparameters.

The ranges are those of [Flajolet et al.](https://arxiv.org/abs/2206.08888): rates from
3e-5 to 3e-3 (log-uniform), discount from 0.9 to 0.9999 (theirs: to 1), reward scale
from 0.1 to 10 (log-uniform). Every 10,000 steps, after 10 greedy episodes of each
member, each of the worst 3 becomes a copy of one of the other 5, drawn at random, with
its replay and with hyperparameters drawn anew. In theirs, the worst 40 % of 80 members
take over the policy alone of a random one of the others every 100,000 updates, keep
their critics and replays, and begin with a new optimizer of the policy and a
temperature of 1, while ours inherit both; and their critics square the discount. One
environment and one update a step, batches of 256, hidden layers of 256 and 256, 5,000
random steps first (theirs: 25,000), a replay of 100,000 (300,000), 100,000 steps of a
member (3,000,000), and the task's version 4 (2).
""",
    experiments=(
        Experiment(
            env="envpool/HalfCheetah-v4",
            contenders={"PBT": Population(True), "alone": Population(False)},
            report=report,
        ),
    ),
)
