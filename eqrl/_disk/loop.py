import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from .._agents import Intrinsic
from .._pytree.stack import put_element
from .._rewards import Incremental
from .._rewards.incremental.mode import Replay
from .._training.jit import jit_run
from .._training.replay import Counts
from .._training.rows import (
    Chunk,
    append_row,
    finish_episode,
    has_failed,
    run_chunks,
    steps_taken,
)
from .._training.solution import NonFiniteError, TrainingInterrupted
from .._training.trainer import AnyTrainerState, Trainer
from .._types.custom_types import Metrics
from ..envs import AbstractEnv
from .checks import incremental_of
from .handover import begin_skill, collect
from .library import Skills, SkillTraining
from .world import Changes


SkillCallback = Callable[[int, dict[str, Any], Skills[Any]], None]


def key_of_skill(key: PRNGKeyArray, skill: int) -> PRNGKeyArray:
    return jr.fold_in(key, skill)


@dataclasses.dataclass(frozen=True)
class Course:
    """What stays the same from skill to skill."""

    agent: Intrinsic[Any, Any, Any, Any]
    changes: Changes
    trainer: Trainer
    num_collected_episodes: int
    replay: Replay
    log_every: int
    callback: SkillCallback | None
    key: PRNGKeyArray

    @property
    def reward(self) -> Incremental:
        return incremental_of(self.agent)

    def next_skill(
        self,
        skills: Skills[Any],
        steps: Sequence[int],
        interrupted: Callable[[], bool],
    ) -> Skills[Any]:
        """Learns one more skill, or the rest of one."""
        skill = int(skills.count)
        assert skills.training is not None
        if int(skills.training.skill) < skill:
            skills = self._begun(skills, skill, steps[skill])
            if interrupted():
                raise TrainingInterrupted(skills)
        while True:
            skills = self._refreshed(skills, skill, steps[skill])
            training = skills.training
            assert training is not None
            done = steps_taken(self.trainer, training.counts)
            earlier_steps = int(training.earlier_steps)
            change = self.changes.next_step(earlier_steps + done)
            end = steps[skill]
            if change is not None:
                end = min(end, self._whole_iterations(change - earlier_steps))
            skills = self._trained(
                skills,
                skill,
                # What was not finite may have ended training within an iteration.
                num_steps=self._whole_iterations(max(end - done, 0)),
                since=steps[skill] if end == steps[skill] else None,
                interrupted=interrupted,
            )
            if end == steps[skill]:
                return _with_finished(skills)

    def _whole_iterations(self, num_steps: int) -> int:
        size = self.trainer.steps_of_iteration
        return -(-num_steps // size) * size

    def _env(self, num_changes: int) -> AbstractEnv[Any]:
        return self.changes.envs[num_changes]

    def _shown_before(self, skill: int) -> range:
        """Which skills show what they do, of those that are learnt before this one."""
        return range(skill if self.reward.preset.include_newest else skill - 1)

    def _begun(self, skills: Skills[Any], skill: int, num_steps: int) -> Skills[Any]:
        training = skills.training
        assert training is not None
        steps_before = int(training.earlier_steps) + steps_taken(
            self.trainer, training.counts
        )
        change = self.changes.count(skill=skill, step=steps_before)
        shown = self._shown_before(skill)
        skills = self._collected(
            skills,
            shown if self.reward.preset.recollect else shown[-1:],
            change=change,
            key=jr.fold_in(key_of_skill(self.key, skill), 1),
        )
        training = skills.training
        assert training is not None
        num_updates = (
            num_steps
            // self.trainer.steps_of_iteration
            * self.trainer.updates_per_iteration
        )
        kept = (
            self.trainer,
            self.agent,
            self._env(change),
            self.replay,
            jnp.asarray(num_updates, float),
            jr.fold_in(key_of_skill(self.key, skill), 0),
        )
        state, counts = begin_skill(kept, training.trainer_state, training.counts)
        training = SkillTraining(
            trainer_state=state,
            counts=counts,
            skill=jnp.asarray(skill, int),
            earlier_steps=jnp.asarray(steps_before, int),
            collected_steps=training.collected_steps,
            world=jnp.asarray(change, int),
        )
        return dataclasses.replace(skills, training=training)

    def _refreshed(
        self, skills: Skills[Any], skill: int, num_steps: int
    ) -> Skills[Any]:
        """With the past as it would be in the world of the moment."""
        training = skills.training
        assert training is not None
        done = steps_taken(self.trainer, training.counts)
        step = int(training.earlier_steps) + done
        change = self.changes.count(skill=skill, step=step)
        # The rest of a last episode is played in the world in which it began.
        if change == int(training.world) or done >= num_steps:
            return skills
        shown = self._shown_before(skill)
        key = jr.fold_in(key_of_skill(self.key, skill), 1)
        return self._collected(
            skills,
            shown if self.reward.preset.recollect else shown[:0],
            change=change,
            key=jr.fold_in(key, change),
        )

    def _collected(
        self,
        skills: Skills[Any],
        shown: range,
        *,
        change: int,
        key: PRNGKeyArray,
    ) -> Skills[Any]:
        training = skills.training
        assert training is not None
        reward_of = lambda training: training.trainer_state.agent.reward
        reward_state = reward_of(training)
        collected_steps = training.collected_steps
        if self.reward.preset.recollect:
            reward_state = self.reward.without_past(reward_state)
        for index in shown:
            reward_state, num_steps = collect(
                self.agent,
                self._env(change),
                skills.states,
                reward_state,
                index=jnp.asarray(index, int),
                num_episodes=self.num_collected_episodes,
                key=jr.fold_in(key, index),
            )
            collected_steps = collected_steps + num_steps
        training = eqx.tree_at(
            lambda training: (
                reward_of(training),
                training.collected_steps,
                training.world,
            ),
            training,
            (reward_state, collected_steps, jnp.asarray(change, int)),
        )
        return dataclasses.replace(skills, training=training)

    def _trained(
        self,
        skills: Skills[Any],
        skill: int,
        *,
        num_steps: int,
        since: int | None,
        interrupted: Callable[[], bool],
    ) -> Skills[Any]:
        training = skills.training
        assert training is not None
        env = self._env(int(training.world))
        run_key = jr.fold_in(key_of_skill(self.key, skill), 2)

        def run(
            state: AnyTrainerState, counts: Counts, num_steps: int
        ) -> tuple[AnyTrainerState, Counts, Metrics]:
            return jit_run(
                self.trainer,
                self.agent,
                env,
                state,
                counts,
                num_steps=num_steps,
                key=run_key,
            )

        chunks = run_chunks(
            run,
            self.trainer,
            training.trainer_state,
            training.counts,
            num_steps=num_steps,
            log_every=self.log_every,
        )
        for chunk in chunks:
            skills = self._logged(skills, skill, chunk)
            if interrupted():
                raise TrainingInterrupted(skills)
        if since is None:
            return skills
        training = skills.training
        assert training is not None
        last = finish_episode(
            run, self.trainer, training.trainer_state, training.counts, since=since
        )
        for chunk in last:
            skills = self._logged(skills, skill, chunk)
        if interrupted():
            raise TrainingInterrupted(skills)
        return skills

    def _logged(self, skills: Skills[Any], skill: int, chunk: Chunk) -> Skills[Any]:
        """The skills after one more row of metrics."""
        state, counts, row = chunk
        training = skills.training
        assert training is not None
        row = row | {
            "skill": np.asarray(skill),
            "collected_steps": np.asarray(training.collected_steps),
        }
        step = int(training.earlier_steps) + steps_taken(self.trainer, counts)
        skills = Skills(
            states=skills.states,
            count=skills.count,
            training=eqx.tree_at(
                lambda training: (training.trainer_state, training.counts),
                training,
                (state, counts),
            ),
            metrics=append_row(skills.metrics, step, row),
        )
        if has_failed(row):
            raise NonFiniteError(step, skills)
        if self.callback is not None:
            self.callback(step, row, skills)
        return skills


def _with_finished(skills: Skills[Any]) -> Skills[Any]:
    assert skills.training is not None
    state = skills.training.trainer_state.agent.agent
    return dataclasses.replace(
        skills,
        states=put_element(skills.states, state, skills.count),
        count=skills.count + 1,
    )
