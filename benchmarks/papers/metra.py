"""METRA and other rewards without a task, on an ant and a cheetah."""

import dataclasses
import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqrl
from eqrl._storage.checkpoint import saved_steps

from .page import center, value_after
from .paper import AbstractContender, Experiment, Found, Outcome, Paper
from .standardized import make_standardized
from .training import train_and_measure


NUM_PLAYED, NUM_GOALS = 48, 20
# In each direction, of an ant and of a cheetah, by the number of dimensions.
GOAL_DISTANCE = {2: 50.0, 1: 100.0}
HALF_GRID = 256
CHECKPOINT_SECONDS = 300.0
LR = 1e-4


class Visited(eqrl.AbstractReward[jax.Array, Any]):
    """No reward; its state says which cells of 1 by 1 training has visited."""

    def init(self, spec: eqrl.EnvSpec, *, key: jax.Array) -> jax.Array:
        del key
        return jnp.zeros((2 * HALF_GRID,) * (spec.state_descriptor_size or 0), bool)

    def observe(self, state: jax.Array, transitions: eqrl.Transition[Any]) -> jax.Array:
        for positions in (
            transitions.state_descriptor,
            transitions.next_state_descriptor,
        ):
            assert positions is not None
            cells = jnp.floor(positions).astype(int) + HALF_GRID
            # JAX counts negative indices from the end.
            cells = jnp.where(cells < 0, 2 * HALF_GRID, cells)
            state = state.at[tuple(cells.T)].set(True, mode="drop")
        return state

    def reward(
        self,
        state: jax.Array,
        batch: eqrl.Transition[Any],
        *,
        step: jax.Array,
        key: jax.Array,
    ) -> jax.Array:
        del state, step, key
        return jnp.zeros(batch.timestep.shape)

    def update(
        self, state: jax.Array, batch: eqrl.Transition[Any], *, key: jax.Array
    ) -> tuple[jax.Array, dict[str, jax.Array]]:
        del batch, key
        return state, {}


def _sac(num_actions: int) -> eqrl.SAC:
    return eqrl.SAC(
        actor_lr=LR,
        critic_lr=LR,
        temperature_lr=LR,
        initial_temperature=0.01,
        target_entropy=-0.5 * num_actions,
    )


Made = tuple[eqrl.AbstractReward[Any, Any], eqrl.AbstractSkillPrior | None, int | None]


def _metra(prior: eqrl.AbstractSkillPrior) -> Made:
    return eqrl.METRA(prior), prior, None


def _lsd(prior: eqrl.AbstractSkillPrior) -> Made:
    return eqrl.LSD(prior), prior, None


def _diayn(prior: eqrl.AbstractSkillPrior) -> Made:
    return eqrl.Discriminator(prior, lr=LR, descriptor="observation"), prior, None


def _dads(prior: eqrl.AbstractSkillPrior) -> Made:
    return eqrl.DADS(prior, lr=LR, descriptor="observation"), prior, None


def _cic(prior: eqrl.AbstractSkillPrior) -> Made:
    return eqrl.CIC(prior, lr=LR), prior, 50


def _without_skills(make_reward: Callable[[], Any]) -> Made:
    return make_reward(), None, None


@dataclasses.dataclass(frozen=True)
class Unrewarded(AbstractContender):
    """SAC with a reward of the library in place of the environment's.

    **Attributes:**

    - `make`: the reward, the prior of its skills, and after how many steps another is
        drawn; `None` for no skills, and for skills that last for an episode.
    - `num_steps`: environment steps of a run.
    - `evaluate_every`: environment steps between two measures.
    - `updates_per_iteration`: updates after 200 steps of each of 8 environments.
    - `is_random`: whether all actions are uniform, and nothing is learned.
    """

    make: Callable[[], Made]
    num_steps: int
    evaluate_every: int = 400_000
    updates_per_iteration: int = 50
    is_random: bool = False

    def make_agent(self, env: Any) -> Any:
        reward, prior, resample_every = self.make()
        agent: Any = _sac(env.spec.action_size)
        if prior is not None:
            agent = eqrl.SkillConditioned(agent, prior, resample_every)
        reward = eqrl.Sum([reward, Visited()])
        return eqrl.Intrinsic(agent, reward, score_after_update=True)

    def make_trainer(self) -> eqrl.Trainer:
        return eqrl.Trainer(
            num_envs=8,
            steps_per_iteration=200,
            updates_per_iteration=self.updates_per_iteration,
            capacity=1_000_000,
            warmup_steps=self.num_steps if self.is_random else 10_000,
            warmup_mode="random" if self.is_random else "sample",
        )

    def run(
        self, experiment: Experiment, seed: int, folder: Path, label: str
    ) -> Outcome:
        env, (reward, prior, _) = experiment.make_env(), self.make()
        # Beside the run's folder, which is removed.
        learned = folder.parent.with_name(f"{folder.parent.name}-learned")
        if not saved_steps(folder):
            shutil.rmtree(learned, ignore_errors=True)
        agent, trainer = self.make_agent(env), self.make_trainer()

        def play(step: int, solution: Any) -> eqrl.SkillEvaluation:
            num_episodes = 1
            if isinstance(prior, eqrl.OneHotSkills):
                num_episodes = NUM_PLAYED // prior.size
            return eqrl.evaluate_skills(
                agent,
                solution.state,
                experiment.make_env(),
                skills=NUM_PLAYED if num_episodes == 1 else None,
                num_episodes=num_episodes,
                descriptor="state_descriptor",
                key=jr.fold_in(jr.key(10_000 + seed), step),
            )

        def measure(step: int, solution: Any) -> dict[str, float]:
            cells = float("nan")
            if prior is not None:
                played = play(step, solution)
                visited, _ = eqrl.visited_cells(
                    played.descriptors, played.mask, first=played.first_descriptors
                )
                cells = float(len(visited))
            total = float(solution.state.reward.rewards[1].sum())
            print(f"{label}: step {step}, cells {cells:g} of {total:g}", flush=True)
            return {"cells": cells, "total_cells": total}

        solution, columns = train_and_measure(
            agent,
            env,
            trainer,
            num_steps=self.num_steps,
            every=self.evaluate_every,
            key=jr.key(seed),
            folder=folder,
            checkpoint_seconds=CHECKPOINT_SECONDS,
            measure=measure,
        )
        # What the reward reports, such as METRA's length of a step.
        facts = {
            name: float(np.asarray(values)[-1])
            for name, values in solution.metrics.items()
            if name.startswith("0_")
        }
        if prior is None:
            return Outcome(columns, facts)
        skills = play(self.num_steps, solution)
        if isinstance(reward, eqrl.METRA):
            if self.num_steps not in saved_steps(learned):
                eqrl.save(learned, self.num_steps, solution.state)
            print(f"{label}: skills saved in {learned}", flush=True)
            key = jr.fold_in(jr.key(20_000), seed)
            facts |= _goals(agent, solution.state, experiment.make_env(), skills, key)
        return Outcome(columns, facts, skills=skills)


def _goals(
    agent: Any, state: Any, env: Any, skills: eqrl.SkillEvaluation, key: jax.Array
) -> dict[str, float]:
    """Mean distances from goals at the end of an episode, without learning.

    A goal is the first state of an episode at another position, so far away as METRA's
    paper draws them.
    """
    size, (draw_key, play_key) = env.spec.state_descriptor_size, jr.split(key)
    goals = jr.uniform(draw_key, (NUM_GOALS, size), minval=-1, maxval=1)
    goals = goals * GOAL_DISTANCE[size]
    first, _ = eqrl.rollout(
        agent, state, env, num_episodes=1, max_steps=1, key=play_key
    )
    ends = []
    for index, goal in enumerate(goals):
        observation = env.moved(first.observation[0, 0], goal)
        seeking, its_state = eqrl.seek_goal(agent, state, observation)
        played, mask = eqrl.rollout(
            seeking,
            its_state,
            env,
            num_episodes=1,
            key=jr.fold_in(play_key, index),
            mode="sample",
        )
        assert played.next_state_descriptor is not None
        ends.append(played.next_state_descriptor[0, mask[0].sum() - 1])
    last = skills.mask.sum(axis=-1, keepdims=True)[..., None] - 1
    random = jnp.take_along_axis(skills.descriptors, last, axis=2).reshape(-1, size)
    distance = lambda a, b: float(jnp.mean(jnp.linalg.norm(a - b, axis=-1)))
    return {
        "goals, distance at the start": distance(goals, 0 * goals),
        "goals, distance of a random skill": distance(goals[:, None], random[None]),
        "goals, distance at the end": distance(goals, jnp.stack(ends)),
    }


def report(found: Found) -> list[str]:
    """A table of both coverages at equal steps, and what each seed ended with."""
    names = {"cells": "cells of 48 episodes", "total_cells": "cells of training"}
    # Rewards without skills have no episodes to play.
    shown = [
        name
        for name in names
        if any(np.isfinite(x[0].columns[name][-1]) for x in found.values())
    ]
    # All runs are compared where the shortest of them ends, and so on.
    ends = sorted({int(x[0].columns["step"][-1]) for x in found.values()})
    columns = [(name, step) for step in ends for name in shown]
    heads = [f"{names[name]}, {step:,} steps" for name, step in columns]
    lines = [
        f"| | seeds | {' | '.join(heads)} | min |",
        "|" + "---|" * (3 + len(heads)),
    ]
    for contender, records in found.items():
        minutes = np.mean([float(x.facts["processor minutes"]) for x in records])
        values = [[value_after(x, *column) for x in records] for column in columns]
        known = [center(x) if np.isfinite(x).all() else "" for x in values]
        cells = (contender, str(len(records)), *known, f"{minutes:.0f}")
        lines.append(f"| {' | '.join(cells)} |")
    for contender, records in found.items():
        for record in records:
            known = {names[name]: f"{record.columns[name][-1]:g}" for name in shown} | {
                name.removeprefix("0_"): value
                for name, value in record.facts.items()
                if name.startswith(("0_", "goals"))
            }
            each = ", ".join(
                f"{name} {value}" for name, value in known.items() if value != "nan"
            )
            seed = record.facts["seed"]
            lines.append(f"\n{contender}, seed {seed}, at the end: {each}.")
    return lines


def _experiment(
    env: str, prior: eqrl.AbstractSkillPrior, *, steps_of_diayn: int
) -> Experiment:
    steps = 4_000_000
    one_hot, unit_cube = eqrl.OneHotSkills, eqrl.UniformSkills(64, low=0.0, high=1.0)
    made: dict[str, tuple[Callable[[], Made], int]] = {
        "METRA": (functools.partial(_metra, prior), 16_000_000),
        "DIAYN": (functools.partial(_diayn, one_hot(16)), steps_of_diayn),
        "LSD": (functools.partial(_lsd, prior), steps),
        "DADS": (functools.partial(_dads, one_hot(8)), steps),
        "CIC": (functools.partial(_cic, unit_cube), steps),
        "RND": (functools.partial(_without_skills, eqrl.RND), steps),
        "APT": (functools.partial(_without_skills, eqrl.ParticleEntropy), steps),
    }
    return Experiment(
        env=env,
        contenders={name: Unrewarded(*each) for name, each in made.items()},
        seeds=1,
        options={"max_steps": 200},
        report=report,
        curves=("cells", "total_cells"),
        make=make_standardized,
    )


PAPER = Paper(
    title="METRA and other skills",
    text="""\
[Park et al.](https://arxiv.org/abs/2310.08887) count the cells of 1 by 1 that the
skills of an ant visit, in x and y, and those of a cheetah in x. Their numbers are in
figures only, so what can be compared is the order of methods and the shape of curves:
on the ant METRA before LSD and both before DADS, DIAYN and CIC, on the cheetah METRA
before all others.

Settings of METRA's release, with narrower networks: 8 environments, 50 updates after
200 steps of each, episodes of 200 steps that no fall ends, observations with the
position, shifted and scaled by constants, 11,200 steps by the untrained policy (10,000,
rounded up to whole iterations), a replay of 1,000,000, SAC with rates of 1e-4, batches
of 256, a temperature from 0.01 and a target entropy of minus half the number of
actions; the reward learns before it scores a batch, with rates of 1e-4 and a multiplier
from 30. Hidden layers have 256 and 256 units here, 1,024 and 1,024 in the release, with
which METRA's 16,000,000 steps would take eleven hours of two cores, by an estimate;
those of the actor are ReLU here, tanh there.

The ant has skills on the circle, the cheetah 16 one-hot skills. DIAYN has 16 one-hot
skills in both tasks. DADS has 8, where METRA's copy has normal ones, compares with all
of them and models a step by 4 normal distributions, the copy by one. CIC has the 64
dimensions and the 50 steps of a skill of its release, but its 15 nearest neighbors
leave out the state itself, which the release counts as the sixteenth, and distances are
divided by their running mean, not by their variance, and not reduced by a constant. RND
and APT, which is `ParticleEntropy`, have none. APT measures distances between
observations, where its release learns features, and its 12 nearest neighbors leave out
the state itself, which the release counts as the twelfth.

`cells of 48 episodes` are those of 48 greedy episodes with skills from the prior (each
one-hot skill as often as all others), the first and the last state among them; `cells
of training` are those of all states in training. In the release, time limits count as
terminal states, and the mean over dimensions of a step's square is limited, not the
sum.

Goals are drawn from the square or the segment around the start, 50 in each direction
for the ant and 100 for the cheetah, and approached with sampled actions, as in the
release. The episodes of random skills beside them are the greedy ones with skills from
the prior.
""",
    experiments=(
        _experiment("envpool/Ant-v4", eqrl.SphereSkills(2), steps_of_diayn=16_000_000),
        _experiment(
            "envpool/HalfCheetah-v4", eqrl.OneHotSkills(16), steps_of_diayn=4_000_000
        ),
    ),
)
