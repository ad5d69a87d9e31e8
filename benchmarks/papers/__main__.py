"""Runs a paper's experiments on this machine, each run on a core of its own.

A run is one task, one agent and one seed. A run that has ended is a CSV in
`docs/results/papers/data` and is not made again; one that was stopped resumes with
`--resume`. Run it as `nox -s papers -- sac --env envpool/HalfCheetah-v4 --seeds 3`.
"""

import argparse
import concurrent.futures
import os
import queue
import subprocess
import sys
from pathlib import Path

from .page import write_pages
from .papers import PAPERS, load
from .run import Job


def run_alone(job: Job, cores: "queue.Queue[int]") -> bool:
    """Runs a job in a process of its own, on a core that no other job uses.

    The result is whether it succeeded.
    """
    core = cores.get()
    command = [sys.executable, "-m", "benchmarks.papers.run", *job.arguments]
    try:
        ended = subprocess.run(["taskset", "-c", str(core), *command], check=False)
    finally:
        cores.put(core)
    if ended.returncode != 0:
        print(f"{job} failed with code {ended.returncode}", flush=True)
    return ended.returncode == 0


def main() -> None:
    parser = argparse.ArgumentParser(prog="nox -s papers --", description=__doc__)
    parser.add_argument("names", nargs="+", choices=PAPERS, metavar="NAME")
    parser.add_argument(
        "--env", nargs="+", help="tasks; by default the paper's main ones"
    )
    parser.add_argument("--contenders", nargs="+", help="agents; likewise")
    parser.add_argument("--seeds", type=int, help="how many, from 0; as the paper")
    parser.add_argument("--resume", action="store_true", help="what was stopped")
    parser.add_argument("--folder", type=Path, default=Path.home() / "eqrl-papers")
    options = parser.parse_args()
    jobs = []
    experiments = [x for name in options.names for x in load(name).experiments]
    for given, known in (
        (options.env, {x.env for x in experiments}),
        (options.contenders, {name for x in experiments for name in x.contenders}),
    ):
        if unknown := {*(given or ())} - known:
            parser.error(f"unknown {sorted(unknown)}; there are {sorted(known)}")
    for name in options.names:
        for index, experiment in enumerate(load(name).experiments):
            for seed in range(options.seeds or experiment.seeds):
                for contender in experiment.contenders:
                    job = Job(name, index, contender, seed, options.folder)
                    is_asked = experiment.is_asked(
                        contender, options.env, options.contenders
                    )
                    if is_asked and not job.path_of(experiment).exists():
                        jobs.append(job)
    if any(options.folder.glob("*/*/*/checkpoints")) and not options.resume:
        parser.error(
            f"{options.folder} holds runs that were stopped. Give --resume to go on "
            "with them, or another --folder."
        )
    cores: queue.Queue[int] = queue.Queue()
    for core in sorted(os.sched_getaffinity(0)):
        cores.put(core)
    with concurrent.futures.ThreadPoolExecutor(cores.qsize()) as pool:
        succeeded = list(pool.map(lambda job: run_alone(job, cores), jobs))
    write_pages()
    if not all(succeeded):
        sys.exit(1)


if __name__ == "__main__":
    main()
