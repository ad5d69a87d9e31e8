import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np

from .._agents.base import AnyAgent
from .._agents.wrappers.intrinsic import AnyIntrinsic
from .._pytree.stack import empty_stack, put_element, stack_size, take_element
from .._storage.checkpoint import Directory, restore, save
from .._storage.replace import atomic_write
from .._training.rows import steps_taken
from .._training.solution import History
from .._training.trainer import Trainer
from .library import Skills, find_task, init_library
from .world import World, first_env


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Sizes from which the shapes of all saved arrays follow.

    `digests`, one for each skill, tell one library from another.
    """

    digests: list[str]
    capacity: int
    past_capacity: int


def save_skills(directory: Directory, skills: Skills[Any]) -> None:
    """Saves a library of skills and its training state.

    Each skill has a folder in `directory/skills` and is written once, since a learned
    skill never changes. The training state is in `directory/training`, of which only
    the latest is kept, and the metrics are in `directory/metrics.npz`. If this is
    killed midway, what was saved before stays intact.

    **Arguments:**

    - `directory`: created if it does not exist. It holds one library, which may be
        saved again as it grows.
    - `skills`: from `eqrl.learn_skills`, or from its callback.
    """
    if skills.training is None:
        raise ValueError(
            "`skills.training` is None: skills that are only to be used were loaded, "
            "and are in a directory already."
        )
    path = Path(directory)
    earlier = _numbers(path / "training")
    held = _read_sizes(path).digests if earlier else []
    states = [take_element(skills.states, i) for i in range(int(skills.count))]
    digests = [_digest(state) for state in states]
    if digests[: len(held)] != held:
        raise ValueError(
            f"`{directory}` holds {len(held)} skills, which are not the first of the "
            f"{len(digests)} in `skills`; it is another library. Give another "
            "directory."
        )
    for index in _numbers(path / "skills"):
        if index >= len(held):
            # An earlier call was killed before it wrote the training state.
            shutil.rmtree(path / "skills" / str(index))
    for index in range(len(held), len(states)):
        save(path / "skills", index, states[index])
    _write_metrics(path, skills.metrics)
    past = skills.training.trainer_state.agent.reward.past
    sizes = _Sizes(
        digests=digests,
        capacity=stack_size(skills.states),
        past_capacity=past.features.shape[1],
    )
    number = earlier[-1] + 1 if earlier else 0
    with atomic_write(path / f"sizes_{number}.json") as file:
        file.write_text(json.dumps(dataclasses.asdict(sizes)) + "\n")
    save(path / "training", number, skills.training)
    for each in earlier:
        shutil.rmtree(path / "training" / str(each))
        (path / f"sizes_{each}.json").unlink(missing_ok=True)


def load_skills(
    directory: Directory,
    agent: AnyAgent,
    env: World,
    trainer: Trainer | None = None,
) -> Skills[Any]:
    """Loads a library that `save_skills` saved.

    ```python
    skills = eqrl.load_skills("library", agent, env, trainer)
    eqrl.learn_skills(agent, env, trainer, ..., initial=skills)
    ```

    **Arguments:**

    - `directory`: as given to `save_skills`.
    - `agent`, `env`, `trainer`: with which the skills were learned. Without a trainer
        the skills can be used, but none can be added.

    Raises a `ValueError` if there are no skills or if they do not fit the arguments.
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
    like = eqx.filter_eval_shape(
        lambda: init_library(
            task.agent, first_env(env), trainer, capacity=1, key=jr.key(0)
        ).to_training()
    )
    training = restore(path / "training", like)
    step = int(training.earlier_steps) + steps_taken(trainer, training.counts)
    return Skills(
        states=states,
        count=count,
        training=training,
        metrics=_read_metrics(path, step),
    )


def load_skill(
    directory: Directory, agent: AnyAgent, env: World, index: int
) -> tuple[AnyAgent, Any]:
    """Loads one skill of a library, as `eqrl.pick_skill` returns it.

    **Arguments:**

    - `directory`: as given to `eqrl.save_skills`.
    - `agent`, `env`: with which it was learned.
    - `index`: of the skill, from 0.

    Raises a `ValueError` unless there is such a skill and it fits the arguments.
    """
    task = find_task(agent)
    path = Path(directory)
    count = len(_read_sizes(path).digests)
    if not 0 <= index < count:
        raise ValueError(
            f"`index={index}` is not a skill; `{directory}` holds {count} skills"
            + (f", 0 to {count - 1}." if count > 0 else ".")
        )
    like = _state_shapes(task.agent, env)
    return task.agent.agent, restore(path / "skills", like, step=index)


def count_skills(directory: Directory) -> int:
    """How many skills a library holds. Raises a `ValueError` if it is none."""
    return len(_read_sizes(Path(directory)).digests)


def _state_shapes(agent: AnyIntrinsic, env: World) -> Any:
    spec = first_env(env).spec
    return eqx.filter_eval_shape(lambda: agent.init(spec, key=jr.key(0)).agent)


def _numbers(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return sorted(int(item.name) for item in folder.iterdir() if item.name.isdigit())


def _read_sizes(path: Path) -> _Sizes:
    numbers = _numbers(path / "training")
    if not numbers:
        raise ValueError(f"There are no skills in `{path}`.")
    return _Sizes(**json.loads((path / f"sizes_{numbers[-1]}.json").read_text()))


def _digest(state: Any) -> str:
    """A hash of all arrays; equal only if they are equal to the last bit."""
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(eqx.filter(state, eqx.is_array)):
        array = np.asarray(leaf)
        sha.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return sha.hexdigest()


def _write_metrics(path: Path, metrics: History) -> None:
    path.mkdir(parents=True, exist_ok=True)
    with atomic_write(path / "metrics.npz") as file, open(file, "wb") as stream:
        np.savez(stream, allow_pickle=False, **metrics)


def _read_metrics(path: Path, step: int) -> History:
    """The rows up to a step; a call that was killed may have saved later ones."""
    with np.load(path / "metrics.npz") as metrics:
        return {name: metrics[name][metrics["step"] <= step] for name in metrics}
