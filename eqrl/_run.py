import csv
import dataclasses
import importlib.metadata
import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.random as jr
import numpy as np
from jaxtyping import Float, PyTree

from ._agents import SAC, TD3, AbstractAgent, Normalized
from ._checkpoint import Directory, restore, save
from ._custom_types import Mode
from ._learning_curve import draw_learning_curve
from ._train import History, Solution
from ._trainer import Trainer
from .envs import AbstractEnv, make
from .nn import Critic, Deterministic, Gaussian


_AGENTS = {"sac": (SAC, Gaussian), "td3": (TD3, Deterministic)}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What decides a run besides the options of its agent and its trainer."""

    env: str = "gymnax/Pendulum-v1"
    """Environment: brax/..., gymnax/... or eqrl/..., then the name there."""

    backend: str | None = None
    """Physics of brax: generalized, mjx, positional or spring, the default."""

    max_steps: int | None = None
    """Time limit of an episode; by default 1000 for brax, else the environment's."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Width of each hidden layer of actor and critics."""

    normalize: bool = False
    """Shift and scale observations to mean zero and deviation one."""

    num_steps: int = 20_000
    """Environment steps of each seed, warm-up included."""

    seeds: int = 1
    """How many agents to train at once, each from a seed of its own."""

    seed: int = 0
    """Number from which all randomness of the run is drawn."""

    log_every: int = 1_000
    """Environment steps in a row of the metrics."""


@dataclasses.dataclass(frozen=True)
class Run:
    """All that decides a run: `config.json` holds it."""

    agent: str
    agent_options: dict[str, float | int | bool | None]
    trainer_options: dict[str, int]
    settings: Settings

    def __post_init__(self) -> None:
        if self.agent not in _AGENTS:
            raise ValueError(f"`agent={self.agent!r}` must be one of {list(_AGENTS)}.")
        for name in ("num_steps", "seeds"):
            value = getattr(self.settings, name)
            if value < 1:
                raise ValueError(f"`{name}={value}` must be at least 1.")

    def make_agent(self) -> AbstractAgent[Any, Any, Any]:
        make_agent, make_actor = _AGENTS[self.agent]
        hidden_sizes = self.settings.hidden_sizes
        agent = make_agent(
            **self.agent_options,
            make_actor=make_actor(hidden_sizes),
            make_critic=Critic(hidden_sizes),
        )
        return Normalized(agent) if self.settings.normalize else agent

    def make_env(self) -> AbstractEnv[Any]:
        settings = self.settings
        return make(
            settings.env, backend=settings.backend, max_steps=settings.max_steps
        )

    def make_trainer(self) -> Trainer:
        return Trainer(**self.trainer_options)


def load_run(
    folder: Directory, seed: int = 0
) -> tuple[AbstractAgent[Any, Any, Any], Any, AbstractEnv[Any]]:
    """Loads what `eqrl train` trained.

    ```python
    agent, state, env = eqrl.load_run("runs/x")
    eqrl.evaluate(agent, state, env, num_episodes=64, key=jr.key(0))
    ```

    **Arguments:**

    - `folder`: of the run.
    - `seed`: which of the agents of a run with several seeds, from 0.

    **Returns:**

    The agent, what it had learnt at the end, and the environment.
    """
    run = read_config(folder)
    if not 0 <= seed < run.settings.seeds:
        raise ValueError(
            f"`seed={seed}` is not in `{folder}`, which has the seeds 0 to "
            f"{run.settings.seeds - 1}."
        )
    agent, env = run.make_agent(), run.make_env()
    like = eqx.filter_eval_shape(agent.init, env.spec, key=jr.key(0))
    return agent, restore(_policy_folder(folder, seed), like), env


def claim_folder(folder: Directory) -> None:
    """Makes a folder for a run; a `ValueError` where there is something in it.

    A `config.json` alone is left by a run that was stopped before it reached anything,
    and may be written over.
    """
    path = Path(folder)
    if path.exists() and not (
        path.is_dir() and {item.name for item in path.iterdir()} <= {"config.json"}
    ):
        raise ValueError(
            f"`folder={str(folder)!r}` is there already and not empty; give another."
        )
    path.mkdir(parents=True, exist_ok=True)


def write_config(folder: Directory, run: Run) -> None:
    """Writes `config.json`, from which a run can be repeated."""
    version = importlib.metadata.version("eqrl")
    _write_json(folder, "config.json", {"eqrl": version, **dataclasses.asdict(run)})


def read_config(folder: Directory) -> Run:
    """What `write_config` wrote."""
    path = Path(folder) / "config.json"
    if not path.is_file():
        raise ValueError(
            f"`{folder}` is not the folder of a run: there is no `config.json` in it."
        )
    try:
        config = json.loads(path.read_text())
        config.pop("eqrl")
        settings = config.pop("settings")
        settings["hidden_sizes"] = tuple(settings["hidden_sizes"])
        return Run(settings=Settings(**settings), **config)
    except (AttributeError, KeyError, TypeError, json.JSONDecodeError) as error:
        raise ValueError(
            f"`{path}` is not as this version of eqrl writes it ({error!r})."
        ) from error


def states_of_seeds(
    solution: Solution[Any, Any, Any, Any], num_seeds: int
) -> list[Any]:
    """What the agent of each seed has learnt."""
    if num_seeds == 1:
        return [solution.state]
    return [_member(solution.state, seed) for seed in range(num_seeds)]


def write_solution(
    folder: Directory, run: Run, solution: Solution[Any, Any, Any, Any]
) -> None:
    """Writes `metrics.csv`, `learning_curve.png` and the policy of each seed."""
    _write_metrics(folder, solution.metrics)
    with _replacing(Path(folder) / "learning_curve.png") as path:
        title = f"{run.agent.upper()} on {run.settings.env}"
        draw_learning_curve(path, solution.metrics, title=title)
    step = int(solution.metrics["step"][-1])
    for seed, state in enumerate(states_of_seeds(solution, run.settings.seeds)):
        save(_policy_folder(folder, seed), step, state)


def write_evaluation(
    folder: Directory,
    returns: Float[np.ndarray, "seeds episodes"],
    *,
    step: int,
    mode: Mode,
) -> None:
    """Writes `evaluation.json`."""
    evaluation = {
        "step": step,
        "mode": mode,
        "num_episodes": returns.shape[1],
        "mean_returns": _finite(returns.mean(axis=1)),
        "returns": [_finite(row) for row in returns],
    }
    _write_json(folder, "evaluation.json", evaluation)


def _member(stack: PyTree, index: int) -> PyTree:
    return jax.tree.map(lambda x: x[index] if eqx.is_array(x) else x, stack)


def _policy_folder(folder: Directory, seed: int) -> Path:
    return Path(folder) / "policy" / f"seed_{seed}"


def _finite(values: Float[np.ndarray, " values"]) -> list[float | None]:
    # JSON has no nan.
    return [float(value) if math.isfinite(value) else None for value in values]


def _write_metrics(folder: Directory, metrics: History) -> None:
    steps = metrics["step"]
    columns = {
        name: values.reshape(len(steps), -1)
        for name, values in metrics.items()
        if name != "step"
    }
    num_seeds = next(iter(columns.values())).shape[1]
    with (
        _replacing(Path(folder) / "metrics.csv") as path,
        open(path, "w", newline="") as file,
    ):
        writer = csv.writer(file)
        writer.writerow(["seed", "step", *columns])
        for seed in range(num_seeds):
            for row, step in enumerate(steps):
                values = [float(column[row, seed]) for column in columns.values()]
                writer.writerow([seed, int(step), *values])


def _write_json(folder: Directory, name: str, content: dict[str, Any]) -> None:
    with _replacing(Path(folder) / name) as path:
        path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n")


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """Where to write what takes the place of `path` once it is complete."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)
