"""One run: a task, an agent and a seed. It can be stopped and resumed."""

import csv
import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

import jax.random as jr

import eqrl

from ..measure import machine
from .paper import Contender, Experiment
from .papers import load


DATA = Path(__file__).parents[2] / "docs" / "results" / "papers" / "data"
PACKAGES = ("jax", "equinox", "envpool", "gymnax", "brax", "mujoco")
CHECKPOINTS_EVERY = 60.0


@dataclasses.dataclass(frozen=True)
class Job:
    """What one process does."""

    paper: str
    experiment: int
    contender: str
    seed: int
    folder: Path

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments of this module as a program."""
        return tuple(str(getattr(self, x.name)) for x in dataclasses.fields(self))

    def path_of(self, experiment: Experiment) -> Path:
        """The CSV of the run."""
        name = f"{self.contender}-{self.seed}.csv"
        return DATA / self.paper / experiment.env.replace("/", "-") / name


def run(job: Job, experiment: Experiment) -> str:
    """Trains to the end and writes the CSV. Returns a line to print.

    Training resumes from the newest checkpoint in the job's folder, if there is one.
    """
    contender = experiment.contenders[job.contender]
    folder = job.folder / job.paper / experiment.env.replace("/", "-")
    folder = folder / f"{job.contender}-{job.seed}"
    folder.mkdir(parents=True, exist_ok=True)
    minutes_file = folder / "minutes.json"
    before = json.loads(minutes_file.read_text()) if minutes_file.exists() else 0.0

    def minutes() -> float:
        # Of the processor, since others may use the machine in the meantime.
        return before + time.process_time() / 60

    solution = train(
        contender,
        experiment,
        job.seed,
        folder / "checkpoints",
        lambda: minutes_file.write_text(json.dumps(minutes())),
        label=f"{experiment.env} {job.contender} {job.seed}",
    )
    path = job.path_of(experiment)
    found = facts(experiment, job.seed, minutes())
    if contender.measure_end is not None:
        ends = contender.measure_end(
            contender.make_agent(),
            solution.state,
            experiment.make_env(),
            jr.fold_in(jr.key(job.seed), 2_000),
        )
        found |= {name: f"{value:.6g}" for name, value in ends.items()}
    write_run(path, solution.metrics, found)
    shutil.rmtree(folder)
    last = [x for x in solution.metrics["evaluation_return"] if math.isfinite(x)][-10:]
    mean = sum(last) / len(last)
    return f"{experiment.env} {path.stem}: {mean:.5g} in {minutes():.1f} min"


def train(
    contender: Contender,
    experiment: Experiment,
    seed: int,
    checkpoints: Path,
    note_time: Any,
    *,
    label: str,
) -> Any:
    """The solution of a run, resumed from its newest checkpoint."""
    agent, trainer = contender.make_agent(), contender.make_trainer()
    env = experiment.make_env()
    key = jr.key(seed)
    evaluations: Any = eqrl.Evaluations(
        agent,
        experiment.make_env(),
        every=contender.evaluate_every,
        key=jr.fold_in(key, 1_000),
        num_episodes=contender.num_episodes,
    )
    initial, done = None, 0
    if checkpoints.exists() and any(checkpoints.iterdir()):
        initial = eqrl.load_solution(checkpoints, agent, env, trainer)
        done = int(initial.metrics["step"][-1])

    def report(step: int, metrics: dict[str, Any], solution: object) -> None:
        del solution
        evaluated = float(metrics["evaluation_return"])
        note_time()
        if math.isfinite(evaluated):
            print(f"{label}: step {step}, greedy {evaluated:.5g}", flush=True)

    with eqrl.Checkpoints(checkpoints, every_seconds=CHECKPOINTS_EVERY) as saved:
        return eqrl.train(
            agent,
            env,
            trainer,
            num_steps=contender.num_steps - done,
            key=key,
            initial=initial,
            log_every=contender.log_every,
            evaluations=evaluations,
            callback=report,
            checkpoint=saved,
        )


def facts(experiment: Experiment, seed: int, minutes: float) -> dict[str, str]:
    """What a result depends on, for the first lines of a CSV."""
    installed = {name: _version(name) for name in PACKAGES}
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    ).stdout.strip()
    return {
        "env": experiment.env,
        "seed": str(seed),
        "eqrl": commit,
        "machine": machine()["device"],
        "cores": str(len(os.sched_getaffinity(0))),
        "processor minutes": f"{minutes:.1f}",
        **{name: version for name, version in installed.items() if version},
    }


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def write_run(path: Path, metrics: dict[str, Any], facts: dict[str, str]) -> None:
    """Writes the rows of a run below comments with its facts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    columns = ("step", "episode_return", "episode_length", "evaluation_return")
    with unfinished.open("w", newline="") as file:
        for name, value in facts.items():
            file.write(f"# {name}: {value}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for step, *values in zip(*(metrics[name] for name in columns), strict=True):
            shown = [f"{x:.6g}" if math.isfinite(x) else "" for x in map(float, values)]
            if any(shown):
                writer.writerow([int(step), *shown])
    unfinished.rename(path)


def main() -> None:
    paper, experiment, contender, seed, folder = sys.argv[1:]
    job = Job(paper, int(experiment), contender, int(seed), Path(folder))
    print(run(job, load(paper).experiments[job.experiment]), flush=True)


if __name__ == "__main__":
    main()
