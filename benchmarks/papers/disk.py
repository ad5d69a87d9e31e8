"""DISk beside DIAYN, skills learned one after another and together."""

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqrl
from eqrl._storage.checkpoint import saved_steps
from eqrl.envs import AbstractEnv, AbstractEnvWrapper, Outcome as Stepped

from .page import center
from .paper import AbstractContender, Experiment, Found, Outcome, Paper
from .training import resumed


EVALUATION_STEPS = 500
NUM_EPISODES = 3
COLLECTED = "further steps of earlier skills"
DISTANCES: dict[str, Callable[..., Any]] = {
    "pairwise Hausdorff": eqrl.pairwise_hausdorff,
    "union Hausdorff": eqrl.union_hausdorff,
}


class SwimmerState(eqx.Module):
    """A simulator, and the center relative to where it was first seen, at `start`."""

    inner: Any
    center: jax.Array
    start: jax.Array
    has_begun: jax.Array


class CenterOfMass(AbstractEnvWrapper[SwimmerState]):
    """gym's Swimmer, described by its center of mass.

    The torso, whose position EnvPool reports, is its first link, and swings with every
    stroke. EnvPool does not tell where an episode begins, up to 0.1 from the origin,
    and random actions move the center by at most 0.003 a step, so places are relative
    to that after the first step.
    """

    env: AbstractEnv[Any]

    @property
    def inner(self) -> AbstractEnv[Any]:
        return self.env

    def inner_state(self, state: SwimmerState) -> Any:
        return state.inner

    @property
    def spec(self) -> eqrl.EnvSpec:
        return self.env.spec

    def reset(self, *, key: jax.Array) -> tuple[SwimmerState, jax.Array]:
        inner, observation = self.env.reset(key=key)
        here = jnp.zeros(2)
        return SwimmerState(inner, here, here, jnp.array(False)), observation

    def step(
        self, state: SwimmerState, action: jax.Array, *, key: jax.Array
    ) -> tuple[SwimmerState, Stepped]:
        inner, outcome = self.env.step(state.inner, action, key=key)
        torso = self.env.state_descriptor(inner)
        assert torso is not None
        center = center_of_swimmer(torso, outcome.observation)
        start = jnp.where(state.has_begun, state.start, center)
        return SwimmerState(inner, center - start, start, jnp.array(True)), outcome

    def state_descriptor(self, state: SwimmerState) -> jax.Array:
        return state.center


def center_of_swimmer(torso: jax.Array, observation: jax.Array) -> jax.Array:
    """The center of mass of gym's Swimmer.

    **Arguments:**

    - `torso`: x and y of the torso's origin, where the center is if all is straight.
    - `observation`: it begins with the heading and the angles of both joints.
    """
    headings = jnp.cumsum(observation[:3])
    directions = jnp.stack([jnp.cos(headings), jnp.sin(headings)])
    # Three links of length and mass 1, whose middles are 1, 0 and -1 from the origin if
    # all is straight; joints are at 0.5 and -0.5.
    return torso + directions @ jnp.array([2.0, -1.5, -0.5]) / 3


def make_swimmer(name: str, **options: Any) -> CenterOfMass:
    """gym's Swimmer of EnvPool, as the paper describes it."""
    return CenterOfMass(eqrl.envs.make(name, **options))


def _sac() -> eqrl.SAC:
    return eqrl.SAC(initial_temperature=0.1)


def _trainer() -> eqrl.Trainer:
    return eqrl.Trainer(capacity=250_000, warmup_steps=1_000)


def _outcome(played: Any, num_steps: int) -> Outcome:
    """The distances between the ends of skills, and where each ends."""
    found = eqrl.terminal_descriptors(played.descriptors, played.mask)
    ends = np.asarray(found).reshape(-1, found.shape[-1])
    skills = np.repeat(np.arange(found.shape[0]), found.shape[1])
    columns = {f"end_{axis}": ends[:, axis] for axis in range(ends.shape[1])}
    distances = {name: float(measure(found)) for name, measure in DISTANCES.items()}
    return Outcome(
        {"skill": skills, **columns},
        {"steps": num_steps, **distances},
        skills=played,
    )


@dataclasses.dataclass(frozen=True)
class OneAfterAnother(AbstractContender):
    """DISk, by default with both terms of equal weight."""

    num_skills: int
    steps_of_skill: int
    num_collected_episodes: int
    make_reward: Callable[[], eqrl.Incremental] = eqrl.Incremental

    def run(
        self, experiment: Experiment, seed: int, folder: Path, label: str
    ) -> Outcome:
        agent = eqrl.Intrinsic(_sac(), self.make_reward())
        env, trainer = experiment.make_env(), _trainer()
        initial = None
        if saved_steps(folder / "training"):
            initial = eqrl.load_skills(folder, agent, env, trainer)

        def keep(step: int, metrics: dict[str, Any], skills: eqrl.Skills[Any]) -> None:
            diversity = float(metrics["intrinsic_reward"])
            print(f"{label}: step {step}, reward {diversity:.4g}", flush=True)
            eqrl.save_skills(folder, skills)

        skills = eqrl.learn_skills(
            agent,
            env,
            trainer,
            num_skills=self.num_skills,
            num_steps=self.steps_of_skill,
            num_collected_episodes=self.num_collected_episodes,
            key=jr.key(seed),
            log_every=self.steps_of_skill,
            initial=initial,
            callback=keep,
        )
        played = eqrl.play_skills(
            agent,
            skills,
            experiment.make_env(max_steps=EVALUATION_STEPS),
            num_episodes=NUM_EPISODES,
            key=jr.key(10_000 + seed),
        )
        assert skills.training is not None
        # A skill's training goes on until an episode has ended.
        outcome = _outcome(played, int(skills.metrics["step"][-1]))
        collected = int(skills.training.collected_steps)
        facts = {**outcome.facts, COLLECTED: collected}
        return dataclasses.replace(outcome, facts=facts)


@dataclasses.dataclass(frozen=True)
class Together(AbstractContender):
    """DIAYN, with as many skills and steps."""

    num_skills: int
    num_steps: int

    def run(
        self, experiment: Experiment, seed: int, folder: Path, label: str
    ) -> Outcome:
        agent = eqrl.diayn(_sac(), self.num_skills)
        env, trainer, key = experiment.make_env(), _trainer(), jr.key(seed)
        initial = resumed(folder, agent, env, trainer)
        done = 0 if initial is None else int(initial.metrics["step"][-1])

        def report(step: int, metrics: dict[str, Any], solution: object) -> None:
            del solution
            diversity = float(metrics["intrinsic_reward"])
            print(f"{label}: step {step}, reward {diversity:.4g}", flush=True)

        with eqrl.Checkpoints(folder) as checkpoints:
            solution = eqrl.train(
                agent,
                env,
                trainer,
                num_steps=self.num_steps - done,
                key=key,
                initial=initial,
                log_every=min(self.num_steps // 10, 10_000),
                callback=report,
                checkpoint=checkpoints,
            )
        played = eqrl.evaluate_skills(
            agent,
            solution.state,
            experiment.make_env(max_steps=EVALUATION_STEPS),
            num_episodes=NUM_EPISODES,
            key=jr.key(10_000 + seed),
        )
        return _outcome(played, self.num_steps)


def report(found: Found) -> list[str]:
    """A table of both distances."""
    heads = ("", "seeds", *DISTANCES, "each seed, pairwise")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for contender, records in found.items():
        values = {x: [float(y.facts[x]) for y in records] for x in DISTANCES}
        each = ", ".join(f"{x:.3g}" for x in values["pairwise Hausdorff"])
        centers = " | ".join(center(values[x]) for x in DISTANCES)
        lines.append(f"| {contender} | {len(records)} | {centers} | {each} |")
    for contender, records in found.items():
        further = [x.facts[COLLECTED] for x in records if COLLECTED in x.facts]
        if further:
            lines.append(f"\n{contender}, {COLLECTED} by seed: {', '.join(further)}.")
    return lines


def _experiment(
    env: str,
    *,
    max_steps: int,
    descriptor: str,
    steps_of_skill: int = 25_000,
    seeds: int = 3,
    alpha: float = 1.0,
    beta: float = 1.0,
    by_default: bool = True,
    make: Callable[..., AbstractEnv[Any]] = eqrl.envs.make,
    **options: Any,
) -> Experiment:
    num_skills, num_collected = 10, 100
    sizes = num_skills, steps_of_skill, num_collected
    released = functools.partial(
        eqrl.Incremental, mode="released", alpha=alpha, beta=beta
    )
    contenders = {
        "DISk": OneAfterAnother(*sizes),
        "DISk-released": OneAfterAnother(*sizes, make_reward=released),
        "DIAYN": Together(num_skills, num_skills * steps_of_skill),
    }
    return Experiment(
        env=env,
        contenders=contenders,
        named_only=("DISk-released",),
        by_default=by_default,
        seeds=seeds,
        options={
            "max_steps": max_steps,
            "state_descriptor": descriptor,
            "options": options,
        },
        report=report,
        make=make,
    )


_WALKER = functools.partial(_experiment, max_steps=100)

PAPER = Paper(
    title="DISk beside DIAYN",
    text="""\
[Shafiullah and Pinto](https://arxiv.org/abs/2203.11176) learn skills one after another
and show, for several walkers, the Hausdorff distance between skills beside DIAYN's
(read off a figure: Hopper 6.3 and 3.1, Swimmer 6.4 and 3.0, Ant 137 and about 0). In
the fourth, HalfCheetah, which runs here only if it is named, DIAYN is ahead, 123 to 79.

A tenth of the published steps: 10 skills of 25,000 steps each (Ant: 90,000, and to the
end of an episode), and DIAYN with 10 skills for as many steps in all. Before each skill
DISk also plays 100 episodes of every earlier one, which these steps do not include.
Both are SAC with one environment and one update a step, hidden layers of 256 and 256
and batches of 256 (theirs: 1024), rates of 3e-4 (theirs: 1e-4), and a temperature from
0.1. Time limits are theirs, 100 steps (Swimmer: 200), and falls end the episodes of Ant
alone.

Both terms of DISk's reward are divided by their means over the skill before, as the
paper describes, and so they have equal weights here. The weights in its code
(consistency 1, Ant 60, Swimmer 1,000; diversity 1, Hopper 10) belong to undivided
terms, as it has them for the first skill. `DISk-released`, which runs only if it is
named, has these weights and computes rewards as the code does (`mode="released"`):
during a skill, consistency turns into dispersion, and the skill just learned is not yet
among the earlier ones.

Their Hopper has 50 skills, and the first 2 of their Ant's 10 have half the steps of the
others. Random steps are 1,000 here and 5,000 there; the replay holds 250,000 steps, in
theirs all of them (Swimmer: a fifth, Ant: two ninths); their targets move at every
second update. In their code time limits count as terminal states; here values
bootstrap there. Their Ant also observes contact forces, which version 4 leaves out.
When a skill begins, the newest half of the replay stays, theirs a random half. Where
paper, pseudocode and code disagree, DISk follows the paper (`mode="paper"`).

DIAYN sees positions alone; what theirs saw is not released.

Skills are played in 3 greedy episodes of 500 steps each. Positions are those of the
torso, of Hopper along x alone, where theirs has the height, too, and of Swimmer's
center of mass, as theirs. With its torso, which swings with every stroke, as position,
which was tried first, the distances of seed 0 were 1.53 and 2.29 for `DISk-released`,
1.68 and 2.66 for DIAYN. EnvPool gives 0 for the position before the first step,
whose change is therefore up to 0.1 off (Swimmer: 0). Whether their distance
is that between pairs of skills or from the union of the others cannot be told from
their repository, so both are given.
""",
    experiments=(
        _WALKER(
            "envpool/Hopper-v4",
            descriptor="x",
            beta=10.0,
            terminate_when_unhealthy=False,
        ),
        _experiment(
            "envpool/Swimmer-v4",
            max_steps=200,
            descriptor="xy",
            alpha=1_000.0,
            make=make_swimmer,
        ),
        _WALKER(
            "envpool/Ant-v4",
            descriptor="xy",
            steps_of_skill=90_000,
            seeds=1,
            alpha=60.0,
        ),
        _WALKER("envpool/HalfCheetah-v4", descriptor="x", by_default=False),
    ),
)
