"""What the agents that have a name are made of."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Literal

import equinox as eqx

from .._agents import (
    SAC,
    TAAC,
    TD3,
    AbstractAgent,
    LinearTrajectory,
    QuadraticTrajectory,
    diayn,
)
from .._skills.prior import (
    AbstractSkillPrior,
    EvenOneHotSkills,
    NormalSkills,
    OneHotSkills,
    SphereSkills,
)
from ..nn import Critic, Deterministic, Gaussian


@dataclasses.dataclass(frozen=True)
class NamedAgent:
    """What is behind the name of an agent."""

    agent_type: type[eqx.Module]
    make_actor: Callable[[tuple[int, ...]], Any] = Gaussian
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    num_windows: int | None = None
    """Elements of a batch by default, where each is a window of several steps."""


AGENTS = {
    "sac": NamedAgent(SAC),
    "td3": NamedAgent(TD3, Deterministic),
    "taac": NamedAgent(TAAC, num_windows=16),
    "taac-l": NamedAgent(
        TAAC, fixed={"trajectory": LinearTrajectory()}, num_windows=16
    ),
    "taac-q": NamedAgent(
        TAAC, fixed={"trajectory": QuadraticTrajectory()}, num_windows=16
    ),
}

_PRIORS = {
    "one-hot": (OneHotSkills, 8),
    "even": (EvenOneHotSkills, 8),
    "sphere": (SphereSkills, 2),
    "normal": (NormalSkills, 2),
}


@dataclasses.dataclass(frozen=True)
class Skills:
    """Which skills are learnt, and how."""

    agent: str = "sac"
    """Agent that learns them: sac, td3, taac, taac-l or taac-q."""

    skills: Literal["one-hot", "even", "sphere", "normal"] = "one-hot"
    """One of a number, drawn or laid evenly over environments; or real vectors."""

    num_skills: int | None = None
    """How many skills, by default 8; of vectors their dimensions, by default 2."""

    descriptor: Literal["state_descriptor", "observation"] = "state_descriptor"
    """What of a state the discriminator is shown."""

    discriminator_lr: float = 1e-3
    """Learning rate of the discriminator."""

    environment_weight: float | None = None
    """Weight of the environment's own reward; None leaves it out."""

    include_prior: bool = True
    """Subtract the logarithm of the skill's probability from the reward."""

    def make_prior(self) -> AbstractSkillPrior:
        make, default = _PRIORS[self.skills]
        return make(default if self.num_skills is None else self.num_skills)


def make_agent(
    name: str,
    options: Mapping[str, Any],
    skills: Skills | None,
    hidden_sizes: tuple[int, ...],
) -> AbstractAgent[Any, Any, Any]:
    """An agent by its name; `diayn` is around the one that `skills` names."""
    if skills is not None:
        prior = skills.make_prior()
        factory: Any = prior.make_discriminator
        return diayn(
            make_agent(skills.agent, options, None, hidden_sizes),
            prior,
            lr=skills.discriminator_lr,
            descriptor=skills.descriptor,
            include_prior=skills.include_prior,
            environment_weight=skills.environment_weight,
            make_network=dataclasses.replace(factory, hidden_sizes=hidden_sizes),
        )
    named = AGENTS[name]
    make: Any = named.agent_type
    return make(
        **options,
        **named.fixed,
        make_actor=named.make_actor(hidden_sizes),
        make_critic=Critic(hidden_sizes),
    )


def check_agent(name: str, skills: Skills | None) -> None:
    """Raises a `ValueError` where there is no such agent."""
    if (name == "diayn") != (skills is not None):
        raise ValueError(f"`agent={name!r}` and `skills={skills!r}` do not fit.")
    inner = name if skills is None else skills.agent
    if inner not in AGENTS:
        raise ValueError(f"`agent={inner!r}` must be one of {list(AGENTS)}.")
    if skills is not None and skills.skills not in _PRIORS:
        raise ValueError(f"`skills={skills.skills!r}` must be one of {list(_PRIORS)}.")
