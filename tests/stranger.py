"""A stranger's first hour: installs what is built for a release, and uses it.

Each step is a command of the README or of a page, in an empty environment and an empty
folder, with fewer steps of training. It prints a table and ends with 1 if a command
fails, if eqrl warns, or if a package that eqrl uses writes to the standard error where
it is used first. Run it as `nox -s stranger`.
"""

import argparse
import dataclasses
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time


ROOT = pathlib.Path(__file__).parent.parent

OWN_NETWORK = """
import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl
from eqrl import nn


class OwnCritic(eqx.Module):
    network: eqx.nn.MLP

    def __init__(self, observation_size: int, action_size: int, *, key: PRNGKeyArray):
        size = observation_size + action_size
        self.network = eqx.nn.MLP(size, "scalar", 32, 2, key=key)

    def __call__(
        self, observation: Float[Array, " obs"], action: Float[Array, " act"]
    ) -> Float[Array, ""]:
        return self.network(jnp.concatenate([observation, action]))


env = eqrl.envs.make("gymnax/Pendulum-v1")
agent = eqrl.SAC(make_actor=nn.Gaussian((32, 32)), make_critic=OwnCritic)
trainer = eqrl.Trainer(batch_size=64)
solution = eqrl.train(agent, env, trainer, num_steps=1_200, key=jr.key(0))
eqrl.save_run("runs/own-network", solution, agent, env)
print(eqrl.evaluate(agent, solution.state, env, num_episodes=4, key=jr.key(1)).returns)
"""


FIRST_USE = """
import sys

import jax.random as jr

import eqrl


name = sys.argv[1]
env = eqrl.envs.make(name)
agent = eqrl.TD3(
    make_actor=eqrl.nn.Deterministic((8,)), make_critic=eqrl.nn.Critic((8,))
)
trainer = eqrl.Trainer(batch_size=16, warmup_steps=100, capacity=1_000)
with eqrl.Checkpoints("checkpoints/" + name, every_steps=100) as checkpoints:
    solution = eqrl.train(
        agent,
        env,
        trainer,
        num_steps=300,
        key=jr.key(0),
        log_every=100,
        checkpoint=checkpoints,
    )
solution = eqrl.load_solution("checkpoints/" + name, agent, env, trainer)
eqrl.draw_learning_curves("curves.png", {"TD3": solution.metrics})
# MuJoCo warns of attributes in the models of some.
eqrl.envs.make("brax/halfcheetah")
"""


@dataclasses.dataclass(frozen=True)
class Step:
    """What a stranger does, and what must be there then."""

    name: str
    command: str
    expected: str | None = None
    begins_with: bytes = b""
    is_silent: bool = False
    """Whether it must write nothing to the standard error."""


# The very first ones, with no cache of any package.
STEPS = (
    *(
        Step(f"first use of {name}", f"python first_use.py {name}", is_silent=True)
        for name in ("gymnax/Pendulum-v1", "brax/inverted_pendulum")
    ),
    Step("the version", "eqrl --version"),
    Step(
        "first training",
        "eqrl train sac --num-steps 2000 --seeds 2 --folder runs/sac",
        expected="runs/sac/learning_curve.png",
    ),
    Step("evaluation", "eqrl evaluate runs/sac --num-episodes 8"),
    Step("a video", "eqrl render runs/sac", expected="runs/sac/episode_of_seed_0.gif"),
    Step(
        "own network", "python own_network.py", expected="runs/own-network/metrics.csv"
    ),
    Step(
        "own agent",
        "eqrl train --agent redq:REDQ --num-steps 1200 --folder runs/redq",
        expected="runs/redq/metrics.csv",
    ),
    Step(
        "PBT",
        "eqrl pbt td3 --size 4 --num-generations 2 --steps-per-generation 1200 "
        "--num-episodes 2 --folder runs/pbt",
        expected="runs/pbt/family_tree.png",
    ),
    Step(
        "skills",
        "eqrl train diayn --env eqrl/Point --num-skills 4 --num-steps 1200 "
        "--folder runs/skills",
        expected="runs/skills/skills.png",
    ),
)
AFTER_THE_KILL = (
    Step(
        "resume",
        "eqrl train --resume runs/killed",
        expected="runs/killed/learning_curve.png",
    ),
    Step(
        "two runs compared",
        "eqrl plot runs/sac runs/killed --output compared.pdf",
        expected="compared.pdf",
        begins_with=b"%PDF",
    ),
)
KILLED = "eqrl train td3 --num-steps 6000 --checkpoint-every 2000 --folder runs/killed"


class Visit:
    """An empty environment and an empty folder, and how each step went."""

    def __init__(self, folder: pathlib.Path) -> None:
        self._folder = folder
        self._programs = folder / "environment" / "bin"
        self.failed: list[str] = []

    def install(self) -> None:
        begin = time.perf_counter()
        uv = shutil.which("uv")
        environment = str(self._programs.parent)
        if uv is None:
            subprocess.run([sys.executable, "-m", "venv", environment], check=True)
            install = [str(self._programs / "pip"), "install", "--quiet"]
        else:
            create = [uv, "venv", "--quiet", "--python", sys.executable, environment]
            subprocess.run(create, check=True)
            python = str(self._programs / "python")
            install = [uv, "pip", "install", "--quiet", "--python", python]
        subprocess.run([*install, f"{ROOT}[all]"], check=True)
        self._say("install", 'pip install ".[all]"', begin, "")

    def take(self, step: Step) -> None:
        begin = time.perf_counter()
        ended = subprocess.run(
            self._words(step.command, warns=not step.is_silent),
            cwd=self._folder,
            capture_output=True,
            text=True,
        )
        problem = ""
        if ended.returncode != 0:
            problem = f"ended with {ended.returncode}: {ended.stderr[-2_000:]}"
        elif step.expected is not None:
            path = self._folder / step.expected
            if not path.is_file() or not path.read_bytes().startswith(step.begins_with):
                problem = f"there is no such `{step.expected}`"
        elif step.is_silent and ended.stderr:
            problem = f"wrote {ended.stderr[-2_000:]}"
        self._say(step.name, step.command, begin, problem or _warnings(ended.stderr))

    def kill(self) -> None:
        """Ends a training, as a failing machine does, behind its first checkpoint."""
        begin = time.perf_counter()
        checkpoints = self._folder / "runs/killed/checkpoints"
        with subprocess.Popen(
            self._words(KILLED),
            cwd=self._folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            while process.poll() is None and not list(checkpoints.glob("[0-9]*")):
                time.sleep(0.05)
            process.send_signal(signal.SIGKILL)
        was_killed = process.returncode == -signal.SIGKILL
        problem = "" if was_killed else f"ended by itself with {process.returncode}"
        self._say("a kill", KILLED, begin, problem)

    def _words(self, command: str, *, warns: bool = True) -> list[str]:
        program, *words = command.split()
        # Whatever else is installed stays out of sight, and so do caches.
        isolated = [
            "env",
            "-u",
            "PYTHONPATH",
            "-u",
            "VIRTUAL_ENV",
            "-u",
            "XDG_CACHE_HOME",
        ]
        isolated += ["-u", "MPLCONFIGDIR", f"HOME={self._folder}"]
        python = [*isolated, str(self._programs / "python")]
        if warns:
            python += ["-W", "default"]
        if program == "python":
            return [*python, *words]
        return [*python, "-m", program, *words]

    def _say(self, name: str, command: str, begin: float, problem: str) -> None:
        seconds = time.perf_counter() - begin
        print(
            f"| {name} | `{command}` | {seconds:.0f} | {problem or 'well'} |",
            flush=True,
        )
        if problem:
            self.failed.append(name)


def _warnings(text: str) -> str:
    """The first warning of eqrl itself."""
    found = re.search(r"^.*/eqrl/[^\n]*Warning[^\n]*", text, flags=re.MULTILINE)
    return "" if found is None else found[0]


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "own_network.py").write_text(OWN_NETWORK)
        (folder / "first_use.py").write_text(FIRST_USE)
        shutil.copy(ROOT / "docs/examples/redq.py", folder)
        print("| step | command | seconds | how it went |\n|---|---|---|---|")
        visit = Visit(folder)
        visit.install()
        for step in STEPS:
            visit.take(step)
        visit.kill()
        for step in AFTER_THE_KILL:
            visit.take(step)
    if visit.failed:
        sys.exit(f"These steps went wrong: {', '.join(visit.failed)}.")


if __name__ == "__main__":
    main()
