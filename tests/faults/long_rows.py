"""Stops trainings within a row of a minute, and measures how soon they end.

Run as `python -m tests.faults.long_rows`. Each of four trainings, of one agent, of
seeds, of a population and of skills, has a single row of about `--seconds`. It runs
once undisturbed. Then Ctrl-C and SIGTERM stop it at a random moment of the row: it
saves what it has reached, and another process resumes from that, with the same end
to the last bit. Prints the seconds from the signal to the end of the process; exits
with 1 if one took more than five, or ended otherwise.
"""

import argparse
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np

import eqrl
from eqrl._disk.library import steps_of_skills
from eqrl._run.solutions import step_of

from .kills import environment


_KINDS = ("agent", "seeds", "population", "skills")
_ENV = eqrl.envs.Point(max_steps=20)
_TRAINER = eqrl.Trainer(warmup_steps=200, capacity=20_000)
_LEARNER = eqrl.Intrinsic(eqrl.SAC(), eqrl.Incremental())
_KEY = jr.key(0)
# An update of SAC takes some five milliseconds on a core.
_UPDATES_PER_SECOND = 200


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, help="of a row, roughly")
    parser.add_argument("--kinds", nargs="+", choices=_KINDS, default=list(_KINDS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--child", type=Path, help="where to train; for itself")
    options = parser.parse_args()
    num_steps = _UPDATES_PER_SECOND * options.seconds
    if options.child is not None:
        return _train_in(options.child, options.kinds[0], num_steps)
    chance = random.Random(options.seed)
    failures = 0
    print("kind        signal   after   ended in  same", flush=True)
    with tempfile.TemporaryDirectory() as name:
        for kind in options.kinds:
            whole, duration = Path(name) / f"{kind}-whole", 0.0
            _, duration = _run(kind, whole, options.seconds, None, 0.0)
            for number in (signal.SIGINT, signal.SIGTERM):
                victim = Path(name) / f"{kind}-{number.name}"
                after = chance.uniform(0.2, 0.8) * duration
                _, seconds = _run(kind, victim, options.seconds, number, after)
                stopped = (victim / "begun").exists()
                _run(kind, victim, options.seconds, None, 0.0)
                same = stopped and _is_same(whole, victim)
                failures += not same or seconds > 5
                line = f"{kind:11} {number.name:8} {after:4.0f} s {seconds:8.1f} s"
                print(f"{line}  {same}", flush=True)
    return 1 if failures else 0


def _run(
    kind: str, folder: Path, seconds: int, number: signal.Signals | None, after: float
) -> tuple[int, float]:
    """The exit code, and how long the row took, or the end after a signal."""
    command = [sys.executable, "-m", "tests.faults.long_rows", "--kinds", kind]
    process = subprocess.Popen(
        [*command, "--seconds", str(seconds), "--child", str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert process.stdout is not None
    # It has compiled.
    process.stdout.readline()
    began = time.monotonic()
    if number is not None:
        time.sleep(after)
        began = time.monotonic()
        process.send_signal(number)
    process.communicate()
    return process.returncode, time.monotonic() - began


def _train_in(folder: Path, kind: str, num_steps: int) -> int:
    """Trains or resumes, and saves what it has reached."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder.mkdir(exist_ok=True)
    begun = folder / "begun"
    initial = _load(begun, kind) if begun.exists() else None
    # The same programs, so that the row begins without compiling.
    _train(kind, 400, None, total=400)
    print("begins", flush=True)
    done = 0 if initial is None else _step_of(initial, kind)
    try:
        reached = _train(kind, num_steps - done, initial, total=num_steps)
    except eqrl.TrainingInterrupted as error:
        _save(begun, error.solution, kind)
        return 1
    arrays = jax.tree.leaves(eqx.filter(reached, eqx.is_array_like))
    np.savez(folder / "end.npz", *arrays)
    return 0


def _train(kind: str, num_steps: int, initial: Any, *, total: int) -> Any:
    options: dict[str, Any] = {"key": _KEY, "initial": initial}
    if kind == "population":
        return eqrl.train_population(
            eqrl.SAC(),
            _ENV,
            _TRAINER,
            None,
            size=2,
            num_generations=1,
            steps_per_generation=total // 2,
            num_episodes=2,
            **options,
        )
    options |= {"log_every": total}
    if kind == "seeds":
        return eqrl.train_seeds(
            eqrl.SAC(), _ENV, _TRAINER, num_seeds=2, num_steps=num_steps // 2, **options
        )
    if kind == "skills":
        return eqrl.learn_skills(
            _LEARNER, _ENV, _TRAINER, num_skills=1, num_steps=total, **options
        )
    return eqrl.train(eqrl.SAC(), _ENV, _TRAINER, num_steps=num_steps, **options)


def _step_of(initial: Any, kind: str) -> int:
    if kind == "skills":
        return steps_of_skills(_TRAINER, initial.training)
    return step_of(initial) * (2 if kind == "seeds" else 1)


def _save(folder: Path, reached: Any, kind: str) -> None:
    if kind == "skills":
        eqrl.save_skills(folder, reached)
    else:
        eqrl.save_solution(folder, reached)


def _load(folder: Path, kind: str) -> Any:
    if kind == "skills":
        return eqrl.load_skills(folder, _LEARNER, _ENV, _TRAINER)
    return eqrl.load_solution(folder, eqrl.SAC(), _ENV, _TRAINER)


def _is_same(one: Path, other: Path) -> bool:
    with np.load(one / "end.npz") as first, np.load(other / "end.npz") as second:
        return [*first] == [*second] and all(
            first[name].tobytes() == second[name].tobytes() for name in first
        )


if __name__ == "__main__":
    sys.exit(main())
