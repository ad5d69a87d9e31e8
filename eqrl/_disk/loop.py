import dataclasses
from collections.abc import Callable, Sequence
from signal import Signals
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from .._rewards.incremental.mode import Replay
from .._training.callback import asks_to_stop
from .._training.counts import Counts
from .._training.failure import FailureReport, check_finite_agent
from .._training.jit import jit_run_reported
from .._training.rows import (
    Chunk,
    RunChunk,
    append_row,
    finish_episode,
    run_chunks,
    steps_taken,
)
from .._training.solution import NonFiniteError, Solution, TrainingInterrupted
from .._training.trainer import AnyTrainerState, Trainer
from .._types.custom_types import Metrics, State
from .handover import begin_skill, collect
from .library import Progress, Skills, Task
from .world import Schedule


SkillCallback = Callable[[int, dict[str, Any], Skills[State]], object]


class _Stop(Exception):
    """A callback asked to stop here."""

    def __init__(self, progress: Progress) -> None:
        super().__init__()
        self.progress = progress


def key_of_skill(key: PRNGKeyArray, skill: int) -> PRNGKeyArray:
    return jr.fold_in(key, skill)


@dataclasses.dataclass(frozen=True)
class SkillLoop:
    """Everything that `learn_skills` holds fixed across skills.

    - `num_steps`: of each skill.
    - `interrupted`: whether to stop at the end of a row.
    - The others are the arguments of `learn_skills`.
    """

    task: Task
    schedule: Schedule
    trainer: Trainer
    num_steps: Sequence[int]
    num_collected_episodes: int
    replay: Replay
    log_every: int
    callback: SkillCallback | None
    key: PRNGKeyArray
    interrupted: Callable[[], Signals | None]

    def learn(self, progress: Progress) -> Progress:
        """Learns the rest of a skill in training, and all further ones."""
        check_finite_agent(progress.solution.state)
        try:
            return self._learn(progress)
        except _Stop as stop:
            return stop.progress

    def _learn(self, progress: Progress) -> Progress:
        for skill in range(progress.count, len(self.num_steps)):
            if progress.skill < skill:
                progress = self._begin_skill(progress, skill)
                self._check_interrupted(progress)
            progress = self._train_skill(progress).add_learned()
        return progress

    def _begin_skill(self, progress: Progress, skill: int) -> Progress:
        """Collects the past and starts the training of the next skill."""
        step = progress.earlier_steps + self._steps_taken(progress)
        world = self.schedule.active(skill=skill, step=step)
        key = key_of_skill(self.key, skill)
        earlier = self._collected_skills(skill)
        progress = self._collect(
            progress,
            earlier if self.task.reward.preset.recollect else earlier[-1:],
            world=world,
            key=jr.fold_in(key, 1),
        )
        iterations = self.num_steps[skill] // self.trainer.steps_of_iteration
        kept = (
            self.task,
            self.schedule.envs[world],
            self.trainer,
            self.replay,
            jnp.asarray(iterations * self.trainer.updates_per_iteration, float),
            jr.fold_in(key, 0),
        )
        solution = progress.solution
        state, counts = begin_skill(kept, solution.trainer_state, solution.counts)
        solution = Solution(
            trainer_state=state, counts=counts, metrics=solution.metrics
        )
        return dataclasses.replace(
            progress, solution=solution, skill=skill, earlier_steps=step
        )

    def _train_skill(self, progress: Progress) -> Progress:
        """Trains until an episode ends at or after the skill's number of steps."""
        last_step = self.num_steps[progress.skill]
        end = -1
        while end != last_step:
            progress = self._recollect_if_changed(progress)
            end = self._next_stop(progress)
            missing = max(end - self._steps_taken(progress), 0)
            chunks = run_chunks(
                self._run_chunk(progress),
                self.trainer,
                progress.solution.trainer_state,
                progress.solution.counts,
                # After an error training may resume from within an iteration.
                num_steps=self._whole_iterations(missing),
                log_every=self.log_every,
            )
            for chunk in chunks:
                progress = self._add_row(progress, chunk)
                self._check_interrupted(progress)
        rest = finish_episode(
            self._run_chunk(progress),
            self.trainer,
            progress.solution.trainer_state,
            progress.solution.counts,
            since=last_step,
        )
        for chunk in rest:
            progress = self._add_row(progress, chunk)
        self._check_interrupted(progress)
        return progress

    def _next_stop(self, progress: Progress) -> int:
        """The step of the skill at which its environment changes, or its last one."""
        last_step = self.num_steps[progress.skill]
        step = progress.earlier_steps + self._steps_taken(progress)
        change = self.schedule.next_change(step)
        if change is None:
            return last_step
        return min(last_step, self._whole_iterations(change - progress.earlier_steps))

    def _whole_iterations(self, num_steps: int) -> int:
        size = self.trainer.steps_of_iteration
        return -(-num_steps // size) * size

    def _steps_taken(self, progress: Progress) -> int:
        return steps_taken(self.trainer, progress.solution.counts)

    def _run_chunk(self, progress: Progress) -> RunChunk:
        env = self.schedule.envs[progress.world]
        key = jr.fold_in(key_of_skill(self.key, progress.skill), 2)

        def run(
            state: AnyTrainerState, counts: Counts, num_steps: int
        ) -> tuple[AnyTrainerState, Counts, Metrics, FailureReport]:
            return jit_run_reported(
                self.trainer,
                self.task.agent,
                env,
                state,
                counts,
                num_steps=num_steps,
                key=key,
            )

        return run

    def _add_row(self, progress: Progress, chunk: Chunk) -> Progress:
        """Logs and reports a chunk of training."""
        state, counts, row, what = chunk
        row = row | {
            "skill": np.asarray(progress.skill),
            "collected_steps": np.asarray(progress.collected_steps),
        }
        step = progress.earlier_steps + steps_taken(self.trainer, counts)
        metrics = append_row(progress.solution.metrics, step, row)
        solution = Solution(trainer_state=state, counts=counts, metrics=metrics)
        progress = dataclasses.replace(progress, solution=solution)
        if what is not None:
            raise NonFiniteError(step, progress.to_skills(), what)
        if self.callback is None:
            return progress
        answer = self.callback(step, row, progress.to_skills())
        if asks_to_stop(answer):
            self._check_interrupted(progress)
            raise _Stop(progress)
        return progress

    def _check_interrupted(self, progress: Progress) -> None:
        if (signal := self.interrupted()) is not None:
            raise TrainingInterrupted(progress.to_skills(), signal)

    def _recollect_if_changed(self, progress: Progress) -> Progress:
        """Rolls out earlier skills again if the environment has changed."""
        skill = progress.skill
        done = self._steps_taken(progress)
        world = self.schedule.active(skill=skill, step=progress.earlier_steps + done)
        # The rest of the last episode is played in the environment it began in.
        if world == progress.world or done >= self.num_steps[skill]:
            return progress
        earlier = self._collected_skills(skill)
        key = jr.fold_in(key_of_skill(self.key, skill), 1)
        return self._collect(
            progress,
            earlier if self.task.reward.preset.recollect else earlier[:0],
            world=world,
            key=jr.fold_in(key, world),
        )

    def _collected_skills(self, skill: int) -> range:
        """The earlier skills whose features are the past of this one."""
        return range(skill if self.task.reward.preset.include_newest else skill - 1)

    def _collect(
        self, progress: Progress, skills: range, *, world: int, key: PRNGKeyArray
    ) -> Progress:
        """Rolls out skills in one environment and adds their features to the past."""
        state = progress.solution.trainer_state
        reward_state = state.agent.reward
        if self.task.reward.preset.recollect:
            reward_state = self.task.reward.without_past(reward_state)
        lengths = []
        for index in skills:
            reward_state, length = collect(
                self.task,
                self.schedule.envs[world],
                progress.states,
                reward_state,
                index=jnp.asarray(index, int),
                num_episodes=self.num_collected_episodes,
                key=jr.fold_in(key, index),
            )
            lengths.append(length)
        state = eqx.tree_at(lambda state: state.agent.reward, state, reward_state)
        return dataclasses.replace(
            progress.replace_state(state),
            collected_steps=progress.collected_steps + sum(map(int, lengths)),
            world=world,
        )
