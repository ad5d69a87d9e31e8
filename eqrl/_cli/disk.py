import dataclasses
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import equinox as eqx
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._agents.base import AnyAgent
from .._disk import Skills, learn_skills, pick_skill, play_skills
from .._disk.learn import check_replay
from .._disk.library import enlarge_past, find_task
from .._reporting.progress import SkillProgressBar
from .._reporting.tensorboard import TensorBoard
from .._run import Run, SkillSchedule, write_library, write_trajectories
from .._training.trainer import Trainer
from ..envs._base import AnyEnv
from .commands import Disk
from .evaluate import NUM_EPISODES
from .training import NUM_SKILL_EPISODES, Policies


@dataclasses.dataclass(frozen=True)
class LibraryJob:
    """Learning skills one after another."""

    run: Run[SkillSchedule]
    agent: AnyAgent
    env: AnyEnv
    trainer: Trainer
    tensorboard: bool

    def check(self) -> None:
        schedule = self.run.schedule
        self.trainer.check_num_steps(schedule.num_steps)
        if schedule.replay is not None:
            check_replay(schedule.replay, self.agent)
        enlarge_past(find_task(self.agent), self.env, num_episodes=1)
        eqx.filter_eval_shape(self.trainer.init, self.agent, self.env, key=jr.key(0))

    def train(self, folder: Path, *, key: PRNGKeyArray) -> Skills[Any]:
        schedule = self.run.schedule
        with ExitStack() as stack:
            callbacks: list[Any] = [
                stack.enter_context(
                    SkillProgressBar(schedule.num_skills, schedule.num_steps)
                )
            ]
            if self.tensorboard:
                writer = TensorBoard(folder / "tensorboard", 1)
                callbacks.append(stack.enter_context(writer))

            def callback(
                step: int, metrics: Mapping[str, np.ndarray | Array], skills: Skills
            ) -> None:
                for each in callbacks:
                    each(step, metrics, skills)

            return learn_skills(
                self.agent,
                self.env,
                self.trainer,
                num_skills=schedule.num_skills,
                num_steps=schedule.num_steps,
                key=key,
                num_collected_episodes=schedule.num_collected_episodes,
                replay=schedule.replay,
                log_every=schedule.log_every,
                callback=callback,
            )

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
            step=int(reached.metrics["step"][-1]),
        )

    def report(
        self,
        folder: Path,
        reached: Skills[Any],
        policies: Policies,
        mean_returns: Float[np.ndarray, " skills"],
        *,
        key: PRNGKeyArray,
    ) -> None:
        count = len(policies.pairs)
        trajectories = play_skills(
            self.agent,
            reached,
            self.env,
            num_episodes=NUM_SKILL_EPISODES,
            # The keys before this one are those of the skills' evaluations.
            key=jr.fold_in(key, self.run.schedule.num_skills),
        )
        distances = write_trajectories(folder, self.run, trajectories, mean_returns)
        means = ", ".join(f"{mean:.1f}" for mean in mean_returns)
        print(f"skills learned: {count}")
        print(f"mean return of {NUM_EPISODES} greedy episodes of each: {means}")
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
