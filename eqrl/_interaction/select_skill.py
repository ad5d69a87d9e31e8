from typing import Literal

import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._agents.base import AbstractAgent
from .._agents.wrappers.skills import prior_of
from .._pytree.fields import PositiveInt, checked
from .._skills.prior import SphereSkills
from .._types.custom_types import EnvState, Extras, Memory, State
from ..envs import AbstractEnv
from .evaluate_skills import evaluate_skills


@checked
def select_skill(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    *,
    num_skills: PositiveInt,
    num_episodes: PositiveInt,
    key: PRNGKeyArray,
    method: Literal["best", "regression"] = "best",
) -> tuple[Float[Array, " skill"], Float[Array, "skills episodes"]]:
    """Picks a skill for the task of an environment, by trying several.

    Nothing is learned: skills that were learned without a reward are played greedily,
    and their returns compared. `eqrl.fix_skill` then makes an agent from the picked
    skill, to play it or, unless it is a `CSF`, to continue training from it.

    **Arguments:**

    - `agent`, `state`: an agent with skills, in any nesting of wrappers, and its state.
    - `env`: the task. Only its reward may differ from where the skills were learned.
    - `num_skills`: how many skills are tried, at least 1. Those of `EvenOneHotSkills`
        are taken in turn; all others are drawn from the prior.
    - `num_episodes`: episodes of each skill, at least 1.
    - `key`: for the skills, the actions and the environments.
    - `method`: `"best"` picks the skill with the greatest mean return. `"regression"`
        fits a plane to the returns and picks the direction in which it rises, which
        need not be one that was tried: for `SphereSkills`, whose opposite directions
        lead to opposite places. If all mean returns are equal, it picks the first
        skill.

    **Returns:**

    The skill, and the returns of all that were tried, the best first.

    Raises a `ValueError` if the agent has no skills, if the environment's reward is a
    vector, or if `method` does not fit the skills.
    """
    prior = prior_of(agent)
    if env.spec.reward_size is not None:
        raise ValueError(
            f"`select_skill` compares returns, but `spec.reward_size="
            f"{env.spec.reward_size}`: rewards are vectors. Make them scalars in the "
            "environment."
        )
    if method == "regression" and not (
        isinstance(prior, SphereSkills) and num_skills > prior.size
    ):
        raise ValueError(
            f"`method='regression'` fits a plane to the returns of more skills than "
            f"they have dimensions, of `SphereSkills`; the skills are {prior}, and "
            f"`num_skills={num_skills}`. Take `method='best'`, or try more of them."
        )
    played = evaluate_skills(
        agent, state, env, num_episodes=num_episodes, key=key, skills=int(num_skills)
    )
    means = jnp.mean(played.returns, axis=1)
    order = jnp.argsort(-means)
    skills, returns = played.skills[order], played.returns[order]
    if method == "best":
        return skills[0], returns
    inputs = jnp.concatenate([skills, jnp.ones((len(skills), 1))], axis=1)
    slope = jnp.linalg.lstsq(inputs, means[order])[0][:-1]
    # Equal returns, such as 0 of all skills, prefer no direction.
    slope = jnp.where(jnp.ptp(means) > 0, slope, skills[0])
    return slope / jnp.linalg.norm(slope), returns
