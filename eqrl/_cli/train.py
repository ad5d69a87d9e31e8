import dataclasses
import math
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jax.random as jr
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Bool, Float, PRNGKeyArray

from .._agents.base import AnyAgent
from .._interaction.evaluate_skills import evaluate_skills
from .._pytree.fields import check_integer
from .._reporting.progress import ProgressBar
from .._reporting.tensorboard import TensorBoard, check_tensorboard
from .._run.config import Run, Training
from .._run.files import checkpoints_folder
from .._run.solutions import load_solution, step_of
from .._run.write import (
    GrowingMetrics,
    draw_solution,
    states_of_seeds,
    write_policies,
    write_skills,
)
from .._storage.checkpoint import saved_steps
from .._training.mesh import check_mesh
from .._training.rows import AnySolution
from .._training.train import train, train_seeds
from .._training.trainer import Trainer
from ..envs._base import AnyEnv
from ..presets import Preset
from .commands import Train
from .devices import make_mesh
from .training import (
    NUM_SKILL_EPISODES,
    Policies,
    Reporter,
    check_training,
    open_checkpoints,
    print_skills,
)


@dataclasses.dataclass(frozen=True)
class SeedsJob:
    """Training of one agent from one seed or several."""

    run: Run[Training]
    agent: AnyAgent
    env: AnyEnv
    trainer: Trainer
    tensorboard: bool
    mesh: Mesh | None
    preset: Preset | None

    def check(self) -> None:
        if self.tensorboard:
            check_tensorboard("`--tensorboard`")
        self.trainer.check_num_steps(self.run.schedule.num_steps)
        check_integer("log_every", self.run.schedule.log_every, least=1)
        check_mesh(self.mesh, self.run.schedule.seeds, name="seeds")
        check_training(self.trainer, self.agent, self.env)

    @property
    def command(self) -> str:
        return "train"

    def load(self, folder: Path) -> AnySolution | None:
        checkpoints = checkpoints_folder(folder)
        if not saved_steps(checkpoints):
            return None
        return load_solution(checkpoints, self.agent, self.env, self.trainer)

    def train(
        self,
        folder: Path,
        *,
        initial: AnySolution | None,
        checkpoint_every: int | None,
        key: PRNGKeyArray,
    ) -> AnySolution:
        schedule = self.run.schedule
        reports = {
            "The progress": ProgressBar(schedule.num_steps),
            "metrics.csv": GrowingMetrics(folder, initial.metrics if initial else {}),
        }
        if self.tensorboard:
            writer = TensorBoard(folder / "tensorboard", schedule.seeds)
            reports["TensorBoard"] = writer
        with ExitStack() as stack:
            callbacks = [
                stack.enter_context(Reporter(name, report))
                for name, report in reports.items()
            ]
            checkpoint = stack.enter_context(
                open_checkpoints(folder, every_steps=checkpoint_every)
            )
            done = 0 if initial is None else step_of(initial)
            # After a failure within an iteration it is not a whole number of them.
            size = self.trainer.steps_of_iteration
            options: dict[str, Any] = {
                "num_steps": math.ceil((schedule.num_steps - done) / size) * size,
                "key": key,
                "initial": initial,
                "log_every": schedule.log_every,
                "callback": callbacks,
                "checkpoint": checkpoint,
            }
            if schedule.seeds == 1:
                return train(self.agent, self.env, self.trainer, **options)
            return train_seeds(
                self.agent,
                self.env,
                self.trainer,
                num_seeds=schedule.seeds,
                mesh=self.mesh,
                members=schedule.members,
                **options,
            )

    def keep(self, folder: Path, reached: AnySolution) -> None:
        with open_checkpoints(folder) as checkpoints:
            checkpoints.save(reached)

    def failed(self, reached: AnySolution) -> Bool[np.ndarray, " seeds"]:
        if not reached.metrics:
            return np.zeros(self.run.schedule.seeds, bool)
        nonfinite = reached.metrics["nonfinite"]
        return np.any(nonfinite.reshape(len(nonfinite), -1) > 0, axis=0)

    def has_learned(self, reached: AnySolution) -> bool:
        return int(reached.counts.updates) > 0

    def write(self, folder: Path, reached: AnySolution) -> Policies:
        write_policies(folder, reached)
        states = states_of_seeds(reached)
        pairs = [(self.agent, state) for state in states]
        return Policies(pairs, step=step_of(reached))

    def draw(self, folder: Path, reached: AnySolution) -> None:
        if reached.metrics:
            draw_solution(folder, self.run.title, reached)

    def report(
        self,
        folder: Path,
        reached: AnySolution,
        policies: Policies,
        returns: Float[np.ndarray, "seeds episodes"],
        *,
        key: PRNGKeyArray,
    ) -> None:
        del reached
        num_episodes = returns.shape[1]
        means = returns.mean(axis=1)
        errors = returns.std(axis=1, ddof=1) / np.sqrt(num_episodes)
        listed = ", ".join(
            f"{mean:.1f} ± {error:.1f}"
            for mean, error in zip(means, errors, strict=True)
        )
        print(
            f"mean return of {num_episodes} greedy episodes, ± its standard error "
            f"over their starting states: {listed}"
        )
        if len(means) > 1:
            print(
                f"over {len(means)} seeds: {means.mean():.1f}, standard deviation "
                f"{means.std(ddof=1):.1f}"
            )
        if self.preset is not None:
            print(f"the preset reached: {self.preset.reached}")
        if self.run.skills is not None:
            # The evaluations of the seeds use the indices before this one.
            skill_key = jr.fold_in(key, self.run.schedule.seeds)
            self._report_skills(folder, policies, key=skill_key)

    def _report_skills(
        self, folder: Path, policies: Policies, *, key: PRNGKeyArray
    ) -> None:
        """Writes and prints how well the skills of each seed can be told apart."""
        evaluations = [
            evaluate_skills(
                agent,
                state,
                self.env,
                num_episodes=NUM_SKILL_EPISODES,
                key=jr.fold_in(key, seed),
            )
            for seed, (agent, state) in enumerate(policies.pairs)
        ]
        write_skills(folder, self.run, evaluations)
        print_skills(evaluations)


def seeds_job(command: Train) -> SeedsJob:
    """The training that a command asks for."""
    run = command.run
    return SeedsJob(
        run=run,
        agent=run.make_agent(),
        env=run.make_env(),
        trainer=run.make_trainer(),
        tensorboard=command.tensorboard,
        mesh=make_mesh(run.schedule.devices),
        preset=command.preset,
    )
