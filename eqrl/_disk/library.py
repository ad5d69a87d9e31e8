"""A library of skills, its training state, and the environments it is learned in."""

import bisect
import dataclasses
from collections.abc import Callable, Mapping
from typing import Generic

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Int, PRNGKeyArray

from .._agents.base import AbstractAgent, AnyAgent
from .._agents.wrappers.intrinsic import AnyIntrinsic, Intrinsic, IntrinsicState
from .._pytree.tree import (
    check_same_shapes,
    empty_stack,
    enlarge_stack,
    stack_size,
    take_element,
)
from .._rewards.feature_set import enlarge
from .._rewards.incremental import Incremental, IncrementalState
from .._training.iteration import UnfinishedRow
from .._training.rows import History, steps_taken
from .._training.schedule import Counts
from .._training.train import jit_init
from .._training.trainer import AnyTrainerState, Trainer
from .._types.custom_types import Extras, Memory, PyTree, State
from ..envs import AbstractEnv
from ..envs._base import AnyEnv


World = AnyEnv | Callable[[int], AnyEnv] | Mapping[int, AnyEnv]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """When each environment is active.

    - `envs`: one after another.
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


def make_schedule(world: World, num_skills: int) -> Schedule:
    """Makes the schedule of all environments.

    Raises a `ValueError` unless they are alike.
    """
    first = first_env(world)
    steps = None
    if isinstance(world, AbstractEnv):
        envs = (first,)
    elif isinstance(world, Mapping):
        steps = tuple(sorted(world))
        envs = tuple(world[step] for step in steps)
    else:
        envs = (first, *(world(skill) for skill in range(1, num_skills)))
    _check_alike(envs)
    return Schedule(envs=envs, steps=steps)


def first_env(world: World) -> AnyEnv:
    """The environment that is active at first."""
    if isinstance(world, AbstractEnv):
        return world
    if isinstance(world, Mapping):
        steps = sorted(world)
        if steps[:1] != [0]:
            raise ValueError(
                f"`env` has environments from the steps {steps}; one of them must be "
                "0, and none negative."
            )
        return world[0]
    if callable(world) and not isinstance(world, type):
        return world(0)
    raise ValueError(
        f"`env` is a {type(world).__name__}; it must be an environment, a function "
        "from a skill's number to one, or a dictionary of them by the environment "
        "step at which each becomes active."
    )


def _check_alike(envs: tuple[AnyEnv, ...]) -> None:
    first = envs[0]
    state = _state_shapes(first)
    for env in envs[1:]:
        if env.spec != first.spec:
            raise ValueError(
                f"`env` changes its `spec` from {first.spec} to {env.spec}; skills can "
                "only continue in environments of the same sizes."
            )
        other = _state_shapes(env)
        if jax.tree.flatten(other) != jax.tree.flatten(state):
            raise ValueError(
                f"`env` changes its state from {eqx.tree_pformat(state)} to "
                f"{eqx.tree_pformat(other)}; training can only continue where "
                "structure and shapes stay the same."
            )


def _state_shapes(env: AnyEnv) -> PyTree:
    state, _ = eqx.filter_eval_shape(env.reset, key=jr.key(0))
    return state


Learner = AbstractAgent[IntrinsicState[State, IncrementalState], Memory, Extras]
"""An `eqrl.Intrinsic(agent, eqrl.Incremental())` around any agent."""


class SkillTraining(eqx.Module):
    """The training state of one skill, which `eqrl.learn_skills` resumes."""

    trainer_state: AnyTrainerState
    counts: Counts
    skill: Int[Array, ""]
    earlier_steps: Int[Array, ""]
    collected_steps: Int[Array, ""]
    world: Int[Array, ""]
    unfinished: UnfinishedRow | None = None


SkillTraining.__init__.__doc__ = """**Arguments:**

- `trainer_state`: agent, environments and replay.
- `counts`: progress counters of the skill.
- `skill`: index of the skill, from 0. Once it is learned it is part of the library,
    and this is less than the library's count.
- `earlier_steps`: environment steps of training of all earlier skills.
- `collected_steps`: environment steps of all rollouts of learned skills, counted to
    2^31 - 1 where integers have 32 bits.
- `world`: index of the environment in which they were rolled out last: the number of
    changes before it.
- `unfinished`: as in `eqrl.Solution`.
"""


def steps_of_skills(trainer: Trainer, training: SkillTraining) -> int:
    """Environment steps of the training of all skills so far."""
    return int(training.earlier_steps) + steps_taken(trainer, training.counts)


class Skills(eqx.Module, Generic[State]):
    """A library of skills learned one after another, and their training state.

    `eqrl.pick_skill` takes one out.
    """

    states: State
    count: Int[Array, ""]
    training: SkillTraining | None = None
    metrics: History = eqx.field(default_factory=dict)


Skills.__init__.__doc__ = """**Arguments:**

- `states`: states of the learned agents, a stack that may have room for more skills.
- `count`: the number of skills, which are the first of the stack.
- `training`: the state that `eqrl.learn_skills` resumes; `None` if the skills are only
    to be used.
- `metrics`: of all skills, a row every `log_every` steps: those of `eqrl.Solution`;
    `skill`, from 0; and `collected_steps`, the environment steps of all rollouts of
    learned skills so far, which `step` does not include.
"""


class Task(eqx.Module):
    """An agent and its `Incremental` reward, which is `agent.reward`."""

    agent: AnyIntrinsic
    reward: Incremental

    def with_past_capacity(self, capacity: int) -> "Task":
        """The same agent, whose reward has a past of another capacity."""
        reward = dataclasses.replace(self.reward, past_capacity=capacity)
        return Task(agent=dataclasses.replace(self.agent, reward=reward), reward=reward)


def find_task(agent: AnyAgent) -> Task:
    """The agent and its reward.

    Raises a `ValueError` unless `agent` is an `Intrinsic` with an `Incremental`. Around
    it no wrapper is allowed: a skill is the agent inside, without the wrapper.
    """
    given = f"a {type(agent).__name__}"
    if isinstance(agent, Intrinsic):
        if isinstance(agent.reward, Incremental):
            return Task(agent=agent, reward=agent.reward)
        given = f"an Intrinsic whose reward is a {type(agent.reward).__name__}"
    raise ValueError(
        f"`agent` is {given}; skills are learned one after another by an "
        "`eqrl.Intrinsic(agent, eqrl.Incremental())` around any agent."
    )


def enlarge_past(task: Task, env: AnyEnv, *, num_episodes: int) -> Task:
    """Makes room for the past features of `num_episodes` episodes."""
    limit = env.spec.max_steps
    if limit is None:
        raise ValueError(
            "Skills are rolled out for whole episodes, but the environment has no time "
            "limit (`spec.max_steps` is None), so one might never end; put an "
            "`eqrl.envs.TimeLimit` around it."
        )
    # With a bucket for each timestep, an episode adds one feature to each of them.
    rows = num_episodes if task.reward.per_timestep else num_episodes * limit
    return task.with_past_capacity(max(rows, task.reward.past_capacity))


def training_of(skills: Skills) -> SkillTraining:
    """The training state of skills that can be resumed."""
    assert skills.training is not None
    return skills.training


def saturated(count: int) -> Int[Array, ""]:
    """A count as an array, at most the largest integer that fits.

    Without `jax_enable_x64` it has 32 bits, but a skill may take nearly 2^31 steps and
    a library has several.
    """
    return jnp.asarray(min(count, jnp.iinfo(jnp.result_type(int)).max), int)


def init_library(
    agent: AnyIntrinsic,
    env: AnyEnv,
    trainer: Trainer,
    *,
    capacity: int,
    key: PRNGKeyArray,
) -> Skills:
    """An empty library and the training state of its first skill."""
    state, counts = jit_init(trainer, agent, env, key=key)
    training = SkillTraining(
        trainer_state=state,
        counts=counts,
        skill=jnp.asarray(0, int),
        earlier_steps=jnp.asarray(0, int),
        collected_steps=jnp.asarray(0, int),
        world=jnp.asarray(0, int),
    )
    return Skills(
        states=empty_stack(state.agent.agent, capacity),
        count=jnp.asarray(0, int),
        training=training,
    )


def copy_library(
    task: Task, env: AnyEnv, trainer: Trainer, initial: Skills
) -> tuple[Task, Skills]:
    """The task with the past capacity of `initial`, and a copy of `initial`.

    Raises a `ValueError` unless `initial` can be resumed with these arguments.
    """
    if initial.training is None:
        raise ValueError(
            "`initial` holds skills to use only: its `training` is None, so none can "
            "be added; load them with the trainer, as "
            "`eqrl.load_skills(directory, agent, env, trainer)`."
        )
    # Training donates what it is given, and `initial` stays usable. NumPy arrays are
    # copied too: the skills may have been fetched from the device.
    states, training = jax.tree.map(
        lambda x: jnp.array(x) if isinstance(x, (jax.Array, np.ndarray)) else x,
        (initial.states, initial.training),
    )
    past = training.trainer_state.agent.reward.past
    task = task.with_past_capacity(past.features.shape[1])
    expected = eqx.filter_eval_shape(
        lambda: init_library(
            task.agent, env, trainer, capacity=stack_size(states), key=jr.key(0)
        )
    )
    skills = Skills(
        states=states,
        count=jnp.asarray(initial.count),
        training=training,
        metrics=initial.metrics,
    )
    # The runner of the skill compares an unfinished row, which a new library lacks.
    between_rows = dataclasses.replace(training, unfinished=None)
    compared = dataclasses.replace(skills, training=between_rows, metrics={})
    check_same_shapes("initial", expected, compared)
    return task, skills


def enlarge_library(skills: Skills, task: Task, *, capacity: int) -> Skills:
    """The same skills with room for `capacity` of them and for the past of the task."""
    past = training_of(skills).trainer_state.agent.reward.past
    return eqx.tree_at(
        lambda skills: (
            skills.states,
            skills.training.trainer_state.agent.reward.past,
        ),
        skills,
        (
            enlarge_stack(skills.states, capacity),
            enlarge(past, task.reward.past_capacity),
        ),
    )


def pick_skill(
    agent: Learner[State, Memory, Extras],
    skills: Skills[State],
    index: int,
) -> tuple[AbstractAgent[State, Memory, Extras], State]:
    """Takes one skill out of a library.

    The result is an ordinary agent and its state. It can be evaluated and rendered, and
    trained further on the environment's own reward:
    `eqrl.train(agent, env, trainer, agent_state=state, ...)`.

    **Arguments:**

    - `agent`: the agent that learned the skills.
    - `skills`: from `eqrl.learn_skills`.
    - `index`: of the skill, from 0.

    **Returns:**

    The agent without its intrinsic reward, and its state.

    Raises a `ValueError` unless there is such a skill.
    """
    if not isinstance(agent, Intrinsic):
        raise ValueError(
            f"`agent` is a {type(agent).__name__}; it must be the `Intrinsic` that was "
            "given to `eqrl.learn_skills`."
        )
    count = int(skills.count)
    if not 0 <= index < count:
        raise ValueError(
            f"`index={index}` is not a skill; there are {count}"
            + (f", 0 to {count - 1}." if count > 0 else " yet.")
        )
    return agent.agent, take_element(skills.states, index)
