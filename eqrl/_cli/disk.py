import dataclasses
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.random as jr
import numpy as np
from jaxtyping import Bool, Float, PRNGKeyArray

from .._agents.base import AnyAgent
from .._disk.learn import check_replay, enlarge_past, learn_skills
from .._disk.library import (
    Skills,
    find_learner,
    load_skills,
    pick_skill,
    play_skills,
    save_skills,
    steps_of_skills,
)
from .._reporting.progress import SkillProgressBar
from .._reporting.tensorboard import TensorBoard, check_tensorboard
from .._run.config import Run, SkillSchedule
from .._run.files import library_folder
from .._run.solutions import Interval
from .._run.write import write_library, write_rows, write_trajectories
from .._storage.checkpoint import saved_steps
from .._training.trainer import Trainer
from ..envs._base import AnyEnv
from .commands import Disk
from .training import NUM_SKILL_EPISODES, Policies, Reporter


@dataclasses.dataclass(frozen=True)
class LibraryJob:
    """Learning skills one after another."""

    run: Run[SkillSchedule]
    agent: AnyAgent
    env: AnyEnv
    trainer: Trainer
    tensorboard: bool

    def check(self) -> None:
        if self.tensorboard:
            check_tensorboard("`--tensorboard`")
        schedule = self.run.schedule
        self.trainer.check_num_steps(schedule.num_steps)
        _, reward = find_learner(self.agent)
        check_replay(schedule.replay or reward.preset.replay, self.agent)
        enlarge_past(self.agent, self.env, num_episodes=1)
        eqx.filter_eval_shape(self.trainer.init, self.agent, self.env, key=jr.key(0))

    @property
    def command(self) -> str:
        return "disk"

    def load(self, folder: Path) -> Skills[Any] | None:
        library = library_folder(folder)
        if not saved_steps(library / "training"):
            return None
        return load_skills(library, self.agent, self.env, self.trainer)

    def train(
        self,
        folder: Path,
        *,
        initial: Skills[Any] | None,
        checkpoint_every: int | None,
        key: PRNGKeyArray,
    ) -> Skills[Any]:
        schedule = self.run.schedule
        interval = Interval(every_steps=checkpoint_every)
        if initial is not None:
            if initial.metrics:
                write_rows(folder, initial.metrics)
            interval.begin_at(self._step_of(initial))

        def write(step: int, metrics: object, skills: Skills[Any]) -> None:
            del metrics
            write_rows(folder, skills.metrics)
            if interval.is_over(step):
                interval.begin_at(step)
                save_skills(library_folder(folder), skills)

        reports = {
            "The progress": SkillProgressBar(schedule.num_skills, schedule.num_steps),
            "metrics.csv or a checkpoint": write,
        }
        if self.tensorboard:
            reports["TensorBoard"] = TensorBoard(folder / "tensorboard", 1)
        with ExitStack() as stack:
            callbacks = [
                stack.enter_context(Reporter(name, report))
                for name, report in reports.items()
            ]
            return learn_skills(
                self.agent,
                self.env,
                self.trainer,
                num_skills=schedule.num_skills,
                num_steps=schedule.num_steps,
                key=key,
                num_collected_episodes=schedule.num_collected_episodes,
                replay=schedule.replay,
                initial=initial,
                log_every=schedule.log_every,
                callback=callbacks,
            )

    def keep(self, folder: Path, reached: Skills[Any]) -> None:
        # Training resumes from the library itself, which is written next.
        del folder, reached

    def failed(self, reached: Skills[Any]) -> Bool[np.ndarray, " skills"]:
        # A skill that met what is not finite ends the training and is not learned.
        return np.zeros(int(reached.count), bool)

    def has_learned(self, reached: Skills[Any]) -> bool:
        training = reached.training
        assert training is not None
        # A later skill may still be in its random steps; those before it are over.
        is_later = 0 < int(reached.count) <= int(training.skill)
        return is_later or int(training.counts.updates) > 0

    def write(self, folder: Path, reached: Skills[Any]) -> Policies:
        write_library(folder, reached)
        count = int(reached.count)
        return Policies(
            [pick_skill(self.agent, reached, index) for index in range(count)],
            step=self._step_of(reached),
        )

    def _step_of(self, reached: Skills[Any]) -> int:
        assert reached.training is not None
        return steps_of_skills(self.trainer, reached.training)

    def draw(self, folder: Path, reached: Skills[Any]) -> None:
        # The picture is of episodes, which are played for the report.
        del folder, reached

    def report(
        self,
        folder: Path,
        reached: Skills[Any],
        policies: Policies,
        returns: Float[np.ndarray, "skills episodes"],
        *,
        key: PRNGKeyArray,
    ) -> None:
        count = len(policies.pairs)
        mean_returns = returns.mean(axis=1)
        trajectories = play_skills(
            self.agent,
            reached,
            self.env,
            num_episodes=NUM_SKILL_EPISODES,
            # The evaluations of the skills use the indices before this one.
            key=jr.fold_in(key, self.run.schedule.num_skills),
        )
        distances = write_trajectories(folder, self.run, trajectories, mean_returns)
        means = ", ".join(f"{mean:.1f}" for mean in mean_returns)
        print(f"skills learned: {count}")
        print(f"mean return of {returns.shape[1]} greedy episodes of each: {means}")
        if distances:
            pairs, nearest = (
                distances[name] for name in ("pairwise_hausdorff", "nearest_distance")
            )
            print(
                f"distance between the ends of {NUM_SKILL_EPISODES} episodes of each: "
                f"{pairs:.2f} over pairs, {nearest:.2f} to the nearest"
            )


def library_job(command: Disk) -> LibraryJob:
    """The training that a command asks for."""
    run = command.run
    return LibraryJob(
        run=run,
        agent=run.make_agent(),
        env=run.make_env(),
        trainer=run.make_trainer(),
        tensorboard=command.tensorboard,
    )
