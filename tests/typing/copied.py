"""Makes a project of the files that the page on type checking gives to copy.

Run as `python -m tests.typing.copied FOLDER`. The package `mylab` is the user's project
of these tests, with a test of its own; all of the rest is copied from the page. Then
what the hooks and the workflow run is run in it, as it stands there, but for the
installation of packages, which must be installed already.
"""

import argparse
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import yaml


ROOT = Path(__file__).parents[2]
TEMPLATES = ROOT / "docs" / "examples" / "type_checking"
# What tests of a project do: all of it is called, so that its types are checked.
TEST = '''"""Each part of the project is traced with its types checked."""

import jax
import jax.random as jr

import eqrl
from mylab.agent import Imitator
from mylab.boat import Boat


def test_an_update_has_the_types_that_it_says() -> None:
    agent, env = Imitator(), Boat()

    def steps() -> eqrl.Metrics:
        state = agent.init(env.spec, key=jr.key(0))
        place, seen = env.reset(key=jr.key(1))
        action, _, extras = agent.act(state, None, seen, mode="sample", key=jr.key(2))
        _, outcome = env.step(place, action, key=jr.key(3))
        row = eqrl.Transition(
            observation=seen,
            action=action,
            reward=outcome.reward,
            next_observation=outcome.observation,
            terminated=outcome.terminated,
            truncated=outcome.truncated,
            timestep=jax.numpy.zeros((), int),
            state_descriptor=None,
            next_state_descriptor=None,
            extras=extras,
        )
        batch = jax.tree.map(lambda x: jax.numpy.stack([x, x]), row)
        step = jax.numpy.zeros((), int)
        return agent.update(state, batch, step=step, key=jr.key(4))[1]

    assert set(jax.eval_shape(steps))
'''


def write_project(folder: Path) -> None:
    """Writes the package, its tests, and the copied files in their places."""
    shutil.rmtree(folder, ignore_errors=True)
    package = folder / "mylab"
    shutil.copytree(ROOT / "tests" / "typing" / "project", package)
    shutil.rmtree(package / "__pycache__", ignore_errors=True)
    (folder / "tests").mkdir()
    (folder / "tests" / "test_agent.py").write_text(TEST)
    places = {
        "conftest.py": "tests/conftest.py",
        "noxfile.py": "noxfile.py",
        "pyproject-section.toml": "pyproject.toml",
        "pre-commit-config.yaml": ".pre-commit-config.yaml",
        "workflow.yml": ".github/workflows/types.yml",
    }
    for template in TEMPLATES.iterdir():
        place = folder / places[template.name]
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(template, place)


def commands(folder: Path) -> list[list[str]]:
    """What the hooks run, and the last step of the workflow without installing."""
    hooks = yaml.safe_load((folder / ".pre-commit-config.yaml").read_text())
    entries = [hook["entry"] for repo in hooks["repos"] for hook in repo["hooks"]]
    workflow = yaml.safe_load((folder / ".github/workflows/types.yml").read_text())
    last = workflow["jobs"]["typecheck"]["steps"][-1]["run"]
    return [*map(shlex.split, entries), [*shlex.split(last), *_WITHOUT_INSTALLING]]


_WITHOUT_INSTALLING = ["--no-venv", "--no-install", "--error-on-external-run"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    write_project(folder)
    # In place of installing the project itself.
    paths = [str(folder.absolute()), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    for command in commands(folder):
        print(f"{folder.name}: {shlex.join(command)}", flush=True)
        code = subprocess.run(command, cwd=folder, env=env, check=False).returncode
        if code != 0:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
