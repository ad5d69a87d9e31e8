import dataclasses
from collections.abc import Generator, Iterator, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._agents.base import AnyAgent
from .._agents.wrappers.intrinsic import IntrinsicState
from .._interaction.actors import start
from .._interaction.fit import check_numbers
from .._interaction.rollout import rollout
from .._pytree.arguments import checked
from .._pytree.fields import PositiveInt, check_integer
from .._pytree.tree import stack_size, take_element, tree_where
from .._rewards.incremental.reward import IncrementalState
from .._rewards.incremental.scale import Replay
from .._training.host_loop import Callbacks, Reached, drive
from .._training.iteration import check_finite_agent
from .._training.replay import ReplayBuffer, ReplayState
from .._training.rows import (
    Position,
    Row,
    Runner,
    Solution,
    append_row,
    steps_taken,
)
from .._training.schedule import Counts
from .._training.train import runner_of_one
from .._training.trainer import AnyTrainerState, Trainer, TrainerState
from .._types.custom_types import Extras, Memory, State
from ..envs._base import AnyEnv
from .library import (
    Learner,
    Progress,
    Schedule,
    Skills,
    Task,
    World,
    enlarge_library,
    enlarge_past,
    find_task,
    init_library,
    make_schedule,
    resume,
)


@eqx.filter_jit
def collect(
    task: Task,
    env: AnyEnv,
    states: Any,
    reward_state: IncrementalState,
    *,
    index: Int[Array, ""],
    num_episodes: int,
    key: PRNGKeyArray,
) -> tuple[IncrementalState, Int[Array, ""]]:
    """Rolls out one skill of a stack and adds its features to the past.

    **Returns:**

    The state of the reward, and the number of environment steps.
    """
    transitions, mask = rollout(
        task.agent.agent,
        take_element(states, index),
        env,
        num_episodes=num_episodes,
        key=key,
    )
    return task.reward.with_past(reward_state, transitions, mask), jnp.sum(mask)


@eqx.filter_jit(donate="all-except-first")
def begin_skill(
    kept: tuple[Task, AnyEnv, Trainer, Replay, Float[Array, ""], PRNGKeyArray],
    state: AnyTrainerState,
    counts: Counts,
) -> tuple[AnyTrainerState, Counts]:
    """The training state at the beginning of the next skill.

    The agent starts afresh. The reward keeps the past, the replay what it should.

    **Arguments:**

    - `kept`: task, environment, trainer, what to keep of the replay, the number of
        updates that the skill will have, and a key.
    - `state`, `counts`: at the end of the previous skill. They are donated.
    """
    task, env, trainer, replay, num_updates, key = kept
    agent_key, start_key, replay_key = jr.split(key, 3)
    fresh = task.agent.init(env.spec, key=agent_key)
    agent_state = IntrinsicState(
        agent=fresh.agent,
        reward=task.reward.begin_skill(state.agent.reward, num_updates=num_updates),
    )
    data = truncate_last_row(state.replay, counts)
    data, counts = keep_replay(data, counts, replay, key=replay_key)
    actors = start(
        task.agent, agent_state, env, num_envs=trainer.num_envs, key=start_key
    )
    state = TrainerState(
        agent=agent_state, actors=actors, replay=data, failed=jnp.array(False)
    )
    return state, counts


def truncate_last_row(replay: ReplayState[Any], counts: Counts) -> ReplayState[Any]:
    """Marks the newest row as truncated unless it is terminated.

    The environments are about to be reset, so no window may reach across.
    """
    data = replay.data
    written = counts.rows_kept + counts.rows_written
    row = (written - 1) % data.timestep.shape[1]
    truncated = data.truncated.at[:, row].set(~data.terminated[:, row])
    cut = ReplayState(data=eqx.tree_at(lambda data: data.truncated, data, truncated))
    return tree_where(written > 0, cut, replay)


def keep_replay(
    replay: ReplayState[Any], counts: Counts, kept: Replay, *, key: PRNGKeyArray
) -> tuple[ReplayState[Any], Counts]:
    """Keeps all rows, half of them, the newest or any, or none."""
    rows = jax.tree.leaves(replay.data)[0].shape[1]
    filled = jnp.minimum(counts.rows_kept + counts.rows_written, rows)
    num_rows = {"keep": filled, "half": filled // 2, "clear": jnp.zeros_like(filled)}
    buffer = ReplayBuffer(capacity=rows, batch_size=1)
    if kept == "random_half":
        return buffer.keep_random(replay, counts, num_rows=filled // 2, key=key)
    return buffer.keep_newest(replay, counts, num_rows=num_rows[kept])


def key_of_skill(key: PRNGKeyArray, skill: int) -> PRNGKeyArray:
    return jr.fold_in(key, skill)


@dataclasses.dataclass(frozen=True)
class SkillLoop:
    """Everything that `learn_skills` holds fixed across skills.

    - `num_steps`: of each skill.
    - The others are the arguments of `learn_skills`.
    """

    task: Task
    schedule: Schedule
    trainer: Trainer
    num_steps: Sequence[int]
    num_collected_episodes: int
    replay: Replay
    log_every: int
    key: PRNGKeyArray

    def learn(self, progress: Progress) -> Iterator[Reached]:
        """Learns the rest of a skill in training, and all further ones."""
        check_finite_agent(progress.solution.state)
        for skill in range(progress.count, len(self.num_steps)):
            if progress.skill < skill:
                progress = self._begin_skill(progress, skill)
                yield self._reached(progress)
            progress = yield from self._train_skill(progress)
            progress = progress.add_learned()
        yield self._reached(progress)

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

    def _train_skill(self, progress: Progress) -> Generator[Reached, None, Progress]:
        """Trains until an episode ends at or after the skill's number of steps."""
        last_step = self.num_steps[progress.skill]
        end = -1
        while end != last_step:
            progress = self._recollect_if_changed(progress)
            end = self._next_stop(progress)
            missing = max(end - self._steps_taken(progress), 0)
            runner, start = self._start(progress)
            positions = runner.run_rows(
                start,
                # After an error training may resume from within an iteration.
                num_steps=self._whole_iterations(missing),
                log_every=self.log_every,
            )
            for position in positions:
                progress = self._at(progress, position)
                yield self._reached(progress, position)
        runner, start = self._start(progress)
        for position in runner.finish_episode(start, since=last_step):
            progress = self._at(progress, position)
            yield self._reached(progress, position)
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

    def _start(self, progress: Progress) -> tuple[Runner, Position]:
        """Makes the runner of the skill in its environment, and its starting point."""
        solution = progress.solution
        state, counts = solution.trainer_state, solution.counts
        runner = runner_of_one(
            self.trainer,
            self.task.agent,
            self.schedule.envs[progress.world],
            state,
            counts,
            key=jr.fold_in(key_of_skill(self.key, progress.skill), 2),
        )
        return runner, runner.start(state, counts, solution.unfinished)

    def _at(self, progress: Progress, position: Position) -> Progress:
        """The progress after a piece of training."""
        step = progress.earlier_steps + steps_taken(self.trainer, position.counts)
        metrics = progress.solution.metrics
        if position.row is not None:
            metrics = append_row(metrics, step, self._row(progress, position.row))
        solution = Solution(
            trainer_state=position.state,
            counts=position.counts,
            metrics=metrics,
            unfinished=position.unfinished,
        )
        return dataclasses.replace(progress, solution=solution)

    def _row(self, progress: Progress, row: Row) -> Row:
        return row | {
            "skill": np.asarray(progress.skill),
            "collected_steps": np.asarray(progress.collected_steps),
        }

    def _reached(self, progress: Progress, position: Position | None = None) -> Reached:
        step = progress.earlier_steps + self._steps_taken(progress)
        if position is None or position.row is None:
            return Reached(step, None, progress.to_skills())
        row = self._row(progress, position.row)
        return Reached(step, row, progress.to_skills(), position.failed)

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


@checked
def learn_skills(
    agent: Learner[State, Memory, Extras],
    env: World,
    trainer: Trainer,
    *,
    num_skills: int,
    num_steps: int | Sequence[int],
    key: PRNGKeyArray,
    num_collected_episodes: PositiveInt = 100,
    max_skills: int | None = None,
    replay: Replay | None = None,
    initial: Skills[State] | None = None,
    log_every: PositiveInt = 1_000,
    callback: Callbacks[Skills[State]] | None = None,
) -> Skills[State]:
    """Learns skills one after another, as DISk does.

    Each skill is an agent of its own that starts afresh. `eqrl.Incremental`, which
    cites the paper, rewards it for behaving consistently and unlike all earlier skills.
    To that end all learned skills are rolled out before it begins, greedily and in the
    current environment. Once it is learned, a skill never changes.

    A skill ends with the first iteration in which an episode of the first environment
    ends after `num_steps`. The episodes of the other environments are cut short there,
    and their last transitions are marked as truncated. The next skill begins with
    `trainer.warmup_steps` random steps.

    All counts are environment steps, summed over the environments.

    **Arguments:**

    - `agent`: an `eqrl.Intrinsic(agent, eqrl.Incremental())` around any agent.
    - `env`: the environment. For one that changes: a function from the index of a
        skill, from 0, to its environment, called once for each skill before training
        begins; or a dictionary of environments by the step at which each becomes
        active, 0 among them. These steps count the training of all skills. A change
        takes effect at the first iteration at or after its step, in mid-episode, and
        all earlier skills are rolled out again immediately; only the rest of an episode
        after `num_steps` is played in the old environment. All environments must have
        the same `spec` and states of the same shapes. If they differ in arrays only,
        nothing is compiled again.
    - `trainer`: how each skill is trained.
    - `num_skills`: number of skills in the end, those of `initial` included.
    - `num_steps`: steps of each skill, random ones included: one number, or one for
        each skill; whole numbers of iterations.
    - `key`: of the whole training. To resume exactly as if there had been one call,
        pass the same key again.
    - `num_collected_episodes`: number of episodes in which each skill is rolled out.
    - `max_skills`: capacity of the library; `None` takes `num_skills`. Later calls with
        `initial` compile nothing up to this number of skills.
    - `replay`: what a skill inherits of the replay of the previous one: `"keep"`, all
        of it; `"half"`, the newest half of each environment, so with skills of equal
        length hardly anything of any skill but the last; `"random_half"`, half of
        each environment, drawn at random, so some of all earlier skills, for agents of
        single transitions only; `"clear"`, nothing. `None` takes the default of the
        mode of `Incremental`.
    - `initial`: skills to add to, or of an interrupted call, also within a skill. They
        stay usable.
    - `log_every`: steps in a row of the metrics, rounded up to whole iterations. The
        rest of an episode after `num_steps` is a row of its own.
    - `callback`: called as `callback(step, metrics, skills)` after each row, with the
        steps of all skills together; or several of them. Training ends there if one
        returns true, and can resume from `skills`. Copy what you keep
        (`eqrl.tree_copy`) or save it (`eqrl.save_skills`): it is donated to the next
        row. A skill that has just ended is not yet among them, so save the returned
        skills as well.

    **Returns:**

    The `Skills`.

    Raises a `ValueError` if the arguments do not fit each other, an
    `eqrl.NonFiniteError` if what the environment gives is not finite, and
    `eqrl.TrainingInterrupted` after Ctrl-C, SIGTERM or SIGHUP. The `solution` of the
    last two are the skills, from which to resume.
    """
    task = find_task(agent)
    steps = _steps_of_skills(num_steps, num_skills, trainer)
    replay = task.reward.preset.replay if replay is None else replay
    check_replay(replay, agent)
    if trainer.make_replay is not ReplayBuffer:
        raise ValueError(
            "`learn_skills` hands a part of a replay on to the next skill; it needs "
            "a trainer with the default `make_replay=eqrl.ReplayBuffer`."
        )
    capacity = _check_max_skills(max_skills, num_skills)
    schedule = make_schedule(env, num_skills)
    first = schedule.envs[0]
    check_numbers(agent, first.spec)
    if initial is None:
        num_episodes = capacity * num_collected_episodes
        task = enlarge_past(task, first, num_episodes=num_episodes)
        init_key = jr.fold_in(key_of_skill(key, 0), 0)
        progress = init_library(
            task.agent, first, trainer, capacity=capacity, key=init_key
        )
    else:
        task, progress = resume(task, first, trainer, initial)
        capacity = max(capacity, stack_size(progress.states))
        num_episodes = capacity * num_collected_episodes
        task = enlarge_past(task, first, num_episodes=num_episodes)
        progress = enlarge_library(progress, task, capacity=capacity)
    loop = SkillLoop(
        task=task,
        schedule=schedule,
        trainer=trainer,
        num_steps=steps,
        num_collected_episodes=num_collected_episodes,
        replay=replay,
        log_every=log_every,
        key=key,
    )
    return drive(loop.learn(progress), callback=callback)


def check_replay(replay: str, agent: AnyAgent) -> None:
    """Checks that an agent can learn from what is kept."""
    if agent.sequence_length is None:
        raise ValueError(
            "The agent learns on-policy, from each step once; skills are learned one "
            "after another from a replay of what earlier ones did. Use an agent with a "
            "replay, such as `eqrl.SAC`."
        )
    if replay == "random_half" and agent.sequence_length != 1:
        raise ValueError(
            "`replay='random_half'` leaves no consecutive steps, but `agent.sequence_"
            f"length={agent.sequence_length}`; take `'half'`, the newest."
        )


def _steps_of_skills(
    num_steps: int | Sequence[int], num_skills: int, trainer: Trainer
) -> list[int]:
    """The number of steps of each skill."""
    check_integer("num_skills", num_skills, least=1)
    if isinstance(num_steps, np.ndarray) and num_steps.ndim == 1:
        num_steps = num_steps.tolist()
    steps = (
        list(num_steps) if isinstance(num_steps, Sequence) else [num_steps] * num_skills
    )
    if len(steps) != num_skills:
        raise ValueError(
            f"`num_steps` has {len(steps)} numbers, but `num_skills={num_skills}`; "
            "give one for each skill, those already learned included, or one for all."
        )
    zero = jnp.zeros((), int)
    for each in steps:
        trainer.check_num_steps(each)
        check_integer("num_steps", each, least=1)
        # All rows of the replay may have been kept.
        kept = jnp.asarray(trainer.schedule.rows, int)
        counts = Counts(updates=zero, rows_written=zero, rows_kept=kept)
        trainer.schedule.check_counters("num_steps", each, counts)
    return steps


def _check_max_skills(max_skills: int | None, num_skills: int) -> int:
    """The capacity of the library; a `ValueError` unless all skills fit."""
    if max_skills is None:
        return num_skills
    check_integer("max_skills", max_skills, least=1)
    if max_skills < num_skills:
        raise ValueError(
            f"`max_skills={max_skills}` leaves no room for `num_skills={num_skills}`."
        )
    return max_skills
