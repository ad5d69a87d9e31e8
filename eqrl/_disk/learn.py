"""Learning of skills one after another, in environments that may change."""

import bisect
import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._agents.base import AnyAgent
from .._agents.wrappers.intrinsic import AnyIntrinsic, IntrinsicState
from .._interaction.actors import start
from .._interaction.evaluate import rollout
from .._interaction.fit import check_numbers
from .._pytree.fields import PositiveInt, check_integer, checked, reusable_key
from .._pytree.tree import (
    check_same_shapes,
    enlarge_stack,
    put_element,
    stack_size,
    take_element,
    to_donate,
)
from .._rewards.feature_set import enlarge
from .._rewards.incremental import IncrementalState
from .._rewards.scale import Replay
from .._training.evaluations import Evaluations
from .._training.host_loop import Callbacks, Reached, drive
from .._training.iteration import check_finite_agent
from .._training.replay import (
    Item,
    ReplayBuffer,
    ReplayState,
    ring_axes,
    truncate_last_row,
)
from .._training.rows import Position, append_row, steps_taken
from .._training.schedule import Counts, first_counts, rows_so_far
from .._training.train import runner_of_one
from .._training.trainer import AnyTrainerState, Trainer, TrainerState
from .._types.custom_types import Extras, Memory, PyTree, State
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from ..envs._check import prepare
from ..envs._host import SimulatorError, checked_result, release
from .library import (
    Learner,
    Skills,
    SkillTraining,
    World,
    find_learner,
    first_env,
    init_library,
    steps_of_skills,
    with_past_capacity,
)


@dataclasses.dataclass(frozen=True)
class WorldSchedule:
    """When each environment is active.

    - `envs`: the environments, in order.
    - `steps`: the step at which each becomes active; `None` if each belongs to a skill.
    """

    envs: tuple[AnyEnv, ...]
    steps: tuple[int, ...] | None

    def active(self, *, skill: int, step: int) -> int:
        """Index of the active environment."""
        if self.steps is None:
            return min(skill, len(self.envs) - 1)
        return bisect.bisect_right(self.steps, step) - 1

    def changes_after(self, step: int) -> list[int]:
        """The later steps at which the environment changes within a skill."""
        return [change for change in self.steps or () if change > step]


def make_schedule(world: World, num_skills: int) -> WorldSchedule:
    """Makes the schedule of all environments, and checks that they are alike."""
    first = first_env(world)
    steps = None
    if isinstance(world, AbstractEnv):
        envs = (first,)
    elif isinstance(world, Mapping):
        steps = tuple(sorted(world))
        envs = tuple(world[step] for step in steps)
    else:
        envs = (first, *(world(skill) for skill in range(1, num_skills)))
    # The actors carry the state of one environment over into the next.
    states = [eqx.filter_eval_shape(env.reset, key=jr.key(0))[0] for env in envs]
    for env, state in zip(envs, states, strict=True):
        if env.spec != first.spec:
            raise ValueError(
                f"`env` changes its `spec` from {first.spec} to {env.spec}; skills can "
                "only continue in environments of the same sizes."
            )
        if jax.tree.flatten(state) != jax.tree.flatten(states[0]):
            raise ValueError(
                f"`env` changes its state from {eqx.tree_pformat(states[0])} to "
                f"{eqx.tree_pformat(state)}; training can only continue where "
                "structure and shapes stay the same."
            )
    return WorldSchedule(envs=envs, steps=steps)


def enlarge_past(
    agent: AnyAgent, env: AnyEnv, *, num_episodes: int, held: int = 0
) -> AnyIntrinsic:
    """The agent with room for the past features of `num_episodes` episodes.

    Beside them, each bucket has room for the `held` features of earlier ones.
    """
    learner, reward = find_learner(agent)
    limit = env.spec.max_steps
    if limit is None:
        raise ValueError(
            "Skills are rolled out for whole episodes, but the environment has no time "
            "limit (`spec.max_steps` is None), so one might never end; put an "
            "`eqrl.envs.TimeLimit` around it."
        )
    # With a bucket for each timestep, an episode adds one feature to each of them.
    rows = num_episodes if reward.per_timestep else num_episodes * limit
    return with_past_capacity(learner, max(held + rows, reward.past_capacity))


def saturated(count: int) -> Int[Array, ""]:
    """A count as an array, at most the largest integer that fits.

    Without `jax_enable_x64` it has 32 bits, but a skill may take nearly 2^31 steps and
    a library has several.
    """
    return jnp.asarray(min(count, jnp.iinfo(jnp.result_type(int)).max), int)


def resume_library(
    agent: AnyIntrinsic,
    env: AnyEnv,
    trainer: Trainer,
    initial: Skills,
    *,
    capacity: int,
    num_collected_episodes: int,
) -> tuple[AnyIntrinsic, Skills]:
    """The agent and a copy of `initial`, both with room for at least `capacity` skills.

    Raises a `ValueError` if `initial` cannot be resumed with these arguments.
    """
    if initial.training is None:
        raise ValueError(
            "`initial` holds skills to use only: its `training` is None, so none can "
            "be added; load them with the trainer, as "
            "`eqrl.load_skills(directory, agent, env, trainer)`."
        )
    # The skills may have been fetched from the device, as NumPy arrays.
    states, training = jax.tree.map(
        lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x,
        to_donate((initial.states, initial.training)),
    )
    past = training.trainer_state.agent.reward.past
    agent = with_past_capacity(agent, past.features.shape[1])
    size = stack_size(states)
    expected = eqx.filter_eval_shape(
        lambda: init_library(agent, env, trainer, capacity=size, key=jr.key(0))
    )
    count = jnp.asarray(initial.count)
    # The runner of the skill compares an unfinished row, which a new library lacks.
    between_rows = dataclasses.replace(training, unfinished=None)
    compared = Skills(states=states, count=count, training=between_rows)
    check_same_shapes("initial", expected, compared)
    capacity = max(capacity, size)
    num_episodes = capacity * num_collected_episodes
    agent = enlarge_past(agent, env, num_episodes=num_episodes)
    _, reward = find_learner(agent)
    if not reward.preset.recollect:
        # Earlier calls may have collected more episodes of each skill.
        num_episodes = (capacity - int(count)) * num_collected_episodes
        held = int(jnp.max(past.counts))
        agent = enlarge_past(agent, env, num_episodes=num_episodes, held=held)
        _, reward = find_learner(agent)
    training = eqx.tree_at(
        lambda training: training.trainer_state.agent.reward.past,
        training,
        enlarge(past, reward.past_capacity),
    )
    states = enlarge_stack(states, capacity)
    skills = Skills(
        states=states, count=count, training=training, metrics=initial.metrics
    )
    return agent, skills


@eqx.filter_jit
def collect(
    agent: AnyIntrinsic,
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
    learner, reward = find_learner(agent)
    state = take_element(states, index)
    transitions, mask = rollout(
        learner.agent, state, env, num_episodes=num_episodes, key=key
    )
    return reward.with_past(reward_state, transitions, mask), jnp.sum(mask)


@eqx.filter_jit(donate="all-except-first")
def begin_skill(
    kept: tuple[AnyIntrinsic, AnyEnv, Trainer, Replay, Float[Array, ""], PRNGKeyArray],
    state: AnyTrainerState,
    counts: Counts,
) -> tuple[AnyTrainerState, Counts]:
    """The training state at the beginning of the next skill.

    The agent starts from scratch. The reward keeps the past.

    **Arguments:**

    - `kept`: agent, environment, trainer, the part of the replay to keep, the number of
        updates of the skill, and a key.
    - `state`, `counts`: at the end of the previous skill. They are donated.
    """
    # In a tuple, since Equinox donates all arguments but the first.
    agent, env, trainer, replay, num_updates, key = kept
    _, reward = find_learner(agent)
    agent_key, start_key, replay_key = jr.split(key, 3)
    fresh = agent.init(env.spec, key=agent_key)
    agent_state = IntrinsicState(
        agent=fresh.agent,
        reward=reward.begin_skill(state.agent.reward, num_updates=num_updates),
    )
    data = truncate_last_row(state.replay, counts)
    data, counts = keep_replay(data, counts, replay, key=replay_key)
    release(state.actors.env_state)
    actors = start(agent, agent_state, env, num_envs=trainer.num_envs, key=start_key)
    state = TrainerState(
        agent=agent_state, actors=actors, replay=data, failed=jnp.array(False)
    )
    return state, counts


def keep_replay(
    replay: ReplayState[Item], counts: Counts, kept: Replay, *, key: PRNGKeyArray
) -> tuple[ReplayState[Item], Counts]:
    """Keeps all rows, the newest half, a random half, or none."""
    _, rows = ring_axes(replay)
    filled = jnp.minimum(rows_so_far(counts), rows)
    num_rows = {"keep": filled, "half": filled // 2, "clear": jnp.zeros_like(filled)}
    # Neither the capacity nor the batch size matters to what follows.
    buffer = ReplayBuffer(capacity=rows, batch_size=1)
    if kept == "random_half":
        return buffer.keep_random(replay, counts, num_rows=filled // 2, key=key)
    return buffer.keep_newest(replay, counts, num_rows=num_rows[kept])


@dataclasses.dataclass(frozen=True)
class SkillLoop:
    """The loop of `learn_skills` over skills.

    - `num_steps`: number of steps of each skill.
    - The others are the arguments of `learn_skills`.
    """

    agent: AnyIntrinsic
    schedule: WorldSchedule
    trainer: Trainer
    num_steps: Sequence[int]
    num_collected_episodes: int
    replay: Replay
    log_every: int
    evaluations: Evaluations | None
    key: PRNGKeyArray

    def learn(self, skills: Skills) -> Iterator[Reached]:
        """Learns the rest of the skill in training, and all further ones.

        `skills` is donated, as is each item when the next one is asked for.
        """
        training, states, metrics = skills.training, skills.states, skills.metrics
        assert training is not None
        check_finite_agent(training.trainer_state.agent)
        for skill in range(int(skills.count), len(self.num_steps)):
            # Not `split`, whose keys would depend on the number of skills.
            key = jr.fold_in(self.key, skill)
            if int(training.skill) < skill:
                training = self._begin_skill(training, states, skill, key=key)
                skills = dataclasses.replace(skills, training=training)
                yield Reached(steps_of_skills(self.trainer, training), None, skills)
            for trained, position in self._train_skill(training, states, skill, key):
                training = trained
                step, row = steps_of_skills(self.trainer, training), position.row
                failed = position.failed
                if row is not None:
                    state = training.trainer_state
                    if self.evaluations is not None:
                        try:
                            row = row | self.evaluations.measure(
                                step, metrics, state.agent, state.failed
                            )
                        except SimulatorError as error:
                            failed = failed or error.failure
                    row = row | {
                        "skill": np.asarray(skill),
                        "collected_steps": np.asarray(int(training.collected_steps)),
                    }
                    metrics = append_row(metrics, step, row)
                skills = dataclasses.replace(skills, training=training, metrics=metrics)
                yield Reached(step, row, skills, failed)
                evaluations = self.evaluations
                if row is not None and evaluations and evaluations.ends_training:
                    return
            learned = training.trainer_state.agent.agent
            # An array as the index, so that skills after the first compile nothing.
            states = put_element(states, learned, jnp.asarray(skill, int))
            count = jnp.asarray(skill + 1, int)
            skills = dataclasses.replace(skills, states=states, count=count)
        yield Reached(steps_of_skills(self.trainer, training), None, skills)

    def _begin_skill(
        self, training: SkillTraining, states: PyTree, skill: int, *, key: PRNGKeyArray
    ) -> SkillTraining:
        """Collects the past and starts the training of the next skill."""
        step = steps_of_skills(self.trainer, training)
        world = self.schedule.active(skill=skill, step=step)
        training = self._collect(
            training, states, skill, world=world, key=jr.fold_in(key, 1)
        )
        iterations = self.num_steps[skill] // self.trainer.steps_of_iteration
        num_updates = iterations * self.trainer.updates_per_iteration
        # The reward counts its own.
        num_updates *= self.agent.reward_minibatches
        kept = (
            self.agent,
            self.schedule.envs[world],
            self.trainer,
            self.replay,
            jnp.asarray(num_updates, float),
            jr.fold_in(key, 0),
        )
        state, counts = begin_skill(kept, training.trainer_state, training.counts)
        return dataclasses.replace(
            training,
            trainer_state=state,
            counts=counts,
            skill=jnp.asarray(skill, int),
            earlier_steps=saturated(step),
        )

    def _train_skill(
        self, training: SkillTraining, states: PyTree, skill: int, key: PRNGKeyArray
    ) -> Iterator[tuple[SkillTraining, Position]]:
        """Trains until an episode ends at or after the skill's number of steps."""
        last_step = self.num_steps[skill]
        earlier_steps = int(training.earlier_steps)
        while True:
            done = steps_taken(self.trainer, training.counts)
            world = self.schedule.active(skill=skill, step=earlier_steps + done)
            # The rest of the last episode is played in the environment it began in.
            if done < last_step and world != int(training.world):
                # Simulators belong to one environment: new episodes begin in others.
                release(training.trainer_state.actors.env_state)
                collect_key = jr.fold_in(jr.fold_in(key, 3), world)
                training = self._collect(
                    training, states, skill, world=world, key=collect_key
                )
            changes = self.schedule.changes_after(earlier_steps + done)
            # A row ends at each change, so that none averages over two environments.
            stops = [self._whole_iterations(step - earlier_steps) for step in changes]
            end = min([last_step, *stops])
            state, counts = training.trainer_state, training.counts
            env = self.schedule.envs[int(training.world)]
            runner = runner_of_one(
                self.trainer, self.agent, env, state, counts, key=jr.fold_in(key, 2)
            )
            resumed = position = runner.start(state, counts, training.unfinished)
            # If new episodes began in simulators, the old state was donated, and a
            # finished skill yields no further one.
            training = _at(position, training)
            yield training, position
            # After an error training may resume from within an iteration.
            num_steps = self._whole_iterations(max(end - done, 0))
            for position in runner.run_rows(
                resumed, num_steps=num_steps, log_every=self.log_every
            ):
                training = _at(position, training)
                yield training, position
            if end == last_step:
                break
        for last in runner.finish_episode(position, since=last_step):
            yield _at(last, training), last

    def _collect(
        self,
        training: SkillTraining,
        states: PyTree,
        skill: int,
        *,
        world: int,
        key: PRNGKeyArray,
    ) -> SkillTraining:
        """Adds the features of earlier skills in an environment to the past."""
        _, reward = find_learner(self.agent)
        reward_state = training.trainer_state.agent.reward
        earlier = range(skill if reward.preset.include_newest else skill - 1)
        if reward.preset.recollect:
            reward_state = reward.without_past(reward_state)
        else:
            # The past has all but the newest, and within a skill has that one, too.
            earlier = earlier[-1:] if int(training.skill) < skill else earlier[:0]
        lengths = []
        env = self.schedule.envs[world]
        for index in earlier:
            play = functools.partial(
                collect,
                self.agent,
                env,
                states,
                reward_state,
                index=jnp.asarray(index, int),
                num_episodes=self.num_collected_episodes,
                key=jr.fold_in(key, index),
            )
            reward_state, length = checked_result(env, play)
            lengths.append(length)
        # No length is read before all rollouts are dispatched: that would wait for it.
        collected_steps = int(training.collected_steps) + sum(map(int, lengths))
        return dataclasses.replace(
            eqx.tree_at(lambda x: x.trainer_state.agent.reward, training, reward_state),
            collected_steps=saturated(collected_steps),
            world=jnp.asarray(world, int),
        )

    def _whole_iterations(self, num_steps: int) -> int:
        size = self.trainer.steps_of_iteration
        return -(-num_steps // size) * size


def _at(position: Position, training: SkillTraining) -> SkillTraining:
    """The training state of a skill at a position of its runner."""
    return dataclasses.replace(
        training,
        trainer_state=position.reached.tree,
        counts=position.counts,
        unfinished=position.unfinished,
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
    evaluations: Evaluations[IntrinsicState[State, IncrementalState]] | None = None,
    callback: Callbacks[Skills[State]] | None = None,
) -> Skills[State]:
    """Learns skills one after another, as DISk does.

    Each skill is a separate agent that starts from scratch. `eqrl.Incremental`, which
    cites the paper, rewards it for behaving consistently and unlike all earlier skills.
    To that end all learned skills are rolled out before it begins, greedily and in the
    current environment; in `"pseudocode"` mode only the newest is, and in `"released"`
    mode all but it are. Once learned, a skill never changes.

    A skill takes `num_steps`, and then further iterations until one ends an episode of
    the first environment. The episodes of the other environments are cut short there,
    and their last transitions are marked as truncated. The next skill begins with
    `trainer.warmup_steps` random steps.

    All counts are environment steps, summed over the environments.

    **Arguments:**

    - `agent`: an `eqrl.Intrinsic(agent, eqrl.Incremental())` around an agent that
        learns from a replay.
    - `env`: the environment. For one that changes: a function from the index of a
        skill, from 0, to its environment, called once for each skill before training
        begins; or a dictionary of environments by the step at which each becomes
        active, including 0. These steps count the training of all skills. A change
        takes effect at the first iteration at or after its step, in mid-episode (in
        simulators outside JAX new episodes begin), and all earlier skills are rolled
        out again immediately (none in `"pseudocode"` mode); only the rest of an episode
        after `num_steps` is played in the old environment. All environments must have
        the same `spec` and states of the same shapes. If they differ in arrays only,
        nothing is recompiled.
    - `trainer`: how each skill is trained.
    - `num_skills`: number of skills in the end, including those of `initial`.
    - `num_steps`: steps of each skill, including random ones: one number, or one for
        each skill; whole numbers of iterations.
    - `key`: for the whole training. To resume exactly as if there had been one call,
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
    - `log_every`: steps per row of the metrics, rounded up to whole iterations. The
        rest of an episode after `num_steps` is a separate row.
    - `evaluations`: evaluates the skill in training, in one environment, and adds its
        measurements to the metrics. All training ends if it asks to stop, before the
        skill in training is added. Its `patience` and `target` compare all skills.
    - `callback`: called as `callback(step, metrics, skills)` after each row, with the
        steps of all skills together; or several callbacks. Training ends there if one
        returns true, and can resume from `skills`. Copy what you keep
        (`eqrl.tree_copy`) or save it (`eqrl.save_skills`): it is donated to the next
        row. A skill that has just ended is not yet among them, so save the returned
        skills as well.

    **Returns:**

    The `Skills`.

    Raises a `ValueError` if the arguments do not fit each other, an
    `eqrl.NonFiniteError` if training meets a value that is not finite, an
    `eqrl.SimulatorError` if a simulator outside JAX fails, and
    `eqrl.TrainingInterrupted` after Ctrl-C, SIGTERM or SIGHUP. The `solution` of the
    last three holds the skills so far, and training can resume from it.
    """
    key = reusable_key(key)
    learner, reward = find_learner(agent)
    steps = _steps_of_skills(num_steps, num_skills, trainer)
    replay = reward.preset.replay if replay is None else replay
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
    prepare(*schedule.envs)
    first = schedule.envs[0]
    check_numbers(agent, first.spec)
    if initial is None:
        num_episodes = capacity * num_collected_episodes
        learner = enlarge_past(learner, first, num_episodes=num_episodes)
        init_key = jr.fold_in(jr.fold_in(key, 0), 0)
        skills = init_library(learner, first, trainer, capacity=capacity, key=init_key)
    else:
        learner, skills = resume_library(
            learner,
            first,
            trainer,
            initial,
            capacity=capacity,
            num_collected_episodes=num_collected_episodes,
        )
    loop = SkillLoop(
        agent=learner,
        schedule=schedule,
        trainer=trainer,
        num_steps=steps,
        num_collected_episodes=num_collected_episodes,
        replay=replay,
        log_every=log_every,
        evaluations=evaluations,
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
    for each in steps:
        trainer.check_num_steps(each)
        check_integer("num_steps", each, least=1)
        # All rows of the replay may have been kept.
        counts = first_counts(trainer.schedule.rows)
        trainer.schedule.check_counters("num_steps", each, counts)
    return steps
