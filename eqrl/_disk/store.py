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

from .._agents import AbstractAgent, Intrinsic
from .._pytree.stack import empty_stack, put_element, stack_size, take_element
from .._storage.checkpoint import Directory, restore, save
from .._storage.replace import replacing
from .._training.rows import steps_taken
from .._training.solution import History
from .._training.trainer import Trainer
from .checks import incremental_of
from .learn import first_skills
from .library import Skills
from .world import World, first_env


@dataclasses.dataclass(frozen=True)
class _Sizes:
    """Without which the shapes of what was saved are not known.

    `digests` tell the skills of one library from those of another.
    """

    digests: list[str]
    capacity: int
    past_capacity: int


def save_skills(directory: Directory, skills: Skills[Any]) -> None:
    """Saves a library of skills, with all that is needed to go on learning.

    Each skill has a folder in `directory/skills` that is written once: a skill that is
    learnt does not change. What goes on is in `directory/training`, of which only the
    latest is kept, the metrics in `directory/metrics.npz`. What was saved before stays
    whole if this is killed midway.

    **Arguments:**

    - `directory`: made where it does not exist. It takes one library, as often as it
        grows.
    - `skills`: from `eqrl.learn_skills`, or as its callback is given them.
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
            # Saving it was the last that was done, and `training` does not know of it.
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
    with replacing(path / f"sizes_{number}.json") as file:
        file.write_text(json.dumps(dataclasses.asdict(sizes)) + "\n")
    save(path / "training", number, skills.training)
    for each in earlier:
        shutil.rmtree(path / "training" / str(each))
        (path / f"sizes_{each}.json").unlink(missing_ok=True)


def load_skills(
    directory: Directory,
    agent: AbstractAgent[Any, Any, Any],
    env: World,
    trainer: Trainer | None = None,
) -> Skills[Any]:
    """Loads what `save_skills` saved.

    ```python
    skills = eqrl.load_skills("library", agent, env, trainer)
    eqrl.learn_skills(agent, env, trainer, ..., initial=skills)
    ```

    **Arguments:**

    - `directory`: as given to `save_skills`.
    - `agent`, `env`, `trainer`: with which the skills were learnt. Without a trainer
        they can be used, and none added.

    Raises a `ValueError` where there are no skills, and where what was saved does not
    fit, saying what.
    """
    reward = incremental_of(agent)
    assert isinstance(agent, Intrinsic)
    path = Path(directory)
    sizes = _read_sizes(path)
    states = empty_stack(_like(agent, env), sizes.capacity)
    for index in range(len(sizes.digests)):
        _, state = load_skill(directory, agent, env, index)
        states = put_element(states, state, jnp.asarray(index, int))
    count = jnp.asarray(len(sizes.digests), int)
    if trainer is None:
        return Skills(states=states, count=count)
    agent = dataclasses.replace(
        agent,
        reward=dataclasses.replace(reward, past_capacity=sizes.past_capacity),
    )
    like = eqx.filter_eval_shape(
        first_skills, agent, first_env(env), trainer, capacity=1, key=jr.key(0)
    )
    training = restore(path / "training", like.training)
    assert training is not None
    step = int(training.earlier_steps) + steps_taken(trainer, training.counts)
    return Skills(
        states=states,
        count=count,
        training=training,
        metrics=_read_metrics(path, step),
    )


def load_skill(
    directory: Directory, agent: AbstractAgent[Any, Any, Any], env: World, index: int
) -> tuple[AbstractAgent[Any, Any, Any], Any]:
    """Loads one skill of a library, as `eqrl.pick_skill` takes it out.

    **Arguments:**

    - `directory`: as given to `eqrl.save_skills`.
    - `agent`, `env`: with which it was learnt.
    - `index`: which one, from 0.

    Raises a `ValueError` where there is no such skill, and where it does not fit.
    """
    incremental_of(agent)
    assert isinstance(agent, Intrinsic)
    path = Path(directory)
    count = len(_read_sizes(path).digests)
    if not 0 <= index < count:
        raise ValueError(
            f"`index={index}` is not a skill; `{directory}` holds {count} skills"
            + (f", 0 to {count - 1}." if count > 0 else ".")
        )
    return agent.agent, restore(path / "skills", _like(agent, env), step=index)


def _like(agent: Intrinsic[Any, Any, Any, Any], env: World) -> Any:
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
    """The same for states that are equal to the last bit only."""
    sha = hashlib.sha256()
    for leaf in jax.tree.leaves(eqx.filter(state, eqx.is_array)):
        array = np.asarray(leaf)
        sha.update(f"{array.dtype}{array.shape}".encode() + array.tobytes())
    return sha.hexdigest()


def _write_metrics(path: Path, metrics: History) -> None:
    path.mkdir(parents=True, exist_ok=True)
    with replacing(path / "metrics.npz") as file, open(file, "wb") as stream:
        np.savez(stream, allow_pickle=False, **metrics)


def _read_metrics(path: Path, step: int) -> History:
    """Those up to a step: they are written before the training that they are of."""
    with np.load(path / "metrics.npz") as metrics:
        return {name: metrics[name][metrics["step"] <= step] for name in metrics}
