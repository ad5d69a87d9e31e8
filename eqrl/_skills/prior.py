"""Where skills come from."""

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Generic

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import check_integer
from .._types.custom_types import Extras
from ..nn import (
    CategoricalDiscriminator,
    NormalDiscriminator,
    VonMisesFisherDiscriminator,
)
from ..nn._skill_distribution import log_sphere_area


MakeDiscriminator = Callable[..., Any]
"""A factory `(descriptor_size, skill_size, *, key)` of an
`eqrl.nn.SkillDiscriminator`."""


class SkillExtras(eqx.Module, Generic[Extras]):
    """What is stored beside a transition: its skill, and what the agent asked for."""

    skill: Float[Array, "*batch skill"]
    agent: Extras


class AbstractSkillPrior(eqx.Module):
    """A distribution from which a skill, a vector, is drawn for each episode."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Length of a skill."""

    @property
    @abstractmethod
    def make_discriminator(self) -> MakeDiscriminator:
        """The factory of discriminators that fits such skills."""

    @abstractmethod
    def sample(
        self, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> Float[Array, " skill"]:
        """Draws a skill for the environment `index`."""

    @abstractmethod
    def log_prob(self, skill: Float[Array, " skill"]) -> Float[Array, ""]:
        """Logarithm of the probability of a skill, or of its density."""

    @abstractmethod
    def check_num_envs(self, num_envs: int) -> None:
        """Raises a `ValueError` where skills cannot be laid over that many."""


class OneHotSkills(AbstractSkillPrior):
    """A number of skills, drawn anew for each episode.

    Weights are a leaf. So one skill can be chosen in an agent that is there by giving
    all others the weight 0 with `equinox.tree_at`.
    """

    num_skills: int = eqx.field(static=True)
    weights: Float[Array, " skill"] | None

    def __init__(
        self,
        num_skills: int,
        weights: Sequence[float] | Float[np.ndarray | Array, " skill"] | None = None,
    ) -> None:
        """**Arguments:**

        - `num_skills`: at least 2.
        - `weights`: of each skill, at least 0 and not all 0; they are scaled to a sum
            of 1. `None` makes all equally likely, and is no leaf.
        """
        check_integer("num_skills", num_skills, least=2)
        self.num_skills = int(num_skills)
        self.weights = None
        if weights is not None:
            self.weights = jnp.asarray(weights, dtype=jnp.result_type(float))

    def __check_init__(self) -> None:
        if self.weights is None:
            return
        if self.weights.shape != (self.num_skills,):
            raise ValueError(
                f"`weights` has shape {self.weights.shape}, but there are `num_skills="
                f"{self.num_skills}`; give one number for each skill."
            )
        if isinstance(self.weights, jax.core.Tracer):
            return
        weights = np.asarray(self.weights)
        allowed = np.isfinite(weights) & (weights >= 0)
        if not (allowed.all() and weights.any()):
            raise ValueError(
                f"`weights={weights.tolist()}` must be finite, at least 0, and not all "
                "0."
            )

    @property
    def size(self) -> int:
        return self.num_skills

    @property
    def make_discriminator(self) -> MakeDiscriminator:
        return CategoricalDiscriminator()

    def sample(
        self, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> Float[Array, " skill"]:
        del index
        if self.weights is None:
            chosen = jr.randint(key, (), 0, self.num_skills)
        else:
            chosen = jr.categorical(key, jnp.log(self.weights))
        return jax.nn.one_hot(chosen, self.num_skills)

    def log_prob(self, skill: Float[Array, " skill"]) -> Float[Array, ""]:
        if self.weights is None:
            return jnp.full((), -math.log(self.num_skills))
        # The product first: 0 * log 0 is not 0.
        return jnp.log(jnp.dot(skill, self.weights) / jnp.sum(self.weights))

    def check_num_envs(self, num_envs: int) -> None:
        del num_envs


class EvenOneHotSkills(AbstractSkillPrior):
    """A number of skills laid out evenly: environment i always has skill i modulo it.

    Every skill is then always at work in as many environments as any other.
    """

    num_skills: int = eqx.field(static=True)

    def __check_init__(self) -> None:
        check_integer("num_skills", self.num_skills, least=2)

    @property
    def size(self) -> int:
        return self.num_skills

    @property
    def make_discriminator(self) -> MakeDiscriminator:
        return CategoricalDiscriminator()

    def sample(
        self, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> Float[Array, " skill"]:
        del key
        return jax.nn.one_hot(index % self.num_skills, self.num_skills)

    def log_prob(self, skill: Float[Array, " skill"]) -> Float[Array, ""]:
        del skill
        return jnp.full((), -math.log(self.num_skills))

    def check_num_envs(self, num_envs: int) -> None:
        if num_envs % self.num_skills != 0:
            raise ValueError(
                f"`num_envs={num_envs}` environments cannot share `num_skills="
                f"{self.num_skills}` skills evenly; make it a multiple of "
                f"{self.num_skills}, such as "
                f"{-(-num_envs // self.num_skills) * self.num_skills}, or use "
                "`OneHotSkills`, which draws them."
            )


EvenOneHotSkills.__init__.__doc__ = """**Arguments:**

- `num_skills`: at least 2; the number of environments must be a multiple of it.
"""


class SphereSkills(AbstractSkillPrior):
    """Directions: skills on the unit sphere, all equally likely."""

    num_dimensions: int = eqx.field(default=2, static=True)

    def __check_init__(self) -> None:
        check_integer("num_dimensions", self.num_dimensions, least=2)

    @property
    def size(self) -> int:
        return self.num_dimensions

    @property
    def make_discriminator(self) -> MakeDiscriminator:
        return VonMisesFisherDiscriminator()

    def sample(
        self, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> Float[Array, " skill"]:
        del index
        direction = jr.normal(key, (self.num_dimensions,))
        return direction / jnp.linalg.norm(direction)

    def log_prob(self, skill: Float[Array, " skill"]) -> Float[Array, ""]:
        del skill
        return jnp.full((), -log_sphere_area(self.num_dimensions))

    def check_num_envs(self, num_envs: int) -> None:
        del num_envs


SphereSkills.__init__.__doc__ = """**Arguments:**

- `num_dimensions`: of the space, so the length of a skill; at least 2, which is the
    circle.
"""


class NormalSkills(AbstractSkillPrior):
    """Skills anywhere in space, each element standard normal."""

    num_dimensions: int = eqx.field(default=2, static=True)

    def __check_init__(self) -> None:
        check_integer("num_dimensions", self.num_dimensions, least=1)

    @property
    def size(self) -> int:
        return self.num_dimensions

    @property
    def make_discriminator(self) -> MakeDiscriminator:
        return NormalDiscriminator()

    def sample(
        self, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> Float[Array, " skill"]:
        del index
        return jr.normal(key, (self.num_dimensions,))

    def log_prob(self, skill: Float[Array, " skill"]) -> Float[Array, ""]:
        return -0.5 * jnp.sum(skill**2 + math.log(2 * math.pi))

    def check_num_envs(self, num_envs: int) -> None:
        del num_envs


NormalSkills.__init__.__doc__ = """**Arguments:**

- `num_dimensions`: length of a skill, at least 1.
"""


class OneSkill(AbstractSkillPrior):
    """Always the same skill, for looking at it in an agent that has learnt several."""

    skill: Float[Array, " skill"]

    @property
    def size(self) -> int:
        return self.skill.shape[0]

    @property
    def make_discriminator(self) -> MakeDiscriminator:
        raise ValueError("There is nothing to tell apart where there is `OneSkill`.")

    def sample(
        self, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> Float[Array, " skill"]:
        del index, key
        return self.skill

    def log_prob(self, skill: Float[Array, " skill"]) -> Float[Array, ""]:
        del skill
        return jnp.zeros(())

    def check_num_envs(self, num_envs: int) -> None:
        del num_envs


OneSkill.__init__.__doc__ = """**Arguments:**

- `skill`: a vector as long as the agent's skills.
"""


def as_skill_prior(skills: Any) -> AbstractSkillPrior:
    """A prior as it is; a number as that many one-hot skills."""
    if isinstance(skills, AbstractSkillPrior):
        return skills
    if isinstance(skills, (int, np.integer)) and not isinstance(skills, bool):
        return OneHotSkills(int(skills))
    raise ValueError(
        f"`skills={skills!r}` must be a prior, such as `eqrl.OneHotSkills(8)`, or the "
        "number of one-hot skills."
    )
