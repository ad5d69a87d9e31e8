"""A library of skills and its training state, and how they are stored."""

import ast
import dataclasses
import functools
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Generic, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, UInt8

from .._agents.base import AbstractAgent, AnyAgent
from .._agents.wrappers.intrinsic import AnyIntrinsic, Intrinsic, IntrinsicState
from .._interaction.evaluate import rollout
from .._pytree.fields import plain_integer, reusable_key
from .._pytree.tree import (
    digest_of,
    empty_stack,
    put_element,
    stack_size,
    take_element,
)
from .._rewards.base import as_if_left
from .._rewards.incremental import Incremental, IncrementalState
from .._skills.distances import SkillTrajectories
from .._storage.checkpoint import (
    Directory,
    is_checkpoint,
    restore_part,
    save,
    saved_arrays,
    saved_steps,
)
from .._training.iteration import UnfinishedRow
from .._training.replay import ReplayBuffer, whole_observations
from .._training.rows import History, steps_taken
from .._training.schedule import Counts
from .._training.train import jit_init
from .._training.trainer import AnyTrainerState, Trainer, begin_row
from .._types.custom_types import EnvState, Extras, Memory, Mode, PyTree, State, Tree
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from ..envs._host import checked_result


World = AnyEnv | Callable[[int], AnyEnv] | Mapping[int, AnyEnv]


def first_env(world: World) -> AnyEnv:
    """The environment that is active first."""
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


Learner = AbstractAgent[IntrinsicState[State, IncrementalState], Memory, Extras]
"""An `eqrl.Intrinsic(agent, eqrl.Incremental())` around an agent with a replay."""


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

- `trainer_state`: states of the agent, environments and replay.
- `counts`: progress counters of the skill.
- `skill`: index of the skill, from 0. Once learned, it is part of the library, and this
    is less than the library's count.
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

    `eqrl.pick_skill` extracts one.
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


def find_learner(agent: AnyAgent) -> tuple[AnyIntrinsic, Incremental]:
    """The agent itself, an `Intrinsic`, and its reward, an `Incremental`.

    Raises a `ValueError` if it is anything else. No wrapper may be around the
    `Intrinsic`: a skill is the agent inside it, and would lose that wrapper.
    """
    given = f"a {type(agent).__name__}"
    if isinstance(agent, Intrinsic):
        if isinstance(agent.reward, Incremental):
            return agent, agent.reward
        given = f"an Intrinsic whose reward is a {type(agent.reward).__name__}"
    raise ValueError(
        f"`agent` is {given}; skills are learned one after another by an "
        "`eqrl.Intrinsic(agent, eqrl.Incremental())` around an agent with a replay."
    )


def with_past_capacity(agent: AnyIntrinsic, capacity: int) -> AnyIntrinsic:
    """The same agent, with another capacity of the past in its reward."""
    reward = dataclasses.replace(agent.reward, past_capacity=capacity)
    return dataclasses.replace(agent, reward=reward)


def init_training(
    agent: AnyIntrinsic, env: AnyEnv, trainer: Trainer, *, key: PRNGKeyArray
) -> SkillTraining:
    """The training state at the beginning of a first skill."""
    # The next skill may inherit rows of it that are not consecutive.
    whole = dataclasses.replace(trainer, make_replay=whole_observations(ReplayBuffer))
    state, counts = jit_init(whole, agent, env, key=key)
    return SkillTraining(
        trainer_state=state,
        counts=counts,
        skill=jnp.asarray(0, int),
        earlier_steps=jnp.asarray(0, int),
        collected_steps=jnp.asarray(0, int),
        world=jnp.asarray(0, int),
    )


def init_library(
    agent: AnyIntrinsic,
    env: AnyEnv,
    trainer: Trainer,
    *,
    capacity: int,
    key: PRNGKeyArray,
) -> Skills:
    """An empty library and the training state of its first skill."""
    training = init_training(agent, env, trainer, key=key)
    return Skills(
        states=empty_stack(training.trainer_state.agent.agent, capacity),
        count=jnp.asarray(0, int),
        training=training,
    )


def pick_skill(
    agent: Learner[State, Memory, Extras], skills: Skills[State], index: int
) -> tuple[AbstractAgent[State, Memory, Extras], State]:
    """Extracts one skill from a library.

    The result is an ordinary agent and its state. It can be evaluated and rendered, and
    trained further on the environment's own reward:
    `eqrl.train(agent, env, trainer, agent_state=state, ...)`.

    **Arguments:**

    - `agent`: the agent that learned the skills.
    - `skills`: from `eqrl.learn_skills`.
    - `index`: index of the skill, from 0.

    **Returns:**

    The agent without its intrinsic reward, and its state.

    Raises a `ValueError` if there is no such skill.
    """
    if not isinstance(agent, Intrinsic):
        raise ValueError(
            f"`agent` is a {type(agent).__name__}; it must be the `Intrinsic` that was "
            "given to `eqrl.learn_skills`."
        )
    _check_index(index, int(skills.count), "there are")
    return agent.agent, take_element(skills.states, index)


def _check_index(index: int, count: int, there_are: str) -> None:
    if not 0 <= index < count:
        raise ValueError(
            f"Skill {index} does not exist; {there_are} {count} skills"
            + (f", 0 to {count - 1}." if count > 0 else " yet.")
        )


def play_skills(
    agent: Learner[State, Memory, Extras],
    skills: Skills[State],
    env: AbstractEnv[EnvState],
    *,
    num_episodes: int,
    key: PRNGKeyArray,
    mode: Mode = "greedy",
    max_steps: int | None = None,
) -> SkillTrajectories:
    """Rolls out each skill of a library, without training.

    **Arguments:**

    - `agent`: the agent that learned the skills.
    - `skills`: at least one.
    - `env`: the environment.
    - `num_episodes`: number of episodes of each skill, at least 1.
    - `key`: for actions and environments.
    - `mode`: how actions are picked.
    - `max_steps`: the most steps of an episode; `None` takes `env.spec.max_steps`.

    **Returns:**

    The trajectories of the descriptor of `eqrl.Incremental`, with a leading axis for
    the skills. `eqrl.draw_skills` draws them.

    Raises a `ValueError` if there are no skills, or no limit to an episode.
    """
    key = reusable_key(key)
    _, reward = find_learner(agent)
    count = int(skills.count)
    if count == 0:
        raise ValueError("`skills` holds none yet; learn one first.")
    trajectories = []
    for index, skill_key in enumerate(jr.split(key, count)):
        inner, state = pick_skill(agent, skills, index)
        play = functools.partial(
            _play,
            inner,
            state,
            env,
            reward,
            # In a compiled program a NumPy integer would be an array.
            plain_integer(num_episodes),
            mode,
            plain_integer(max_steps),
            key=skill_key,
        )
        trajectories.append(checked_result(env, play))
    descriptors, mask, first = jax.tree.map(lambda *x: jnp.stack(x), *trajectories)
    return SkillTrajectories(
        descriptors=descriptors, mask=mask, first_descriptors=first
    )


@eqx.filter_jit
def _play(
    agent: AnyAgent,
    state: PyTree,
    env: AnyEnv,
    reward: Incremental,
    num_episodes: int,
    mode: Mode,
    max_steps: int | None,
    *,
    key: PRNGKeyArray,
) -> tuple[
    Float[Array, "episodes time descriptor"],
    Bool[Array, "episodes time"],
    Float[Array, "episodes descriptor"],
]:
    transitions, mask = rollout(
        agent,
        state,
        env,
        num_episodes=num_episodes,
        key=key,
        mode=mode,
        max_steps=max_steps,
    )
    first = jax.tree.map(lambda x: x[:, 0], as_if_left(transitions))
    return reward.descriptors(transitions), mask, reward.descriptors(first)


# Advice for a damaged file of a library.
_ADVICE = "take it from a copy of the library, or learn the skills again"


class _Library(NamedTuple):
    """Everything in a library except the skills themselves, saved as one checkpoint.

    - `digests`: digest of the state of each skill.
    - `capacity`: the number of skills that the stack in `Skills` has room for.
    - `training`, `metrics`: as in `Skills`.
    """

    digests: UInt8[np.ndarray, "skills 32"]
    capacity: Int[np.ndarray, ""]
    training: SkillTraining | None
    metrics: History


def save_skills(directory: Directory, skills: Skills) -> None:
    """Saves a library of skills and its training state.

    Each skill has a folder in `directory/skills` and is written once, since a learned
    skill never changes. The training state and the metrics are in `directory/training`,
    which keeps only the latest. If the call is killed midway, everything saved before
    stays intact.

    **Arguments:**

    - `directory`: created if it does not exist. It holds one library, which may be
        saved again as it grows.
    - `skills`: from `eqrl.learn_skills`, or from its callback.

    Raises a `ValueError` if the directory holds another library, or if a folder that
    `save_skills` did not write is in the way in `directory/skills`.
    """
    if skills.training is None:
        raise ValueError(
            "`skills.training` is None: skills that are only to be used were loaded, "
            "and are in a directory already."
        )
    path = Path(directory)
    earlier = saved_steps(path / "training")
    # An element of a NumPy vector, as skills fetched from the device hold, is not an
    # array and would not be saved.
    stack = jax.tree.map(
        lambda x: jnp.asarray(x) if isinstance(x, np.ndarray) else x, skills.states
    )
    states = [take_element(stack, index) for index in range(int(skills.count))]
    digests = np.array([*map(digest_of, states)], np.uint8).reshape(-1, 32)
    held = _read_digests(path)[0] if earlier else digests[:0]
    if not np.array_equal(digests[: len(held)], held):
        raise ValueError(
            f"`{directory}` holds {len(held)} skills, which are not the first of the "
            f"{len(digests)} in `skills`; it is another library. Give another "
            "directory."
        )
    library = _Library(
        digests=digests,
        capacity=np.asarray(stack_size(skills.states)),
        training=skills.training,
        metrics=skills.metrics,
    )
    written = _clear_unfinished(path, states, num_held=len(held))
    for index in range(written, len(states)):
        save(path / "skills", index, states[index])
    # Last, since it makes the skills a part of the library.
    save(path / "training", earlier[-1] + 1 if earlier else 0, library)
    for each in earlier:
        if is_checkpoint(path / "training" / str(each)):
            shutil.rmtree(path / "training" / str(each))


def load_skills(
    directory: Directory,
    agent: Learner[State, Memory, Extras],
    env: World,
    trainer: Trainer | None = None,
) -> Skills[State]:
    """Loads a library that `save_skills` saved.

    ```python
    skills = eqrl.load_skills("library", agent, env, trainer)
    eqrl.learn_skills(agent, env, trainer, ..., initial=skills)
    ```

    **Arguments:**

    - `directory`: as given to `save_skills`.
    - `agent`, `env`, `trainer`: those that learned the skills. Without a trainer the
        skills can be used, but none can be added.

    Raises a `ValueError` if there are no skills, if they do not fit the arguments, or
    if a file is damaged, which the error names.
    """
    learner, _ = find_learner(agent)
    path = Path(directory)
    digests, capacity = _read_digests(path)
    like = _state_shapes(learner, env)
    states = empty_stack(like, capacity)
    for index, digest in enumerate(digests):
        state = _read_skill(path / "skills", like, index, digest)
        states = put_element(states, state, jnp.asarray(index, int))
    count = jnp.asarray(len(digests), int)
    if trainer is None:
        return Skills(states=states, count=count)
    saved = _saved_shapes(path)
    past = saved[".training.trainer_state.agent.reward.past.features"]
    learner, first = with_past_capacity(learner, past.shape[1]), first_env(env)
    is_within_row = any(name.startswith(".training.unfinished") for name in saved)

    def begin_training() -> SkillTraining:
        training = init_training(learner, first, trainer, key=jr.key(0))
        if not is_within_row:
            return training
        state, counts = training.trainer_state, training.counts
        row = begin_row(trainer, learner, first, state, counts)
        return dataclasses.replace(training, unfinished=row)

    like = _library_like(saved, eqx.filter_eval_shape(begin_training))
    library = restore_part(path / "training", like, None, None, advice=_ADVICE)
    return Skills(
        states=states, count=count, training=library.training, metrics=library.metrics
    )


def load_skill(
    directory: Directory,
    agent: Learner[State, Memory, Extras],
    env: World,
    index: int,
) -> tuple[AbstractAgent[State, Memory, Extras], State]:
    """Loads one skill of a library, as `eqrl.pick_skill` returns it.

    **Arguments:**

    - `directory`: as given to `eqrl.save_skills`.
    - `agent`, `env`: those that learned the skill.
    - `index`: index of the skill, from 0.

    Raises a `ValueError` if there is no such skill or if the arguments do not fit.
    """
    learner, _ = find_learner(agent)
    path = Path(directory)
    digests, _ = _read_digests(path)
    _check_index(index, len(digests), f"`{directory}` holds")
    like = _state_shapes(learner, env)
    state = _read_skill(path / "skills", like, index, digests[index])
    return learner.agent, state


def count_skills(directory: Directory) -> int:
    """The number of skills in a library.

    Raises a `ValueError` if the directory does not hold a library.
    """
    return _saved_shapes(Path(directory))[".digests"].shape[0]


def _state_shapes(agent: AnyIntrinsic, env: World) -> PyTree:
    spec = first_env(env).spec
    return eqx.filter_eval_shape(lambda: agent.init(spec, key=jr.key(0)).agent)


def _clear_unfinished(path: Path, states: list[PyTree], *, num_held: int) -> int:
    """Deletes the remains of an interrupted save; returns how many skills are saved.

    Such a save wrote skills, but not the training state that makes them a part of the
    library. A folder stays if it already holds the skill that is to be saved there.
    Raises a `ValueError` for one that neither holds it nor can be such a remainder.
    """
    count = num_held
    removed = []
    for index in saved_steps(path / "skills"):
        folder = path / "skills" / str(index)
        if index < num_held:
            continue
        if index == count < len(states) and _holds(folder, states[index]):
            count += 1
        # Without a training state it might be a skill of a library that lost it.
        elif saved_steps(path / "training") and is_checkpoint(folder):
            removed.append(folder)
        else:
            raise ValueError(
                f"`{folder}` is not of the library that is being saved, and is not "
                "deleted. Give another directory, or move it away."
            )
    for folder in removed:
        shutil.rmtree(folder)
    return count


def _holds(folder: Path, state: PyTree) -> bool:
    try:
        _read_skill(folder.parent, state, int(folder.name), digest_of(state))
    except ValueError:
        return False
    return True


def _saved_shapes(path: Path) -> dict[str, jax.ShapeDtypeStruct]:
    """The shapes of the latest `_Library`, by the paths of its arrays."""
    if saved_steps(path / "training"):
        _, saved = saved_arrays(path / "training")
        if ".digests" in saved:
            return saved
    raise ValueError(f"There are no skills in `{path}`.")


def _library_like(
    saved: dict[str, jax.ShapeDtypeStruct], training: SkillTraining | None
) -> _Library:
    """A `_Library` with arrays of the saved shapes and a given training state."""
    # JAX arrays would have 32 bits, where metrics have 64.
    arrays = {
        name: np.empty(shape.shape, shape.dtype)
        for name, shape in saved.items()
        if not name.startswith(".training")
    }
    metrics: History = {}
    for name, array in arrays.items():
        if name.startswith(".metrics"):
            [key] = ast.literal_eval(name.removeprefix(".metrics"))
            metrics[key] = array
    return _Library(arrays[".digests"], arrays[".capacity"], training, metrics)


def _read_digests(path: Path) -> tuple[UInt8[np.ndarray, "skills 32"], int]:
    """The digest of each skill, and the capacity of the library."""
    library = restore_part(
        path / "training",
        _library_like(_saved_shapes(path), training=None),
        None,
        lambda library: (library.digests, library.capacity),
        advice=_ADVICE,
    )
    return library.digests, int(library.capacity)


def _read_skill(
    path: Path, like: Tree, index: int, digest: UInt8[np.ndarray, "32"]
) -> Tree:
    state = restore_part(path, like, index, None, advice=_ADVICE)
    # A checkpoint that is intact may still be the one of another skill.
    if not np.array_equal(digest_of(state), digest):
        raise ValueError(
            f"`{path / str(index)}` is damaged: it is not the skill that was saved "
            f"there; {_ADVICE}."
        )
    return state
