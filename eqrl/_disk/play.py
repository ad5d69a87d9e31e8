from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._agents.base import AnyAgent
from .._interaction.rollout import rollout
from .._pytree.fields import reusable_key
from .._rewards import Incremental
from .._rewards.descriptor import as_if_left
from .._skills.trajectories import SkillTrajectories
from .._types.custom_types import EnvState, Extras, Memory, Mode, State
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from .library import Learner, Skills, find_task, pick_skill


def play_skills(
    agent: Learner[State, Memory, Extras],
    skills: Skills[State],
    env: AbstractEnv[EnvState],
    *,
    num_episodes: int,
    key: PRNGKeyArray,
    mode: Mode = "greedy",
    max_steps: int | None = None,
) -> SkillTrajectories:
    """Rolls out each skill of a library, without training.

    **Arguments:**

    - `agent`: with which the skills were learned.
    - `skills`: at least one.
    - `env`: the environment.
    - `num_episodes`: of each skill, at least 1.
    - `key`: for actions and environments.
    - `mode`: how actions are picked.
    - `max_steps`: the most steps of an episode; `None` takes `env.spec.max_steps`.

    **Returns:**

    The trajectories of the descriptor of `eqrl.Incremental`, with a leading axis for
    the skills there are. `eqrl.draw_skills` draws them.

    Raises a `ValueError` if there are no skills, or no limit to an episode.
    """
    key = reusable_key(key)
    reward = find_task(agent).reward
    count = int(skills.count)
    if count == 0:
        raise ValueError("`skills` holds none yet; learn one first.")
    trajectories = []
    for index, skill_key in enumerate(jr.split(key, count)):
        inner, state = pick_skill(agent, skills, index)
        trajectories.append(
            _play(
                inner, state, env, reward, num_episodes, mode, max_steps, key=skill_key
            )
        )
    descriptors, mask, first = jax.tree.map(lambda *x: jnp.stack(x), *trajectories)
    return SkillTrajectories(
        descriptors=descriptors, mask=mask, first_descriptors=first
    )


@eqx.filter_jit
def _play(
    agent: AnyAgent,
    state: Any,
    env: AnyEnv,
    reward: Incremental,
    num_episodes: int,
    mode: Mode,
    max_steps: int | None,
    *,
    key: PRNGKeyArray,
) -> tuple[
    Float[Array, "episodes time descriptor"],
    Bool[Array, "episodes time"],
    Float[Array, "episodes descriptor"],
]:
    transitions, mask = rollout(
        agent,
        state,
        env,
        num_episodes=num_episodes,
        key=key,
        mode=mode,
        max_steps=max_steps,
    )
    first = jax.tree.map(lambda x: x[:, 0], as_if_left(transitions))
    return reward.descriptors(transitions), mask, reward.descriptors(first)
