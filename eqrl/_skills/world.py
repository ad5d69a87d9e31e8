"""Which environment is in force."""

import bisect
from collections.abc import Callable, Mapping
from typing import Any

import equinox as eqx
import jax.random as jr

from .._check import check_same_shapes
from ..envs import AbstractEnv


World = (
    AbstractEnv[Any]
    | Callable[[int], AbstractEnv[Any]]
    | Mapping[int, AbstractEnv[Any]]
)


def check_world(world: World) -> None:
    """Raises a `ValueError` where `world` does not say what is in force at first."""
    if isinstance(world, Mapping):
        if 0 not in world or any(step < 0 for step in world):
            raise ValueError(
                f"`env` says what is in force from the steps {sorted(world)}; one of "
                "them must be 0, and none less."
            )
    elif not (isinstance(world, AbstractEnv) or callable(world)):
        raise ValueError(
            f"`env` is a {type(world).__name__}; it must be an environment, a function "
            "from a skill's number to one, or a dictionary of them by the environment "
            "step from which each is in force."
        )


def change_at(world: World, *, skill: int, step: int) -> int:
    """How often the world has changed."""
    if isinstance(world, Mapping):
        return bisect.bisect_right(sorted(world), step) - 1
    return 0 if isinstance(world, AbstractEnv) else skill


def next_change(world: World, *, step: int) -> int | None:
    """The first step after this one at which the world changes within a skill."""
    if not isinstance(world, Mapping):
        return None
    later = [change for change in world if change > step]
    return min(later, default=None)


def env_after(world: World, num_changes: int) -> AbstractEnv[Any]:
    """What is in force after so many changes, which must be like what was at first."""
    if isinstance(world, AbstractEnv):
        return world
    if isinstance(world, Mapping):
        env, first = world[sorted(world)[num_changes]], world[0]
    else:
        env, first = world(num_changes), world(0)
    if env.spec != first.spec:
        raise ValueError(
            f"`env` changes its `spec` from {first.spec} to {env.spec}; skills can "
            "only go on in environments of the same sizes."
        )
    states = [eqx.filter_eval_shape(x.reset, key=jr.key(0)) for x in (first, env)]
    check_same_shapes("env", *states)
    return env
