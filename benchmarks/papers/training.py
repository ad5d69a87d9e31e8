"""Contenders that `eqrl.train` trains, with greedy evaluations in the meantime."""

import dataclasses
import json
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax.random as jr

import eqrl
from eqrl._agents.base import AnyAgent
from eqrl._storage.checkpoint import saved_steps
from eqrl._storage.files import atomic_write

from .paper import AbstractContender, Experiment, Outcome


COLUMNS = ("step", "episode_return", "episode_length", "evaluation_return")


def resumed(folder: Path, agent: AnyAgent, env: Any, trainer: eqrl.Trainer) -> Any:
    """The solution of the newest checkpoint in a folder; `None` if there is none."""
    if not saved_steps(folder):
        return None
    return eqrl.load_solution(folder, agent, env, trainer)


def train_and_measure(
    agent: AnyAgent,
    env: Any,
    trainer: eqrl.Trainer,
    *,
    num_steps: int,
    every: int,
    key: Any,
    folder: Path,
    checkpoint_seconds: float,
    measure: Callable[[int, Any], Mapping[str, float]],
) -> tuple[Any, dict[str, list[float]]]:
    """Trains to the end, from the newest checkpoint if there is one, and measures.

    **Arguments:**

    - `every`: steps between two rows of measures.
    - `measure`: called as `measure(step, solution)`; its names are the same each time.

    **Returns:**

    The solution, and the columns of all rows, those from before it was stopped among
    them: the steps, the measures, and the processor seconds of training alone.
    """
    initial = resumed(folder, agent, env, trainer)
    done = 0 if initial is None else int(initial.metrics["step"][-1])
    file = folder.parent / "rows.json"
    rows = json.loads(file.read_text()) if done > 0 else []
    # The last ones may be of steps after the checkpoint.
    rows = [row for row in rows if row["step"] <= done]
    begin = time.process_time()

    def note(step: int, metrics: dict[str, Any], solution: Any) -> None:
        del metrics
        nonlocal begin
        seconds = time.process_time() - begin
        rows.append({"step": step, **measure(step, solution), "seconds": seconds})
        with atomic_write(file) as partial:
            partial.write_text(json.dumps(rows))
        begin = time.process_time()

    with eqrl.Checkpoints(folder, every_seconds=checkpoint_seconds) as checkpoints:
        solution = eqrl.train(
            agent,
            env,
            trainer,
            num_steps=num_steps - done,
            key=key,
            initial=initial,
            log_every=every,
            callback=note,
            checkpoint=checkpoints,
        )
    return solution, {name: [row[name] for row in rows] for name in rows[0]}


@dataclasses.dataclass(frozen=True)
class Training(AbstractContender):
    """An agent that is trained on a task.

    **Attributes:**

    - `make_agent`, `make_trainer`: called in the process that trains.
    - `num_steps`: environment steps of a run.
    - `evaluate_every`, `num_episodes`: greedy evaluations during training.
    - `log_every`: environment steps in a row of the training returns.
    - `checkpoint_seconds`: between two states that are saved.
    - `measure_end`: more figures of what was trained, by name; called as
        `measure_end(agent, state, env, key)`.
    """

    make_agent: Callable[[], AnyAgent]
    make_trainer: Callable[[], eqrl.Trainer]
    num_steps: int
    evaluate_every: int
    num_episodes: int = 10
    log_every: int = 5_000
    checkpoint_seconds: float = 60.0
    measure_end: Callable[[Any, Any, Any, Any], Mapping[str, float]] | None = None

    def run(
        self, experiment: Experiment, seed: int, folder: Path, label: str
    ) -> Outcome:
        agent, trainer = self.make_agent(), self.make_trainer()
        env, key = experiment.make_env(), jr.key(seed)
        evaluations: Any = eqrl.Evaluations(
            agent,
            experiment.make_env(),
            every=self.evaluate_every,
            key=jr.fold_in(key, 1_000),
            num_episodes=self.num_episodes,
        )
        initial = resumed(folder, agent, env, trainer)
        done = 0 if initial is None else int(initial.metrics["step"][-1])

        def report(step: int, metrics: dict[str, Any], solution: object) -> None:
            del solution
            evaluated = float(metrics["evaluation_return"])
            if math.isfinite(evaluated):
                print(f"{label}: step {step}, greedy {evaluated:.5g}", flush=True)

        seconds = self.checkpoint_seconds
        with eqrl.Checkpoints(folder, every_seconds=seconds) as checkpoints:
            solution = eqrl.train(
                agent,
                env,
                trainer,
                num_steps=self.num_steps - done,
                key=key,
                initial=initial,
                log_every=self.log_every,
                evaluations=evaluations,
                callback=report,
                checkpoint=checkpoints,
            )
        facts: Mapping[str, float] = {}
        if self.measure_end is not None:
            key = jr.fold_in(key, 2_000)
            facts = self.measure_end(agent, solution.state, experiment.make_env(), key)
        return Outcome({name: solution.metrics[name] for name in COLUMNS}, facts)
