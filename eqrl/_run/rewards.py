"""The intrinsic rewards of the command line, and how each is built."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from .._agents.base import AnyAgent
from .._agents.wrappers.intrinsic import Intrinsic, diayn
from .._agents.wrappers.skills import SkillConditioned
from .._pytree.fields import check_choice
from .._rewards.cic import CIC
from .._rewards.dads import DADS
from .._rewards.disagreement import Disagreement
from .._rewards.discriminator import Discriminator
from .._rewards.icm import ICM
from .._rewards.metra import LSD, METRA
from .._rewards.particle_entropy import ParticleEntropy
from .._rewards.rnd import RND
from .._rewards.smerl import SMERL
from .._skills.prior import (
    AbstractSkillPrior,
    AnyOneHotSkills,
    EvenOneHotSkills,
    NormalSkills,
    OneHotSkills,
    SphereSkills,
    UniformSkills,
)
from .._training.replay import MakeReplay, ReplayBuffer
from .agents import default_factories


SkillKind = Literal["one-hot", "even", "sphere", "normal", "uniform"]

# The prior of each kind, and the default of `num_skills`.
_SKILLS: dict[SkillKind, tuple[Callable[[int], AbstractSkillPrior], int]] = {
    "one-hot": (OneHotSkills, 8),
    "even": (EvenOneHotSkills, 8),
    "sphere": (SphereSkills, 2),
    "normal": (NormalSkills, 2),
    "uniform": (functools.partial(UniformSkills, low=0.0, high=1.0), 2),
}

PREFIX = "intrinsic_"
"""The prefix of a reward's options, some of which its agent has too."""


@dataclasses.dataclass(frozen=True)
class LearnerOptions:
    """The agent that learns from an intrinsic reward, and how."""

    agent: str = "sac"
    """Agent that learns from it: any of `eqrl train` but csf, or your own,
    package.module:Class."""

    environment_weight: float | None = None
    """Weight of the environment's own reward; None leaves it out."""

    reward_minibatches: int = 1
    """Updates of the reward for each of the agent, on shares of its batch."""

    score_after_update: bool = False
    """Score a batch by the reward that has just learned from it."""


@dataclasses.dataclass(frozen=True)
class SkillOptions:
    """Skills."""

    skills: SkillKind = "one-hot"
    """Discrete, drawn at random or dealt evenly to environments; or real vectors,
    uniform ones with elements from 0 to 1."""

    num_skills: int | None = None
    """Number of skills, by default 8; of vectors the dimensions, by default 2."""

    resample_every: int | None = None
    """Steps after which a skill is drawn anew; None keeps it for an episode."""

    def make_prior(self) -> AbstractSkillPrior:
        make, default = _SKILLS[self.skills]
        return make(default if self.num_skills is None else self.num_skills)


def skill_of(
    prior: AbstractSkillPrior, given: int | tuple[float, ...]
) -> Float[Array, " skill"]:
    """A skill by its number, if skills are discrete, or by its elements.

    The vector of a skill on a sphere may have any length but 0.
    """
    if isinstance(prior, AnyOneHotSkills):
        if isinstance(given, int) and 0 <= given < prior.size:
            return jnp.eye(prior.size)[given]
        allowed = f"0 to {prior.size - 1}"
    else:
        skill = jnp.array((given,) if isinstance(given, int) else given, float)
        if isinstance(prior, SphereSkills):
            # The square of a length may be too large or too small for a float.
            skill = skill / jnp.max(jnp.abs(skill))
            skill = skill / jnp.linalg.norm(skill)
        is_known = skill.size == prior.size and jnp.all(jnp.isfinite(skill))
        if is_known and prior.log_prob(skill) > -jnp.inf:
            return skill
        allowed = f"vectors from {prior}, each given by its {prior.size} elements"
    raise ValueError(
        f"`skill={given}` is not among the skills of the run, which are {allowed}."
    )


@dataclasses.dataclass(frozen=True)
class DiscriminatorOptions:
    """Discriminator of the skills."""

    descriptor: Literal["state_descriptor", "observation", "both"] = "state_descriptor"
    """Part of a transition that the discriminator is shown."""

    discriminator_lr: float = 3e-4
    """Learning rate of the discriminator."""

    include_prior: bool = True
    """Subtract the logarithm of the skill's probability from the reward."""


class _Encoded(eqx.Module):
    """Whether a reward that may have an encoder has one."""

    encoder: bool = False


_Encoded.__init__.__doc__ = """**Arguments:**

- `encoder`: learn an encoder, and see its features in place of states.
"""


@dataclasses.dataclass(frozen=True)
class NamedReward:
    """An intrinsic reward that has a name, without the options of a run."""

    reward_type: type[Any]
    skills: SkillOptions | None = None
    """Its skills by default; `None` if it teaches none."""

    learner: LearnerOptions = LearnerOptions()
    """Its other defaults."""

    fixed: Mapping[str, object] = dataclasses.field(default_factory=dict)
    """Arguments that are not options; those with `None` keep their defaults."""

    make_replay: MakeReplay = ReplayBuffer
    """Makes the replay of its agent, unless that learns on-policy."""

    parts: tuple[type[eqx.Module], ...] = ()
    """What else has options under its name."""

    function: Callable[..., object] | None = None
    """Documents it, if that is not its class."""

    @property
    def documented(self) -> Callable[..., object]:
        return self.reward_type if self.function is None else self.function


REWARDS = {
    "apt": NamedReward(ParticleEntropy, parts=(_Encoded,)),
    "cic": NamedReward(CIC, SkillOptions("uniform", 64, resample_every=50)),
    "dads": NamedReward(DADS, SkillOptions()),
    "diayn": NamedReward(Discriminator, SkillOptions(), function=diayn),
    "disagreement": NamedReward(Disagreement),
    "icm": NamedReward(ICM, parts=(_Encoded,)),
    "lsd": NamedReward(
        METRA,
        SkillOptions("sphere"),
        fixed=dict.fromkeys(("multiplier_lr", "initial_multiplier", "slack"))
        | {"constraint": "spectral"},
        function=LSD,
    ),
    "metra": NamedReward(METRA, SkillOptions("sphere")),
    "rnd": NamedReward(RND),
    "smerl": NamedReward(
        SMERL,
        SkillOptions(num_skills=5),
        LearnerOptions(environment_weight=1.0),
        parts=(Discriminator,),
        make_replay=functools.partial(ReplayBuffer, episode_returns=True),
    ),
}


SUBTRACTED = ("lsd", "metra")
"""Rewards whose networks stay in float32: a difference would lose its digits."""


def check_reward(
    name: str, learner: LearnerOptions | None, skills: SkillOptions | None
) -> None:
    """Checks that a run has the parts that its name, possibly of a reward, requires."""
    named = REWARDS.get(name)
    if (named is None) != (learner is None):
        raise ValueError(f"`agent={name!r}` and `learner={learner!r}` do not fit.")
    if (named is None or named.skills is None) != (skills is None):
        raise ValueError(f"`agent={name!r}` and `skills={skills!r}` do not fit.")
    if skills is not None:
        check_choice("skills", skills.skills, get_args(SkillKind))


def check_is_rewarded(name: str, learner: LearnerOptions | None, command: str) -> None:
    """Checks that a run whose rewards are to be normalized learns from any."""
    weight = 1.0 if learner is None else learner.environment_weight
    if weight is None or name == "csf" or command == "disk":
        raise ValueError(
            "`normalize_reward` scales the environment's own reward, from which this "
            "run does not learn: leave it out, or give `environment_weight` if the "
            "reward is an intrinsic one."
        )


def make_intrinsic(
    name: str,
    agent: AnyAgent,
    learner: LearnerOptions,
    skills: SkillOptions | None,
    options: Mapping[str, object],
    changes: Mapping[str, Any],
) -> Intrinsic:
    """An agent inside the named reward.

    **Arguments:**

    - `options`: options of the reward, by their names on the command line.
    - `changes`: fields of the factories of its networks, such as `hidden_sizes`.
    """
    named = REWARDS[name]
    given = {x.removeprefix(PREFIX): value for x, value in options.items()}
    given |= {x: value for x, value in named.fixed.items() if value is not None}
    factories = default_factories(named.reward_type)
    positional: Sequence[object] = ()
    if skills is not None:
        prior = skills.make_prior()
        agent = SkillConditioned(agent, prior, skills.resample_every)
        if name in ("diayn", "smerl"):
            factories["make_network"] = prior.make_discriminator
        positional = [prior]
    if name in SUBTRACTED:
        changes = {x: changes[x] for x in changes if x != "precision"}
    networks = {x: dataclasses.replace(y, **changes) for x, y in factories.items()}
    if name == "diayn":
        given["lr"] = given.pop("discriminator_lr")
    elif name == "smerl":
        names = ("lr", "descriptor", "include_prior")
        networks |= {x: given.pop(x) for x in names}
        discriminator = functools.partial(Discriminator, **networks)
        positional, networks = [*map(discriminator, positional)], {}
    elif given.pop("encoder", False):
        networks["make_encoder"] = networks["make_network"]
    reward = named.reward_type(*positional, **given, **networks)
    return Intrinsic(
        agent,
        reward,
        environment_weight=learner.environment_weight,
        reward_minibatches=learner.reward_minibatches,
        score_after_update=learner.score_after_update,
    )
