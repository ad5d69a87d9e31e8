"""DIAYN with the settings of QDax's notebook, beside QDax itself."""

import dataclasses
import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

import eqrl

from ..peer_environments import python_of
from .page import center, mean_of_last
from .paper import AbstractContender, Experiment, Found, Outcome, Paper, Record
from .training import train_and_measure


ROOT = Path(__file__).parents[2]
MEASURES = ("diversity_return", "accuracy", "environment_return")
CHECKPOINT_SECONDS = 300.0


@dataclasses.dataclass(frozen=True)
class Settings:
    """Those of QDax's notebooks; what they leave open is said beside it."""

    algorithm: Literal["DIAYN", "DADS"] = "DIAYN"
    num_steps: int = 2_000_000
    # Notebooks evaluate once, at the end.
    evaluate_every: int = 50_000
    num_episodes: int = 10
    num_envs: int = 250
    # A quarter of an update a step, which QDax rounds down.
    updates_per_iteration: int = 62
    capacity: int = 1_000_000
    max_steps: int = 100
    num_skills: int = 5
    hidden_sizes: tuple[int, ...] = (256, 256)
    batch_size: int = 256
    lr: float = 3e-4
    target_step_size: float = 0.005
    discount: float = 0.97
    initial_temperature: float = 1.0


class WithoutForwardReward(eqrl.envs.AbstractStatelessWrapper[Any]):
    """brax's ant, whose reward is what remains without that of its speed."""

    env: Any

    @property
    def spec(self) -> eqrl.EnvSpec:
        return self.env.spec

    def reset(self, *, key: jax.Array) -> tuple[Any, jax.Array]:
        return self.env.reset(key=key)

    def step(
        self, state: Any, action: jax.Array, *, key: jax.Array
    ) -> tuple[Any, eqrl.envs.Outcome]:
        state, outcome = self.env.step(state, action, key=key)
        reward = outcome.reward - state.inner.metrics["reward_forward"]
        return state, dataclasses.replace(outcome, reward=reward)


def position(state: Any) -> jax.Array:
    """The position of the torso, as far as QDax's descriptor reaches."""
    return jnp.clip(state.pipeline_state.x.pos[0, :2], -30, 30)


def make_ant(name: str, **options: Any) -> WithoutForwardReward:
    """QDax's `ant_omni`."""
    env = eqrl.envs.make(name, backend="spring", state_descriptor=position, **options)
    return WithoutForwardReward(env)


@dataclasses.dataclass(frozen=True)
class Ours(AbstractContender):
    """DIAYN or DADS of this library."""

    settings: Settings

    def run(
        self, experiment: Experiment, seed: int, folder: Path, label: str
    ) -> Outcome:
        settings, env, key = self.settings, experiment.make_env(), jr.key(seed)
        agent = _agent(settings, env.spec.action_size)
        trainer = eqrl.Trainer(
            num_envs=settings.num_envs,
            batch_size=settings.batch_size,
            capacity=settings.capacity,
            # One step of each environment, without updates.
            warmup_steps=settings.num_envs,
            warmup_mode="sample",
            updates_per_iteration=settings.updates_per_iteration,
        )

        def evaluate(step: int, solution: Any) -> eqrl.SkillEvaluation:
            return eqrl.evaluate_skills(
                agent,
                solution.state,
                experiment.make_env(),
                num_episodes=settings.num_episodes,
                key=jr.fold_in(jr.key(10_000 + seed), step),
            )

        def measure(step: int, solution: Any) -> dict[str, float]:
            found = evaluate(step, solution)
            diversity = float(found.diversity_returns.mean())
            accuracy = float(found.accuracy)
            shown = f"{diversity:.5g}, accuracy {accuracy:.3g}"
            print(f"{label}: step {step}, diversity {shown}", flush=True)
            return {
                "diversity_return": diversity,
                "accuracy": accuracy,
                "environment_return": float(found.returns.mean()),
            }

        solution, columns = train_and_measure(
            agent,
            env,
            trainer,
            num_steps=settings.num_steps,
            every=settings.evaluate_every,
            key=key,
            folder=folder,
            checkpoint_seconds=CHECKPOINT_SECONDS,
            measure=measure,
        )
        return Outcome(columns, skills=evaluate(settings.num_steps, solution))


def _agent(settings: Settings, action_size: int) -> Any:
    sizes, lr = settings.hidden_sizes, settings.lr
    sac = eqrl.SAC(
        actor_lr=lr,
        critic_lr=lr,
        temperature_lr=lr,
        discount=settings.discount,
        target_step_size=settings.target_step_size,
        initial_temperature=settings.initial_temperature,
        target_entropy=-0.5 * action_size,
        make_actor=eqrl.nn.Gaussian(sizes),
        make_critic=eqrl.nn.Critic(sizes),
    )
    skills = eqrl.EvenOneHotSkills(settings.num_skills)
    if settings.algorithm == "DADS":
        reward = eqrl.DADS(
            skills,
            lr=lr,
            dynamics_input="nothing",
            make_network=eqrl.nn.Features(sizes),
        )
        return eqrl.Intrinsic(eqrl.SkillConditioned(sac, skills), reward)
    return eqrl.diayn(
        sac,
        skills,
        lr=lr,
        make_network=eqrl.nn.CategoricalDiscriminator(sizes),
    )


@dataclasses.dataclass(frozen=True)
class QDax(AbstractContender):
    """That of QDax, in a process with QDax's Python."""

    settings: Settings

    def run(
        self, experiment: Experiment, seed: int, folder: Path, label: str
    ) -> Outcome:
        del experiment
        folder.mkdir(parents=True, exist_ok=True)
        given = {**dataclasses.asdict(self.settings), "seed": seed, "label": label}
        file = folder / "trained.npz"
        worker = "benchmarks.papers.qdax_agents"
        subprocess.run(
            [python_of("qdax"), "-m", worker, json.dumps(given), str(file)],
            check=True,
            # Safe paths: the folder that it is started in must not hide packages.
            env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONSAFEPATH": "1"},
        )
        trained = np.load(file)
        head = "column "
        columns = {x.removeprefix(head): trained[x] for x in trained if head in x}
        skills = eqrl.SkillTrajectories(
            descriptors=jnp.asarray(trained["descriptors"]),
            mask=jnp.asarray(trained["mask"]),
        )
        versions = json.loads(str(trained["versions"]))
        minutes = float(trained["minutes_before"])
        return Outcome(columns, versions=versions, skills=skills, minutes=minutes)


def minutes_of_training(record: Record) -> float:
    """Processor minutes without evaluations, and without compilation.

    Every interval is counted as the median one, since some contain a compilation.
    """
    seconds = record.columns["seconds"]
    return float(np.median(seconds) * len(seconds) / 60)


def report(found: Found) -> list[str]:
    """A table of the last ten evaluations, and whether ours are as good as QDax's."""
    first = next(iter(found.values()))[0].columns
    # That of DADS is unknown.
    measures = [name for name in MEASURES if np.isfinite(first[name]).all()]
    shown = [name.removeprefix("environment_").replace("_", " ") for name in measures]
    heads = ("", "seeds", *shown, "min")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    values: dict[str, dict[str, Sequence[float]]] = {}
    for contender, records in found.items():
        values[contender] = {
            name: [mean_of_last(x.columns[name]) for x in records] for name in measures
        }
        centers = " | ".join(center(values[contender][name]) for name in measures)
        minutes = np.mean([minutes_of_training(x) for x in records])
        lines.append(f"| {contender} | {len(records)} | {centers} | {minutes:.1f} |")
    for contender, measured in values.items():
        for name in measures[:-1]:
            each = ", ".join(f"{x:.4g}" for x in measured[name])
            lines.append(f"\n{contender}, {name.replace('_', ' ')} by seed: {each}.")
    if len(found.get("QDax", ())) > 1 and "eqrl" in found:
        for name in measures[:-1]:
            theirs, ours = values["QDax"][name], np.mean(values["eqrl"][name])
            least = np.mean(theirs) - np.std(theirs, ddof=1)
            lines.append(
                f"\nMean {name.replace('_', ' ')}: eqrl {ours:.4g}; QDax's mean less "
                f"its standard deviation over seeds {least:.4g}."
            )
    return lines


PAPER = Paper(
    title="DIAYN beside QDax",
    text="""\
[Eysenbach et al.](https://arxiv.org/abs/1802.06070) print no number that could be
compared, nor does QDax, so QDax runs beside ours, with the settings of its
[notebook](https://github.com/adaptive-intelligent-robotics/QDax/blob/main/examples/diayn.ipynb):
brax's ant (spring) without the reward for its speed, episodes of 100 steps, 5 skills,
250 environments of which 50 have each skill, 2,000,000 steps with 62 updates after
every 250, a replay of 1,000,000, hidden layers of 256 and 256, batches of 256, rates of
3e-4, a discount of 0.97, targets that move by 0.005, a temperature that is learned from
1 with a target entropy of -4. The discriminator sees x and y, clipped to 30.

Both are evaluated in 10 greedy episodes of each skill every 50,000 steps. The diversity
return of an episode is the sum of log q(z | s) - log p(z) over the states reached; 100
log 5 = 160.9 is the most, and chance is 0. Accuracy is the share of steps at which the
discriminator finds the skill that is played the most probable. The return is that of
the environment, which neither learns from. The table has means of the last ten
evaluations; `min` are processor minutes of training alone, without compilation.

What differs:

- QDax learns from the first step on, ours makes no update after the first 250 steps;
- QDax's environments restart in the state in which each began, and the last transition
  of an episode leads there, also for its reward; an error of the critic at the time
  limit does not count. Ours draw a new state, and the last transition leads to the
  state reached, whose value counts at the time limit;
- QDax's discriminator learns from the state that is left, ours from the state reached;
- QDax updates the critic, then the actor with the critic before that update; ours with
  the one after it;
- QDax's policy has a standard deviation of softplus(x) + 0.001, ours of exp(x);
- weights begin as is usual in each library.

QDax 0.5.0 passes `a_min` and `a_max` to `jnp.clip`, which JAX has removed. Here it runs
with these two calls replaced. The processor minutes of a run of QDax that was stopped
lack those after the last evaluation before each stop.
""",
    experiments=(
        Experiment(
            env="brax/ant",
            contenders={"eqrl": Ours(Settings()), "QDax": QDax(Settings())},
            options={"max_steps": 100},
            report=report,
            curves=("diversity_return", "accuracy"),
            make=make_ant,
        ),
    ),
)
