"""Which environment is in force."""

import bisect
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax
import jax.random as jr

from ..envs import AbstractEnv


World = (
    AbstractEnv[Any]
    | Callable[[int], AbstractEnv[Any]]
    | Mapping[int, AbstractEnv[Any]]
)


@dataclasses.dataclass(frozen=True)
class Changes:
    """The environments of a world that changes.

    - `envs`: one after another.
    - `steps`: from which each is in force; `None` where each is that of a skill.
    """

    envs: tuple[AbstractEnv[Any], ...]
    steps: tuple[int, ...] | None

    def count(self, *, skill: int, step: int) -> int:
        """How often the world has changed."""
        if self.steps is None:
            return min(skill, len(self.envs) - 1)
        return bisect.bisect_right(self.steps, step) - 1

    def next_step(self, step: int) -> int | None:
        """The first step after this one at which the world changes within a skill."""
        later = [change for change in self.steps or () if change > step]
        return min(later, default=None)


def changes_of(world: World, num_skills: int) -> Changes:
    """All environments there will be; a `ValueError` where they are not alike."""
    if isinstance(world, AbstractEnv):
        return Changes(envs=(world,), steps=None)
    if isinstance(world, Mapping):
        steps = tuple(sorted(world))
        changes = Changes(envs=tuple(world[step] for step in steps), steps=steps)
        _check_steps(steps)
    else:
        first = first_env(world)
        later = (world(skill) for skill in range(1, num_skills))
        changes = Changes(envs=(first, *later), steps=None)
    _check_alike(changes.envs)
    return changes


def first_env(world: World) -> AbstractEnv[Any]:
    """What is in force at first."""
    if isinstance(world, AbstractEnv):
        return world
    if isinstance(world, Mapping):
        _check_steps(sorted(world))
        return world[0]
    if callable(world):
        return world(0)
    raise ValueError(
        f"`env` is a {type(world).__name__}; it must be an environment, a function "
        "from a skill's number to one, or a dictionary of them by the environment "
        "step from which each is in force."
    )


def _check_steps(steps: Any) -> None:
    if not steps or steps[0] != 0:
        raise ValueError(
            f"`env` says what is in force from the steps {list(steps)}; one of them "
            "must be 0, and none less."
        )


def _check_alike(envs: tuple[AbstractEnv[Any], ...]) -> None:
    first = envs[0]
    state = _state(first)
    for env in envs[1:]:
        if env.spec != first.spec:
            raise ValueError(
                f"`env` changes its `spec` from {first.spec} to {env.spec}; skills can "
                "only go on in environments of the same sizes."
            )
        other = _state(env)
        if jax.tree.flatten(other) != jax.tree.flatten(state):
            raise ValueError(
                f"`env` changes its state from {eqx.tree_pformat(state)} to "
                f"{eqx.tree_pformat(other)}; training can only go on where structure "
                "and shapes stay the same."
            )


def _state(env: AbstractEnv[Any]) -> Any:
    state, _ = eqx.filter_eval_shape(env.reset, key=jr.key(0))
    return state
