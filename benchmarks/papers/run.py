"""One run: a task, a contender and a seed. It can be stopped and resumed."""

import csv
import dataclasses
import json
import math
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import numpy as np

from eqrl._storage.files import atomic_write

from ..measure import machine
from .paper import Experiment, Outcome, Record
from .papers import load
from .skills import write_skills


DATA = Path(__file__).parents[2] / "docs" / "results" / "papers" / "data"
PACKAGES = ("jax", "equinox", "envpool", "gymnax", "brax", "mujoco")
SECONDS_OF_NOTE = 30.0


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


def run(job: Job, experiment: Experiment) -> None:
    """Runs to the end and writes the CSV.

    It resumes from the newest checkpoint in the job's folder, if there is one.
    """
    path = job.path_of(experiment)
    folder = job.folder / job.paper / path.parent.name / path.stem
    folder.mkdir(parents=True, exist_ok=True)
    notes, commits, before = folder / "notes.json", list[str](), 0.0
    if notes.exists():
        commits, before = json.loads(notes.read_text())
    # The code that was imported, which may change while it runs.
    commits = list(dict.fromkeys([*commits, _commit()]))

    def minutes() -> float:
        # Of the processor, since others may use the machine in the meantime; with
        # processes that have ended, such as that of another library.
        return before + sum(os.times()[:4]) / 60

    ended = threading.Event()

    def note_time() -> None:
        while not ended.wait(SECONDS_OF_NOTE):
            with atomic_write(notes) as partial:
                partial.write_text(json.dumps([commits, minutes()]))

    threading.Thread(target=note_time, daemon=True).start()
    label = f"{experiment.env} {path.stem}"
    contender = experiment.contenders[job.contender]
    outcome = contender.run(experiment, job.seed, folder / "checkpoints", label)
    ended.set()
    all_minutes = minutes() + outcome.minutes
    found = facts(experiment, job.seed, commits, all_minutes) | dict(outcome.versions)
    found |= {name: f"{value:.6g}" for name, value in outcome.facts.items()}
    if outcome.skills is not None:
        write_skills(skills_of(path), outcome.skills)
    write_run(path, outcome, found)
    shutil.rmtree(folder)
    print(f"{label}: done in {all_minutes:.1f} min", flush=True)


def skills_of(path: Path) -> Path:
    """The file with the paths of the skills of a run."""
    return path.parent / "skills" / path.name


def _commit() -> str:
    return subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parent,
    ).stdout.strip()


def facts(
    experiment: Experiment, seed: int, commits: Sequence[str], minutes: float
) -> dict[str, str]:
    """What a result depends on, for the first lines of a CSV.

    `commits` are those of this library, several if it has changed while a run was
    stopped.
    """
    installed = {name: _version(name) for name in PACKAGES}
    return {
        "env": experiment.env,
        "seed": str(seed),
        "eqrl": ", ".join(commits),
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


def write_run(path: Path, outcome: Outcome, facts: Mapping[str, str]) -> None:
    """Writes the rows of a run below comments with its facts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    with unfinished.open("w", newline="") as file:
        for name, value in facts.items():
            file.write(f"# {name}: {value}\n")
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(outcome.columns)
        for step, *values in zip(*outcome.columns.values(), strict=True):
            shown = [f"{x:.6g}" if math.isfinite(x) else "" for x in map(float, values)]
            if any(shown):
                writer.writerow([int(step), *shown])
    unfinished.rename(path)


def read_run(path: Path) -> Record:
    """Reads what `write_run` wrote."""
    lines = path.read_text().splitlines()
    comments = [line[2:].split(": ", 1) for line in lines if line.startswith("# ")]
    rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    columns = {
        name: np.asarray([float(row[name] or "nan") for row in rows])
        for name in rows[0]
    }
    return Record({name: value for name, value in comments}, columns)


def main() -> None:
    paper, experiment, contender, seed, folder = sys.argv[1:]
    job = Job(paper, int(experiment), contender, int(seed), Path(folder))
    run(job, load(paper).experiments[job.experiment])


if __name__ == "__main__":
    main()
