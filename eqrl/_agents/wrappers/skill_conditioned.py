import dataclasses
from typing import Any, Generic

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._skills.prior import AbstractSkillPrior, SkillExtras, as_skill_prior
from ..._types.custom_types import Extras, Memory, Metrics, Mode, State
from ..._types.data import EnvSpec, Transition
from ..base import AbstractAgent


class SkillMemory(eqx.Module, Generic[Memory]):
    """An episode's skill, and the agent's own memory."""

    skill: Float[Array, " skill"]
    agent: Memory


class SkillConditioned(AbstractAgent[State, SkillMemory[Memory], SkillExtras[Extras]]):
    """Any agent that is told, beside the observation, which skill it is to show.

    A skill is drawn from a prior as an episode begins and kept to its end. The replay
    holds it once for each transition; it is joined to the observations where they are
    used. What is learnt is the agent's own state, for observations that are longer by
    the skill.
    """

    agent: AbstractAgent[State, Memory, Extras]
    skills: AbstractSkillPrior = eqx.field(converter=as_skill_prior)

    @property
    def sequence_length(self) -> int:
        return self.agent.sequence_length

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> State:
        return self.agent.init(with_skill_size(spec, self.skills.size), key=key)

    def begin(
        self, state: State, spec: EnvSpec, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> SkillMemory[Memory]:
        skill_key, agent_key = jr.split(key)
        spec = with_skill_size(spec, self.skills.size)
        return SkillMemory(
            skill=self.skills.sample(index=index, key=skill_key),
            agent=self.agent.begin(state, spec, index=index, key=agent_key),
        )

    def act(
        self,
        state: State,
        memory: SkillMemory[Memory],
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], SkillMemory[Memory], SkillExtras[Extras]]:
        action, agent_memory, extras = self.agent.act(
            state,
            memory.agent,
            jnp.concatenate([observation, memory.skill]),
            mode=mode,
            key=key,
        )
        return (
            action,
            SkillMemory(skill=memory.skill, agent=agent_memory),
            SkillExtras(skill=memory.skill, agent=extras),
        )

    def observe(
        self, state: State, transitions: Transition[SkillExtras[Extras]]
    ) -> State:
        return self.agent.observe(state, _join_own(transitions))

    def update(
        self,
        state: State,
        batch: Transition[SkillExtras[Extras]],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[State, Metrics]:
        return self.agent.update(state, _join_own(batch), step=step, key=key)


SkillConditioned.__init__.__doc__ = """**Arguments:**

- `agent`: any agent.
- `skills`: the prior that skills are drawn from, such as `eqrl.OneHotSkills(8)`; or the
    number of one-hot skills, at least 2.
"""


def with_skill_size(spec: EnvSpec, size: int) -> EnvSpec:
    """What an agent is told of an environment whose observations hold a skill."""
    return dataclasses.replace(spec, observation_size=spec.observation_size + size)


def join_skill(
    transitions: Transition[Any], skill: Float[Array, "*batch skill"]
) -> Transition[Any]:
    """Transitions whose observations hold the skill behind their own elements."""
    observations = (transitions.observation, transitions.next_observation)
    observation, next_observation = (
        jnp.concatenate([x, skill], axis=-1) for x in observations
    )
    return dataclasses.replace(
        transitions, observation=observation, next_observation=next_observation
    )


def _join_own(transitions: Transition[SkillExtras[Extras]]) -> Transition[Extras]:
    joined = join_skill(transitions, transitions.extras.skill)
    return dataclasses.replace(joined, extras=transitions.extras.agent)
