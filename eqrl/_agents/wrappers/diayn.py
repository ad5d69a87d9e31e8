import optax

from ..._rewards import Discriminator, DiscriminatorState
from ..._rewards.descriptor import StateDescriptor
from ..._skills.prior import (
    AbstractSkillPrior,
    MakeDiscriminator,
    SkillExtras,
    as_skill_prior,
)
from ..._types.custom_types import Extras, FloatLike, MakeOptimizer, Memory, State
from ..base import AbstractAgent
from .intrinsic import Intrinsic
from .skill_conditioned import SkillConditioned, SkillMemory


def diayn(
    agent: AbstractAgent[State, Memory, Extras],
    num_skills: int | AbstractSkillPrior = 8,
    *,
    lr: FloatLike = 3e-4,
    descriptor: StateDescriptor = "state_descriptor",
    include_prior: bool = True,
    environment_weight: FloatLike | None = None,
    make_network: MakeDiscriminator | None = None,
    make_optimizer: MakeOptimizer = optax.adam,
) -> Intrinsic[State, DiscriminatorState, SkillMemory[Memory], SkillExtras[Extras]]:
    """Any agent, learning skills that can be told apart, from no reward.

    It is `Intrinsic(SkillConditioned(agent, skills), Discriminator(skills))`; the paper
    is named there. For observations of mean zero and deviation one, put it inside a
    `Normalized`, or the agent alone.

    The entropy of an agent such as `SAC` competes with the reward, whose size is that
    of `log(num_skills)`: an initial temperature of 0.1 serves short trainings better
    than 1.

    **Arguments:**

    - `agent`: any agent that learns from a scalar reward.
    - `num_skills`: how many one-hot skills, all equally likely, at least 2; or a prior,
        such as `eqrl.SphereSkills()`.
    - The others are those of `Discriminator` and of `Intrinsic`.

    **Returns:**

    An agent like any other.
    """
    skills = as_skill_prior(num_skills)
    reward = Discriminator(
        skills,
        lr=lr,
        descriptor=descriptor,
        include_prior=include_prior,
        make_network=make_network,
        make_optimizer=make_optimizer,
    )
    return Intrinsic(
        SkillConditioned(agent, skills), reward, environment_weight=environment_weight
    )
