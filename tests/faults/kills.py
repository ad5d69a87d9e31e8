"""Kills trainings of the command line at random, resumes them, and compares the end.

Run as `python -m tests.faults.kills --number 20`. Each kind of training runs once
undisturbed. Then it is killed by SIGKILL at random moments, while it compiles, trains,
saves or writes its results, and resumed after each, until it has been killed so often;
when a training comes to its end before that, the next one begins. Each must end with
the same `metrics.csv`, `evaluation.json` and policies, to the last bit. Prints how
often each kind was killed and whether all were the same; exits with 1 otherwise.
"""

import argparse
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import equinox as eqx

import eqrl
from eqrl._run.config import read_config
from eqrl._run.load import count_policies


_COMMON = "--env eqrl/Point --max-steps 20 --hidden-sizes 16 --capacity 2000"
_EVERY = "--checkpoint-every 2000"
KINDS = {
    "sac": f"train sac {_COMMON} {_EVERY} --num-steps 20000 --log-every 200",
    "taac": f"train taac {_COMMON} {_EVERY} --num-steps 20000 --log-every 200",
    "td3-seeds": (
        f"train td3 {_COMMON} {_EVERY} --num-steps 12000 --log-every 200 --seeds 5"
    ),
    "pbt": (
        f"pbt sac {_COMMON} {_EVERY} --size 4 --num-generations 40 "
        "--steps-per-generation 400 --num-episodes 4 --num-replaced 1 --num-elite 1 "
        "--warmup-steps 200"
    ),
    "ppo": (
        "train ppo --env eqrl/Point --max-steps 20 --hidden-sizes 16 --num-envs 4 "
        f"--steps-per-iteration 50 {_EVERY} --num-steps 40000 --log-every 200"
    ),
    "diayn": f"train diayn {_COMMON} {_EVERY} --num-steps 20000 --log-every 200",
    "disk": (
        f"disk {_COMMON} {_EVERY} --num-skills 3 --num-steps 2000 --log-every 200 "
        "--warmup-steps 200"
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--number", type=int, default=20, help="kills of each kind")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    failures = 0
    print("kind        kills  ends  same", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for kind in options.kinds:
            kills, ends, same = _attack(
                kind, Path(folder), options.number, random.Random(options.seed)
            )
            failures += ends - same
            print(f"{kind:10} {kills:6} {ends:5} {same:5}", flush=True)
    return 1 if failures else 0


def _attack(
    kind: str, folder: Path, number: int, chance: random.Random
) -> tuple[int, int, int]:
    """Kills a training so often; returns that, how many ended, and how many alike."""
    arguments = KINDS[kind].split()
    reference, victim = folder / f"{kind}-whole", folder / f"{kind}-killed"
    began = time.monotonic()
    if _run([*arguments, "--folder", str(reference)], None) != 0:
        raise RuntimeError(f"{kind} does not train")
    duration = time.monotonic() - began
    kills = ends = same = 0
    while kills < number or victim.exists():
        resumed = [arguments[0], "--resume", str(victim), *_EVERY.split()]
        begun = (victim / "config.json").exists()
        command = resumed if begun else [*arguments, "--folder", str(victim)]
        limit = chance.uniform(0, duration) if kills < number else None
        began = time.monotonic()
        code = _run(command, limit)
        if code == -signal.SIGKILL:
            kills += 1
            print(f"{kind}: kill {kills} after {limit:.0f} s", file=sys.stderr)
            continue
        if code != 0:
            raise RuntimeError(f"{kind} ended with {code} after {kills} kills")
        ends += 1
        same += is_same(reference, victim)
        if not begun:
            # The first one had to compile: few others would be killed in its time.
            duration = min(duration, time.monotonic() - began)
        print(f"{kind}: {ends} ends, {same} the same", file=sys.stderr)
        shutil.rmtree(victim)
    return kills, ends, same


def _run(arguments: list[str], limit: float | None) -> int:
    """The exit code of a command that is killed after `limit` seconds."""
    process = subprocess.Popen(
        [sys.executable, "-m", "eqrl", *arguments],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    try:
        _, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
    else:
        if process.returncode != 0:
            print(errors, file=sys.stderr)
    return process.returncode


def environment() -> dict[str, str]:
    """That of a command, whose programs are compiled once for all."""
    cache = Path(tempfile.gettempdir()) / "eqrl-faults"
    return os.environ | {"JAX_COMPILATION_CACHE_DIR": str(cache)}


def is_same(whole: Path, killed: Path) -> bool:
    """Whether two runs ended alike, to the last bit."""
    for name in ("metrics.csv", "evaluation.json"):
        if (whole / name).read_bytes() != (killed / name).read_bytes():
            print(f"{killed / name} differs", file=sys.stderr)
            return False
    for index in range(count_policies(whole, read_config(whole))):
        if not eqx.tree_equal(
            eqrl.load_run(whole, index)[:2], eqrl.load_run(killed, index)[:2]
        ):
            print(f"policy {index} of {killed} differs", file=sys.stderr)
            return False
    return True


if __name__ == "__main__":
    sys.exit(main())
