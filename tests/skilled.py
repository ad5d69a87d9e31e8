"""Transitions with skills, and with descriptors."""

import dataclasses
from typing import Any

import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

import eqrl

from .toy import Compass, random_transitions


MAX_STEPS = 3


def described_transitions(
    random: np.random.Generator, *shape: int
) -> eqrl.Transition[None]:
    """With leading axes of these sizes, the last of them time, up to `MAX_STEPS`."""
    # In NumPy, which compiles nothing.
    normal = lambda size: jnp.asarray(random.normal(size=(*shape, size)), float)
    timestep = np.arange(np.prod(shape)).reshape(shape) % MAX_STEPS
    return eqrl.Transition(
        observation=normal(4),
        action=normal(2),
        reward=normal(1)[..., 0],
        next_observation=normal(4),
        terminated=jnp.asarray(timestep == 2),
        truncated=jnp.asarray(timestep == -1),
        timestep=jnp.asarray(timestep, int),
        state_descriptor=normal(2),
        next_state_descriptor=normal(2),
        extras=None,
    )


def skill_transitions(
    key: PRNGKeyArray,
    *,
    skill: Float[Array, "batch skill"],
    observation_size: int = 4,
) -> eqrl.Transition[eqrl.SkillExtras[None]]:
    """A batch in which these skills were at work; descriptors have two elements."""
    size = skill.shape[0]
    batch_key, descriptor_key = jr.split(key)
    batch: eqrl.Transition[Any] = random_transitions(
        batch_key, size, observation_size=observation_size, action_size=2
    )
    descriptors = jr.normal(descriptor_key, (2, size, 2))
    return dataclasses.replace(
        batch,
        state_descriptor=descriptors[0],
        next_state_descriptor=descriptors[1],
        extras=eqrl.SkillExtras(skill=skill, agent=None),
    )


def specs_of_begin(monkeypatch: pytest.MonkeyPatch) -> list[eqrl.EnvSpec]:
    """What `Compass` is told of the environments in which it begins, as it goes on."""
    specs: list[eqrl.EnvSpec] = []

    def begin(self: Compass, state: Any, spec: eqrl.EnvSpec, **options: Any) -> None:
        del self, state, options
        specs.append(spec)

    monkeypatch.setattr(Compass, "begin", begin)
    return specs
