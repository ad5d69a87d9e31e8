"""Environments that change from skill to skill, or at given steps."""

import bisect
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.random as jr

from ..envs import AbstractEnv
from ..envs._base import AnyEnv


World = (
    AbstractEnv[Any]
    | Callable[[int], AbstractEnv[Any]]
    | Mapping[int, AbstractEnv[Any]]
)


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

    def next_change(self, step: int) -> int | None:
        """The first later step at which the environment changes within a skill."""
        later = [change for change in self.steps or () if change > step]
        return min(later, default=None)


def make_schedule(world: World, num_skills: int) -> Schedule:
    """The schedule of all environments; a `ValueError` unless they are alike."""
    if isinstance(world, AbstractEnv):
        return Schedule(envs=(world,), steps=None)
    if isinstance(world, Mapping):
        steps = tuple(sorted(world))
        _check_steps(steps)
        schedule = Schedule(envs=tuple(world[step] for step in steps), steps=steps)
    else:
        first = first_env(world)
        later = (world(skill) for skill in range(1, num_skills))
        schedule = Schedule(envs=(first, *later), steps=None)
    _check_alike(schedule.envs)
    return schedule


def first_env(world: World) -> AnyEnv:
    """The environment that is active at first."""
    if isinstance(world, AbstractEnv):
        return world
    if isinstance(world, Mapping):
        _check_steps(sorted(world))
        return world[0]
    if callable(world) and not isinstance(world, type):
        return world(0)
    raise ValueError(
        f"`env` is a {type(world).__name__}; it must be an environment, a function "
        "from a skill's number to one, or a dictionary of them by the environment "
        "step from which each is in force."
    )


def _check_steps(steps: Sequence[int]) -> None:
    if not steps or steps[0] != 0:
        raise ValueError(
            f"`env` says what is in force from the steps {list(steps)}; one of them "
            "must be 0, and none less."
        )


def _check_alike(envs: tuple[AnyEnv, ...]) -> None:
    first = envs[0]
    state = _state_shapes(first)
    for env in envs[1:]:
        if env.spec != first.spec:
            raise ValueError(
                f"`env` changes its `spec` from {first.spec} to {env.spec}; skills can "
                "only go on in environments of the same sizes."
            )
        other = _state_shapes(env)
        if jax.tree.flatten(other) != jax.tree.flatten(state):
            raise ValueError(
                f"`env` changes its state from {eqx.tree_pformat(state)} to "
                f"{eqx.tree_pformat(other)}; training can only go on where structure "
                "and shapes stay the same."
            )


def _state_shapes(env: AnyEnv) -> Any:
    state, _ = eqx.filter_eval_shape(env.reset, key=jr.key(0))
    return state
