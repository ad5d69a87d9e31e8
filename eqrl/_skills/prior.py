"""Distributions of skills."""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeAlias

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.fields import (
    Count,
    check_fields,
    check_vector,
    checked_by,
    converted,
    hyperparameter,
    shown,
    static_integer,
)
from .._pytree.tree import show_values
from .._types.custom_types import Extras, FloatLike
from ..nn import (
    CategoricalDiscriminator,
    MakeDiscriminator,
    NormalDiscriminator,
    VonMisesFisherDiscriminator,
)
from ..nn._discriminator import log_sphere_area


class SkillExtras(eqx.Module, Generic[Extras]):
    """Extras of `SkillConditioned`: the skill and the agent's own extras."""

    skill: Float[Array, "*batch skill"]
    agent: Extras


SkillExtras.__init__.__doc__ = """**Arguments:**

- `skill`: the skill with which the agent acted.
- `agent`: the extras of the agent inside.
"""


class AbstractSkillPrior(eqx.Module):
    """A distribution of skills, vectors drawn when an episode begins."""

    def __check_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        return show_values(self)

    @property
    @abstractmethod
    def size(self) -> int:
        """Length of a skill."""

    @property
    @abstractmethod
    def make_discriminator(self) -> MakeDiscriminator:
        """The default factory of discriminators for these skills."""

    @abstractmethod
    def sample(
        self, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> Float[Array, " skill"]:
        """Draws a skill for the environment `index`."""

    @abstractmethod
    def log_prob(self, skill: Float[Array, " skill"]) -> Float[Array, ""]:
        """Log-probability of a skill, or its log-density."""


class OneHotSkills(AbstractSkillPrior):
    """One-hot skills, drawn anew for each episode.

    The weights are a leaf, so `equinox.tree_at` can choose one skill of an existing
    agent by setting all other weights to 0. To train with other weights, set those of
    its `Discriminator` too.
    """

    num_skills: Count = static_integer(least=2)
    weights: Float[Array, " skill"] | None = None

    def __init__(
        self,
        num_skills: int,
        weights: Sequence[float | int]
        | Float[np.ndarray | Array, " skill"]
        | None = None,
    ) -> None:
        """**Arguments:**

        - `num_skills`: at least 2.
        - `weights`: one for each skill, at least 0 and not all 0; only their ratios
            matter. With `None` all skills are equally likely and there is no leaf.
        """
        self.num_skills = num_skills
        self.weights = None
        if weights is not None:
            self.weights = converted(
                "weights",
                lambda given: jnp.asarray(given, dtype=jnp.result_type(float)),
                weights,
                "must be numbers, one for each skill.",
            )

    def __check_init__(self) -> None:
        if self.weights is None:
            return
        if self.weights.shape != (self.num_skills,):
            raise ValueError(
                f"`weights` has shape {self.weights.shape}, but there are `num_skills="
                f"{shown(self.num_skills)}`; give one number for each skill."
            )
        # Traced weights, as in a population, have no values to check.
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


class EvenOneHotSkills(AbstractSkillPrior):
    """One-hot skills, assigned to the environments in turn.

    Environment i always has skill `i % num_skills`, so the numbers of environments of
    two skills differ by at most one. With fewer environments than skills, the last
    skills are never trained.
    """

    num_skills: Count = static_integer(least=2)

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
        # In turn rather than drawn, so that no skill is short of data by chance.
        return jax.nn.one_hot(index % self.num_skills, self.num_skills)

    def log_prob(self, skill: Float[Array, " skill"]) -> Float[Array, ""]:
        del skill
        return jnp.full((), -math.log(self.num_skills))


EvenOneHotSkills.__init__.__doc__ = """**Arguments:**

- `num_skills`: at least 2. If the number of environments is not a multiple of it, some
    skills have one more environment than others.
"""


AnyOneHotSkills: TypeAlias = OneHotSkills | EvenOneHotSkills
"""Skills that are choices among a number of them."""


class SphereSkills(AbstractSkillPrior):
    """Skills uniformly distributed on the unit sphere."""

    num_dimensions: int = static_integer(2, least=2)

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
        # A normal vector is equally likely to point in any direction.
        direction = jr.normal(key, (self.num_dimensions,))
        return direction / jnp.linalg.norm(direction)

    def log_prob(self, skill: Float[Array, " skill"]) -> Float[Array, ""]:
        del skill
        return jnp.full((), -log_sphere_area(self.num_dimensions))


SphereSkills.__init__.__doc__ = """**Arguments:**

- `num_dimensions`: length of a skill, at least 2 (a circle).
"""


class NormalSkills(AbstractSkillPrior):
    """Skills with independent standard normal elements."""

    num_dimensions: int = static_integer(2, least=1)

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


NormalSkills.__init__.__doc__ = """**Arguments:**

- `num_dimensions`: length of a skill, at least 1.
"""


class UniformSkills(AbstractSkillPrior):
    """Skills uniformly distributed in a cube, from `low` to `high` in each element."""

    num_dimensions: int = static_integer(2, least=1)
    low: FloatLike = hyperparameter(-1.0)
    high: FloatLike = hyperparameter(1.0)

    def __check_init__(self) -> None:
        check_fields(self)
        bounds = (self.low, self.high)
        if any(isinstance(bound, jax.core.Tracer) for bound in bounds):
            return
        if float(self.low) >= float(self.high):
            raise ValueError(f"`low={self.low}` must be less than `high={self.high}`.")

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
        share = jr.uniform(key, (self.num_dimensions,))
        return self.low + share * (self.high - self.low)

    def log_prob(self, skill: Float[Array, " skill"]) -> Float[Array, ""]:
        is_within = jnp.all((skill >= self.low) & (skill <= self.high))
        density = -self.num_dimensions * jnp.log(self.high - self.low)
        return jnp.where(is_within, density, -jnp.inf)


UniformSkills.__init__.__doc__ = """**Arguments:**

- `num_dimensions`: length of a skill, at least 1.
- `low`, `high`: the bounds of each element.
"""


class OneSkill(AbstractSkillPrior):
    """A single skill, to use one of several that an agent has learned."""

    skill: Float[Array, " skill"] = eqx.field(metadata=checked_by(check_vector))

    @property
    def size(self) -> int:
        return self.skill.shape[0]

    @property
    def make_discriminator(self) -> MakeDiscriminator:
        raise ValueError("With `OneSkill` there is nothing to discriminate.")

    def sample(
        self, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> Float[Array, " skill"]:
        del index, key
        return self.skill

    def log_prob(self, skill: Float[Array, " skill"]) -> Float[Array, ""]:
        del skill
        return jnp.zeros(())


OneSkill.__init__.__doc__ = """**Arguments:**

- `skill`: a vector as long as the agent's skills.
"""


def as_skill_prior(skills: object, name: str = "skills") -> AbstractSkillPrior:
    """Returns a prior unchanged, and turns a number into that many one-hot skills."""
    if isinstance(skills, AbstractSkillPrior):
        return skills
    if isinstance(skills, (int, np.integer)) and not isinstance(skills, bool):
        what = "must be a prior, or a number of one-hot skills that is at least 2."
        return converted(name, OneHotSkills, int(skills), what)
    raise ValueError(
        f"`{name}={shown(skills)}` must be a prior, such as "
        "`eqrl.OneHotSkills(8)`, or the number of one-hot skills."
    )
