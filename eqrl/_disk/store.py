import dataclasses
import hashlib
import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._agents.base import AbstractAgent, AnyAgent
from .._agents.wrappers.intrinsic import AnyIntrinsic
from .._interaction.rollout import rollout
from .._pytree.fields import reusable_key
from .._pytree.tree import empty_stack, put_element, stack_size, take_element
from .._rewards.base import as_if_left
from .._rewards.incremental.reward import Incremental
from .._skills.trajectories import SkillTrajectories
from .._storage.checkpoint import (
    Directory,
    is_checkpoint,
    restore_part,
    save,
    saved_arrays,
    saved_steps,
)
from .._storage.files import (
    Content,
    __version__,
    atomic_write,
    read_json,
    reason_of,
    sealed,
)
from .._training.rows import History
from .._training.trainer import Trainer, begin_row
from .._types.custom_types import EnvState, Extras, Memory, Mode, State
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from .library import (
    Learner,
    Skills,
    SkillTraining,
    World,
    find_task,
    first_env,
    init_library,
    pick_skill,
    steps_of_skills,
)


# What to do where a file of a library is damaged.
_ADVICE = "take it from a copy of the library, or learn the skills again"


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Sizes from which the shapes of all saved arrays follow, and what to expect.

    `digests`, one for each skill, tell one library from another. `metrics` has one for
    each of the metrics.
    """

    digests: list[str]
    capacity: int
    past_capacity: int
    metrics: dict[str, str]


def save_skills(directory: Directory, skills: Skills) -> None:
    """Saves a library of skills and its training state.

    Each skill has a folder in `directory/skills` and is written once, since a learned
    skill never changes. The training state is in `directory/training`, of which only
    the latest is kept, and the metrics are in `directory/metrics.npz`. If this is
    killed midway, what was saved before stays intact.

    **Arguments:**

    - `directory`: created if it does not exist. It holds one library, which may be
        saved again as it grows.
    - `skills`: from `eqrl.learn_skills`, or from its callback.

    Raises a `ValueError` if the directory holds another library, or if a folder of
    `directory/skills` is in the way that this did not write.
    """
    if skills.training is None:
        raise ValueError(
            "`skills.training` is None: skills that are only to be used were loaded, "
            "and are in a directory already."
        )
    path = Path(directory)
    earlier = saved_steps(path / "training")
    held = _read_sizes(path).digests if earlier else []
    states = [take_element(skills.states, i) for i in range(int(skills.count))]
    digests = [_digest(state) for state in states]
    if digests[: len(held)] != held:
        raise ValueError(
            f"`{directory}` holds {len(held)} skills, which are not the first of the "
            f"{len(digests)} in `skills`; it is another library. Give another "
            "directory."
        )
    number = earlier[-1] + 1 if earlier else 0
    written = _clear_unfinished(path, number, states, num_held=len(held))
    past = skills.training.trainer_state.agent.reward.past
    sizes = _Sizes(
        digests=digests,
        capacity=stack_size(skills.states),
        past_capacity=past.features.shape[1],
        metrics={name: _hash([value]) for name, value in skills.metrics.items()},
    )
    path.mkdir(parents=True, exist_ok=True)
    content = sealed({"eqrl": __version__, **dataclasses.asdict(sizes)})
    with atomic_write(path / f"sizes_{number}.json") as file:
        file.write_text(json.dumps(content) + "\n")
    for index in range(written, len(states)):
        save(path / "skills", index, states[index])
    _write_metrics(path, skills.metrics)
    save(path / "training", number, skills.training)
    for each in earlier:
        if is_checkpoint(path / "training" / str(each)):
            shutil.rmtree(path / "training" / str(each))
        (path / f"sizes_{each}.json").unlink(missing_ok=True)


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
    - `agent`, `env`, `trainer`: with which the skills were learned. Without a trainer
        the skills can be used, but none can be added.

    Raises a `ValueError` if there are no skills, if they do not fit the arguments, and
    if a file is not as it was written, naming it.
    """
    task = find_task(agent)
    path = Path(directory)
    sizes = _read_sizes(path)
    states = empty_stack(_state_shapes(task.agent, env), sizes.capacity)
    for index in range(len(sizes.digests)):
        _, state = load_skill(directory, agent, env, index)
        states = put_element(states, state, jnp.asarray(index, int))
    count = jnp.asarray(len(sizes.digests), int)
    if trainer is None:
        return Skills(states=states, count=count)
    task = task.with_past_capacity(sizes.past_capacity)
    _, saved = saved_arrays(path / "training", None)
    is_within_row = any(name.startswith(".unfinished") for name in saved)
    like = eqx.filter_eval_shape(
        lambda: _begin_training(task.agent, first_env(env), trainer, is_within_row)
    )
    training = restore_part(path / "training", like, None, None, advice=_ADVICE)
    step = steps_of_skills(trainer, training)
    return Skills(
        states=states,
        count=count,
        training=training,
        metrics=_read_metrics(path, step, sizes.metrics),
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
    - `agent`, `env`: with which it was learned.
    - `index`: of the skill, from 0.

    Raises a `ValueError` unless there is such a skill and it fits the arguments.
    """
    task = find_task(agent)
    path = Path(directory)
    digests = _read_sizes(path).digests
    count = len(digests)
    if not 0 <= index < count:
        raise ValueError(
            f"`index={index}` is not a skill; `{directory}` holds {count} skills"
            + (f", 0 to {count - 1}." if count > 0 else ".")
        )
    like = _state_shapes(task.agent, env)
    state = restore_part(path / "skills", like, index, None, advice=_ADVICE)
    if _digest(state) != digests[index]:
        raise ValueError(
            f"`{path / 'skills' / str(index)}` is damaged: it is not the skill that "
            f"was saved there; {_ADVICE}."
        )
    return task.agent.agent, state


def count_skills(directory: Directory) -> int:
    """Number of skills in a library. Raises a `ValueError` if it is none."""
    return len(_read_sizes(Path(directory)).digests)


def _begin_training(
    agent: AnyIntrinsic, env: AnyEnv, trainer: Trainer, is_within_row: bool
) -> SkillTraining:
    progress = init_library(agent, env, trainer, capacity=1, key=jr.key(0))
    if not is_within_row:
        return progress.to_training()
    solution = progress.solution
    row = begin_row(trainer, agent, env, solution.trainer_state, solution.counts)
    solution = dataclasses.replace(solution, unfinished=row)
    return dataclasses.replace(progress, solution=solution).to_training()


def _state_shapes(agent: AnyIntrinsic, env: World) -> Any:
    spec = first_env(env).spec
    return eqx.filter_eval_shape(lambda: agent.init(spec, key=jr.key(0)).agent)


def _clear_unfinished(
    path: Path, number: int, states: list[Any], *, num_held: int
) -> int:
    """Deletes the remains of an interrupted save; returns how many skills are saved.

    Such a call wrote the sizes of that number, but no training state. A folder of a
    skill may stay if it holds the very skill; raises a `ValueError` if there is one
    that neither is so nor was begun by such a call.
    """
    # Without a training state nothing tells such a call from a library that lost it.
    begun = _begun(path, number) if number > 0 else 0
    count = num_held
    removed = []
    for index in saved_steps(path / "skills"):
        folder = path / "skills" / str(index)
        if index < num_held:
            continue
        if index == count < len(states) and _holds(folder, states[index]):
            count += 1
        elif index < begun and is_checkpoint(folder):
            removed.append(folder)
        else:
            raise ValueError(
                f"`{folder}` is not of the library that is being saved, and is not "
                "deleted. Give another directory, or move it away."
            )
    for folder in removed:
        shutil.rmtree(folder)
    return count


def _begun(path: Path, number: int) -> int:
    """The number of skills that a killed call was about to have written."""
    file = path / f"sizes_{number}.json"
    if not file.is_file():
        return 0
    return len(read_json(file, _parse_sizes, advice=_ADVICE).digests)


def _holds(folder: Path, state: Any) -> bool:
    try:
        saved = restore_part(folder.parent, state, int(folder.name), None, advice="")
    except ValueError:
        return False
    return _digest(saved) == _digest(state)


def _read_sizes(path: Path) -> _Sizes:
    numbers = saved_steps(path / "training")
    if not numbers:
        raise ValueError(f"There are no skills in `{path}`.")
    return read_json(path / f"sizes_{numbers[-1]}.json", _parse_sizes, advice=_ADVICE)


def _parse_sizes(content: Content) -> _Sizes:
    content.pop("eqrl", None)
    sizes = _Sizes(**content)
    if not isinstance(sizes.digests, list):
        raise TypeError(f"its digests are {sizes.digests!r}")
    for size in (sizes.capacity, sizes.past_capacity):
        if not isinstance(size, int) or size < 0:
            raise TypeError(f"{size!r} is not a size")
    return sizes


def _digest(state: Any) -> str:
    return _hash(jax.tree.leaves(eqx.filter(state, eqx.is_array)))


def _hash(arrays: Iterable[Array | np.ndarray | np.generic]) -> str:
    """A hash of all arrays; equal only if they are equal to the last bit."""
    sha = hashlib.sha256()
    for each in arrays:
        array = np.asarray(each)
        sha.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return sha.hexdigest()


def _write_metrics(path: Path, metrics: History) -> None:
    with atomic_write(path / "metrics.npz") as file, open(file, "wb") as stream:
        np.savez(stream, allow_pickle=False, **metrics)


def _read_metrics(path: Path, step: int, digests: dict[str, str]) -> History:
    """The rows up to a step; a call that was killed may have saved later ones."""
    file = path / "metrics.npz"
    try:
        # NumPy leaves open a file that it opened and that is not an archive.
        with open(file, "rb") as stream, np.load(stream) as metrics:
            rows = {name: metrics[name][metrics["step"] <= step] for name in digests}
    except Exception as error:
        # Of the operating system, of zip and of NumPy.
        raise ValueError(
            f"`{file}` is damaged: {reason_of(error)}; {_ADVICE}."
        ) from error
    for name, digest in digests.items():
        if _hash([rows[name]]) != digest:
            raise ValueError(
                f"`{file}` is damaged: `{name}` differs from its digest; {_ADVICE}."
            )
    return rows


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

    - `agent`: with which the skills were learned.
    - `skills`: at least one.
    - `env`: the environment.
    - `num_episodes`: of each skill, at least 1.
    - `key`: for actions and environments.
    - `mode`: how actions are picked.
    - `max_steps`: the most steps of an episode; `None` takes `env.spec.max_steps`.

    **Returns:**

    The trajectories of the descriptor of `eqrl.Incremental`, with a leading axis for
    the skills there are. `eqrl.draw_skills` draws them.

    Raises a `ValueError` if there are no skills, or no limit to an episode.
    """
    key = reusable_key(key)
    reward = find_task(agent).reward
    count = int(skills.count)
    if count == 0:
        raise ValueError("`skills` holds none yet; learn one first.")
    trajectories = []
    for index, skill_key in enumerate(jr.split(key, count)):
        inner, state = pick_skill(agent, skills, index)
        trajectories.append(
            _play(
                inner, state, env, reward, num_episodes, mode, max_steps, key=skill_key
            )
        )
    descriptors, mask, first = jax.tree.map(lambda *x: jnp.stack(x), *trajectories)
    return SkillTrajectories(
        descriptors=descriptors, mask=mask, first_descriptors=first
    )


@eqx.filter_jit
def _play(
    agent: AnyAgent,
    state: Any,
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
