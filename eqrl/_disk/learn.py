import dataclasses
from collections.abc import Iterator, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._agents.base import AnyAgent
from .._agents.wrappers.intrinsic import IntrinsicState
from .._interaction.actors import start
from .._interaction.evaluate import rollout
from .._interaction.fit import check_numbers
from .._pytree.arguments import checked
from .._pytree.fields import PositiveInt, check_integer
from .._pytree.tree import put_element, stack_size, take_element, tree_where
from .._rewards.incremental import IncrementalState
from .._rewards.scale import Replay
from .._training.host_loop import Callbacks, Reached, drive
from .._training.iteration import check_finite_agent
from .._training.replay import Item, ReplayBuffer, ReplayState
from .._training.rows import Position, append_row
from .._training.schedule import Counts
from .._training.train import runner_of_one
from .._training.trainer import AnyTrainerState, Trainer, TrainerState
from .._types.custom_types import Extras, Memory, PyTree, State
from .._types.data import Transition
from ..envs._base import AnyEnv
from .library import (
    Learner,
    Schedule,
    Skills,
    Task,
    World,
    copy_library,
    enlarge_library,
    enlarge_past,
    find_task,
    init_library,
    make_schedule,
    saturated,
    steps_of_skills,
    training_of,
)


@eqx.filter_jit
def collect(
    task: Task,
    env: AnyEnv,
    states: PyTree,
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

    The agent starts afresh. The reward keeps the past.

    **Arguments:**

    - `kept`: task, environment, trainer, the part of the replay to keep, the number of
        updates that the skill will have, and a key.
    - `state`, `counts`: at the end of the previous skill. They are donated.
    """
    # In a tuple, since Equinox donates all arguments but the first.
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


def truncate_last_row(
    replay: ReplayState[Transition[Extras]], counts: Counts
) -> ReplayState[Transition[Extras]]:
    """Marks the newest row as truncated unless it is terminated.

    The environments are about to be reset, so no window may cross this row.
    """
    data = replay.data
    written = counts.rows_kept + counts.rows_written
    row = (written - 1) % data.timestep.shape[1]
    truncated = data.truncated.at[:, row].set(~data.terminated[:, row])
    cut = ReplayState(data=eqx.tree_at(lambda data: data.truncated, data, truncated))
    # In a replay without rows the newest would be the last of the ring.
    return tree_where(written > 0, cut, replay)


def keep_replay(
    replay: ReplayState[Item], counts: Counts, kept: Replay, *, key: PRNGKeyArray
) -> tuple[ReplayState[Item], Counts]:
    """Keeps all rows, the newest half, a random half, or none."""
    rows = jax.tree.leaves(replay.data)[0].shape[1]
    filled = jnp.minimum(counts.rows_kept + counts.rows_written, rows)
    num_rows = {"keep": filled, "half": filled // 2, "clear": jnp.zeros_like(filled)}
    # Neither the capacity nor the batch size matters to what follows.
    buffer = ReplayBuffer(capacity=rows, batch_size=1)
    if kept == "random_half":
        return buffer.keep_random(replay, counts, num_rows=filled // 2, key=key)
    return buffer.keep_newest(replay, counts, num_rows=num_rows[kept])


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

    def learn(self, skills: Skills) -> Iterator[Reached]:
        """Learns the rest of the skill in training, and all further ones.

        `skills` is donated, as is each item when the next one is asked for.
        """
        check_finite_agent(training_of(skills).trainer_state.agent)
        for skill in range(int(skills.count), len(self.num_steps)):
            # Not by a split, whose keys would depend on the number of skills.
            key = jr.fold_in(self.key, skill)
            if int(training_of(skills).skill) < skill:
                skills = self._begin_skill(skills, skill, key=key)
                yield Reached(self._step(skills), None, skills)
            for reached in self._train_skill(skills, skill, key=key):
                skills = reached.solution
                yield reached
            learned = training_of(skills).trainer_state.agent.agent
            # An array as the index, so that skills after the first compile nothing.
            states = put_element(skills.states, learned, jnp.asarray(skill, int))
            count = jnp.asarray(skill + 1, int)
            skills = dataclasses.replace(skills, states=states, count=count)
        yield Reached(self._step(skills), None, skills)

    def _begin_skill(self, skills: Skills, skill: int, *, key: PRNGKeyArray) -> Skills:
        """Collects the past and starts the training of the next skill."""
        step = self._step(skills)
        world = self.schedule.active(skill=skill, step=step)
        skills = self._collect(skills, skill, world=world, key=jr.fold_in(key, 1))
        iterations = self.num_steps[skill] // self.trainer.steps_of_iteration
        kept = (
            self.task,
            self.schedule.envs[world],
            self.trainer,
            self.replay,
            jnp.asarray(iterations * self.trainer.updates_per_iteration, float),
            jr.fold_in(key, 0),
        )
        training = training_of(skills)
        state, counts = begin_skill(kept, training.trainer_state, training.counts)
        training = dataclasses.replace(
            training,
            trainer_state=state,
            counts=counts,
            skill=jnp.asarray(skill, int),
            earlier_steps=saturated(step),
        )
        return dataclasses.replace(skills, training=training)

    def _train_skill(
        self, skills: Skills, skill: int, *, key: PRNGKeyArray
    ) -> Iterator[Reached]:
        """Trains until an episode ends at or after the skill's number of steps."""
        last_step = self.num_steps[skill]
        earlier_steps = int(training_of(skills).earlier_steps)
        while True:
            done = self._step(skills) - earlier_steps
            world = self.schedule.active(skill=skill, step=earlier_steps + done)
            # The rest of the last episode is played in the environment it began in.
            if done < last_step and world != int(training_of(skills).world):
                collect_key = jr.fold_in(jr.fold_in(key, 1), world)
                skills = self._collect(skills, skill, world=world, key=collect_key)
            changes = self.schedule.changes_after(earlier_steps + done)
            # A row ends at each change, so that none averages over two environments.
            stops = [self._whole_iterations(step - earlier_steps) for step in changes]
            end = min([last_step, *stops])
            training = training_of(skills)
            state, counts = training.trainer_state, training.counts
            runner = runner_of_one(
                self.trainer,
                self.task.agent,
                self.schedule.envs[int(training.world)],
                state,
                counts,
                key=jr.fold_in(key, 2),
            )
            resumed = position = runner.start(state, counts, training.unfinished)
            # After an error training may resume from within an iteration.
            num_steps = self._whole_iterations(max(end - done, 0))
            for position in runner.run_rows(
                resumed, num_steps=num_steps, log_every=self.log_every
            ):
                reached = self._reached(skills, position)
                skills = reached.solution
                yield reached
            if end == last_step:
                break
        for last in runner.finish_episode(position, since=last_step):
            reached = self._reached(skills, last)
            skills = reached.solution
            yield reached

    def _collect(
        self, skills: Skills, skill: int, *, world: int, key: PRNGKeyArray
    ) -> Skills:
        """Adds the features of earlier skills in an environment to the past."""
        preset = self.task.reward.preset
        training = training_of(skills)
        reward_state = training.trainer_state.agent.reward
        earlier = range(skill if preset.include_newest else skill - 1)
        if preset.recollect:
            reward_state = self.task.reward.without_past(reward_state)
        else:
            # The past has those before the newest, and within a skill that one too.
            earlier = earlier[-1:] if int(training.skill) < skill else earlier[:0]
        lengths = []
        for index in earlier:
            reward_state, length = collect(
                self.task,
                self.schedule.envs[world],
                skills.states,
                reward_state,
                index=jnp.asarray(index, int),
                num_episodes=self.num_collected_episodes,
                key=jr.fold_in(key, index),
            )
            lengths.append(length)
        # No length is read before all rollouts are dispatched: that would wait for it.
        collected_steps = int(training.collected_steps) + sum(map(int, lengths))
        training = dataclasses.replace(
            eqx.tree_at(lambda x: x.trainer_state.agent.reward, training, reward_state),
            collected_steps=saturated(collected_steps),
            world=jnp.asarray(world, int),
        )
        return dataclasses.replace(skills, training=training)

    def _reached(self, skills: Skills, position: Position) -> Reached:
        """The skills after a piece of training."""
        training = dataclasses.replace(
            training_of(skills),
            trainer_state=position.state,
            counts=position.counts,
            unfinished=position.unfinished,
        )
        step = steps_of_skills(self.trainer, training)
        row, metrics = position.row, skills.metrics
        if row is not None:
            row = row | {
                "skill": np.asarray(int(training.skill)),
                "collected_steps": np.asarray(int(training.collected_steps)),
            }
            metrics = append_row(metrics, step, row)
        skills = dataclasses.replace(skills, training=training, metrics=metrics)
        return Reached(step, row, skills, position.failed)

    def _step(self, skills: Skills) -> int:
        return steps_of_skills(self.trainer, training_of(skills))

    def _whole_iterations(self, num_steps: int) -> int:
        size = self.trainer.steps_of_iteration
        return -(-num_steps // size) * size


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

    A skill takes `num_steps`, and then further iterations until one ends an episode of
    the first environment. The episodes of the other environments are cut short there,
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
    - `num_collected_episodes`: number of episodes in each rollout of a skill.
    - `max_skills`: capacity of the library; `None` takes `num_skills`. Later calls with
        `initial` compile nothing up to this number of skills.
    - `replay`: the part of the previous skill's replay that a skill inherits:
        `"keep"`, all of it; `"half"`, the newest half of each environment, which with
        skills of equal length is hardly more than the last skill; `"random_half"`,
        half of each environment, drawn at random from all earlier skills, for agents
        that learn from single transitions; `"clear"`, nothing. `None` takes the
        default of the mode of `Incremental`.
    - `initial`: skills to add to, or those of an interrupted call, even if it stopped
        within a skill. They stay usable.
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
    `eqrl.NonFiniteError` if training meets a value that is not finite, and
    `eqrl.TrainingInterrupted` after Ctrl-C, SIGTERM or SIGHUP. The `solution` of the
    last two holds the skills so far, and training can resume from it.
    """
    task = find_task(agent)
    steps = _steps_of_skills(num_steps, num_skills, trainer)
    replay = task.reward.preset.replay if replay is None else replay
    check_replay(replay, agent)
    if trainer.make_replay is not ReplayBuffer:
        raise ValueError(
            "`learn_skills` passes a part of a replay to the next skill; it needs a "
            "trainer with the default `make_replay=eqrl.ReplayBuffer`."
        )
    capacity = num_skills if max_skills is None else max_skills
    check_integer("max_skills", capacity, least=1)
    if capacity < num_skills:
        raise ValueError(
            f"`max_skills={max_skills}` leaves no room for `num_skills={num_skills}`."
        )
    schedule = make_schedule(env, num_skills)
    first = schedule.envs[0]
    check_numbers(agent, first.spec)
    if initial is None:
        num_episodes = capacity * num_collected_episodes
        task = enlarge_past(task, first, num_episodes=num_episodes)
        init_key = jr.fold_in(jr.fold_in(key, 0), 0)
        skills = init_library(
            task.agent, first, trainer, capacity=capacity, key=init_key
        )
    else:
        task, skills = copy_library(task, first, trainer, initial)
        capacity = max(capacity, stack_size(skills.states))
        num_episodes = capacity * num_collected_episodes
        task = enlarge_past(task, first, num_episodes=num_episodes)
        skills = enlarge_library(skills, task, capacity=capacity)
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
    return drive(loop.learn(skills), callback=callback)


def check_replay(replay: str, agent: AnyAgent) -> None:
    """Checks that an agent can learn from the part of the replay that is kept."""
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
