import optax

from ..._rewards import Discriminator, DiscriminatorState
from ..._rewards.descriptor import StateDescriptor
from ..._skills.prior import (
    AbstractSkillPrior,
    SkillExtras,
    as_skill_prior,
)
from ..._types.custom_types import Extras, FloatLike, MakeOptimizer, Memory, State
from ...nn import MakeDiscriminator
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
    reward_minibatches: int = 1,
) -> Intrinsic[State, DiscriminatorState, SkillMemory[Memory], SkillExtras[Extras]]:
    """Makes any agent learn distinguishable skills without the environment's reward.

    It is `Intrinsic(SkillConditioned(agent, skills), Discriminator(skills))`; see
    `Discriminator` for the paper. To normalize observations, put the result, or only
    the agent, inside a `Normalized`.

    The entropy bonus of an agent such as `SAC` competes with the reward, which is of
    the order of `log(num_skills)`: for short training an initial temperature of 0.1
    works better than 1.

    **Arguments:**

    - `agent`: any agent that learns from a scalar reward.
    - `num_skills`: the number of one-hot skills, all equally likely, at least 2; or a
        prior, such as `eqrl.SphereSkills()`.
    - The other arguments are those of `Discriminator` and `Intrinsic`.

    **Returns:**

    An agent like any other.
    """
    skills = as_skill_prior(num_skills, name="num_skills")
    reward = Discriminator(
        skills,
        lr=lr,
        descriptor=descriptor,
        include_prior=include_prior,
        make_network=make_network,
        make_optimizer=make_optimizer,
    )
    return Intrinsic(
        SkillConditioned(agent, skills),
        reward,
        environment_weight=environment_weight,
        reward_minibatches=reward_minibatches,
    )
