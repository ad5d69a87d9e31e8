"""Whether an agent and its reward mean the same skills."""

import equinox as eqx
import jax
import jax.core
import numpy as np
from jaxtyping import Array, Float

from ..._rewards import Discriminator
from ..._rewards.base import AnyReward
from ..._skills.prior import (
    AbstractSkillPrior,
    EvenOneHotSkills,
    OneHotSkills,
    OneSkill,
)
from ..base import AnyAgent
from .base import AbstractWrapper
from .skill_conditioned import SkillConditioned


_ONE_HOT = (OneHotSkills, EvenOneHotSkills)


def check_same_skills(agent: AnyAgent, reward: AnyReward) -> None:
    """Raises a `ValueError` if a `Discriminator` has other skills than the agent.

    Kinds and static fields are compared always, arrays such as weights where both are
    concrete.
    """
    while not isinstance(agent, SkillConditioned):
        if not isinstance(agent, AbstractWrapper):
            return
        agent = agent.inner
    for part in jax.tree.leaves(reward, is_leaf=_is_discriminator):
        if not isinstance(part, Discriminator):
            continue
        if not _are_same(agent.skills, part.skills):
            raise ValueError(
                f"The skills of the agent are {agent.skills}, those of its "
                f"`Discriminator` {part.skills}: its reward would be wrong. Give both "
                "the same prior, as `eqrl.diayn` does, and change its weights in both."
            )


def _is_discriminator(part: object) -> bool:
    return isinstance(part, Discriminator)


def _are_same(first: AbstractSkillPrior, second: AbstractSkillPrior) -> bool:
    if isinstance(first, OneSkill) and first.size == second.size:
        # One of the skills of the discriminator, to look at.
        return True
    if isinstance(first, _ONE_HOT) and isinstance(second, _ONE_HOT):
        # Skills in turn are as likely as skills that are drawn evenly.
        return first.size == second.size and _agree(_shares(first), _shares(second))
    leaves, structure = jax.tree.flatten(first)
    others, other_structure = jax.tree.flatten(second)
    return structure == other_structure and all(map(_agree, leaves, others))


def _shares(prior: AbstractSkillPrior) -> Float[Array | np.ndarray, "*stack skill"]:
    if not isinstance(prior, OneHotSkills) or prior.weights is None:
        return np.full(prior.size, 1 / prior.size)
    if isinstance(prior.weights, jax.core.Tracer):
        return prior.weights
    weights = np.asarray(prior.weights)
    return weights / weights.sum(axis=-1, keepdims=True)


def _agree(first: object, second: object) -> bool:
    """Whether two leaves are equal, or one of them is not known yet."""
    if not (eqx.is_array_like(first) and eqx.is_array_like(second)):
        return first is second or first == second
    if any(isinstance(leaf, jax.core.Tracer) for leaf in (first, second)):
        return True
    return np.allclose(np.asarray(first), np.asarray(second))
