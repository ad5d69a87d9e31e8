import dataclasses
from typing import TYPE_CHECKING, Generic

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._pytree.fields import static_integer
from ..._pytree.tree import parts
from ..._rewards.base import AbstractSkillReward, AnyReward
from ..._skills.prior import (
    AbstractSkillPrior,
    AnyOneHotSkills,
    OneHotSkills,
    OneSkill,
    SkillExtras,
    SphereSkills,
    as_skill_prior,
)
from ..._types.custom_types import Extras, Memory, Metrics, Mode, Observation, State
from ..._types.data import Action, EnvSpec, Transition
from ...nn import as_floats
from ..base import AbstractAgent, AbstractWrapper, AnyAgent, after_act, layers, view_of
from ..csf import CSF
from .normalized import Normalized


class SkillMemory(eqx.Module, Generic[Memory]):
    """Memory of `SkillConditioned`: the current skill and the agent's memory."""

    skill: Float[Array, " skill"]
    agent: Memory
    index: Int[Array, ""] | None = None
    age: Int[Array, ""] | None = None


SkillMemory.__init__.__doc__ = """**Arguments:**

- `skill`: the current skill.
- `agent`: the memory of the agent.
- `index`, `age`: index of the environment, and the number of steps since its skill
    was drawn; `None` if a skill lasts for the whole episode.
"""


class SkillConditioned(
    AbstractWrapper[State, SkillMemory[Memory], SkillExtras[Extras]]
):
    """An agent whose policy is conditioned on a skill.

    A skill is drawn from a prior when an episode begins and kept until its end, or for
    `resample_every` steps. The replay holds it once for each transition. The agent sees
    the skill that chose the action appended to both observations. Returns over several
    steps are cut off where the skill changes, as at a time limit. The state is that of
    the agent inside, for observations that are longer by the size of a skill.
    """

    agent: AbstractAgent[State, Memory, Extras]
    skills: AbstractSkillPrior = eqx.field(converter=as_skill_prior)
    resample_every: int | None = static_integer(None, least=1)

    if TYPE_CHECKING:
        # The converter accepts integers, which not all static type checkers know.
        def __init__(
            self,
            agent: AbstractAgent[State, Memory, Extras],
            skills: AbstractSkillPrior | int,
            resample_every: int | None = ...,
        ) -> None: ...

    @property
    def inner(self) -> AbstractAgent[State, Memory, Extras]:
        return self.agent

    def inner_state(self, state: State) -> State:
        return state

    def inner_transitions(
        self, state: State, transitions: Transition[SkillExtras[Extras]]
    ) -> Transition[Extras]:
        del state
        skill, extras = transitions.extras.skill, transitions.extras.agent
        joined = view_of(
            transitions, lambda x: jnp.concatenate([as_floats(x), skill], axis=-1)
        )
        return dataclasses.replace(joined, extras=extras)

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> State:
        *wrappers, inner = layers(self.agent)
        if isinstance(inner, CSF):
            skills, size = self.skills, inner.num_dimensions
            if not isinstance(skills, SphereSkills | OneSkill) or skills.size != size:
                raise ValueError(
                    f"`CSF({size})` learns directions of as many elements, but the "
                    f"skills are {skills}, of {skills.size} elements; give "
                    f"`SphereSkills({size})`."
                )
            if any(isinstance(each, Normalized) for each in wrappers):
                raise ValueError(
                    "A `Normalized` within `SkillConditioned` would scale the skill, "
                    "whose length `CSF` takes to be 1; put it around: "
                    "`Normalized(SkillConditioned(CSF(...), skills))`."
                )
        return self.agent.init(with_skill_size(spec, self.skills.size), key=key)

    def begin(
        self, state: State, spec: EnvSpec, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> SkillMemory[Memory]:
        # The skill is part of the memory, so it lasts as long as the episode.
        skill_key, agent_key = jr.split(key)
        spec = with_skill_size(spec, self.skills.size)
        is_lasting = self.resample_every is None
        return SkillMemory(
            skill=self.skills.sample(index=index, key=skill_key),
            agent=self.agent.begin(state, spec, index=index, key=agent_key),
            index=None if is_lasting else index,
            age=None if is_lasting else jnp.zeros((), int),
        )

    def act(
        self,
        state: State,
        memory: SkillMemory[Memory],
        observation: Observation[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Action, SkillMemory[Memory], SkillExtras[Extras]]:
        skill, index, age = memory.skill, memory.index, memory.age
        if index is not None and age is not None:
            skill_key, key = jr.split(key)
            is_due = age == self.resample_every
            drawn = self.skills.sample(index=index, key=skill_key)
            skill = jnp.where(is_due, drawn, skill)
            age = jnp.where(is_due, 0, age) + 1
        chosen = self.agent.act(
            state,
            memory.agent,
            jnp.concatenate([as_floats(observation), skill]),
            mode=mode,
            key=key,
        )
        action, agent_memory, extras = after_act(self.agent, memory.agent, chosen)
        # The skill is stored with each transition, since a batch mixes episodes.
        return (
            action,
            SkillMemory(skill=skill, agent=agent_memory, index=index, age=age),
            SkillExtras(skill=skill, agent=extras),
        )

    def observe(
        self, state: State, transitions: Transition[SkillExtras[Extras]]
    ) -> State:
        return self.agent.observe(state, self.inner_transitions(state, transitions))

    def update(
        self,
        state: State,
        batch: Transition[SkillExtras[Extras]],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[State, Metrics]:
        inner_batch = self.inner_transitions(state, batch)
        if self.resample_every is not None and batch.timestep.ndim > 1:
            # The next row has another skill, so its value is not that of this step.
            skill = batch.extras.skill
            changes = jnp.any(skill[:, 1:] != skill[:, :-1], axis=-1)
            changes = jnp.pad(changes, ((0, 0), (0, 1))) & ~batch.terminated
            inner_batch = dataclasses.replace(
                inner_batch, truncated=batch.truncated | changes
            )
        return self.agent.update(state, inner_batch, step=step, key=key)


SkillConditioned.__init__.__doc__ = """**Arguments:**

- `agent`: any agent.
- `skills`: the prior that skills are drawn from, such as `eqrl.OneHotSkills(8)`; or the
    number of one-hot skills, at least 2.
- `resample_every`: steps after which another skill is drawn within an episode, at least
    1; `None` keeps it until the end. `EvenOneHotSkills` draws the same one again.
"""


def with_skill_size(spec: EnvSpec, size: int) -> EnvSpec:
    """The `spec` of an environment whose observations end with a skill."""
    critic_size = spec.critic_observation_size
    # An image becomes the beginning of a longer vector, of floats like a skill.
    return dataclasses.replace(
        spec,
        observation_size=spec.observation_size + size,
        critic_observation_size=None if critic_size is None else critic_size + size,
        observation_shape=None,
        observation_dtype="float32",
    )


def with_skill(agent: AnyAgent, skill: Float[Array, " skill"]) -> AnyAgent:
    """The same agent, restricted to one skill."""
    return eqx.tree_at(
        lambda agent: [part.skills for part in parts(agent, SkillConditioned)],
        agent,
        replace_fn=lambda _: OneSkill(skill),
    )


def prior_of(agent: AnyAgent) -> AbstractSkillPrior:
    """The prior of the skills of an agent.

    Raises a `ValueError` if it has none.
    """
    skilled = parts(agent, SkillConditioned)
    if not skilled:
        raise ValueError(
            f"{type(agent).__name__} has no skills; put the agent inside a "
            "`SkillConditioned`, as `eqrl.diayn` does."
        )
    return skilled[0].skills


def check_same_skills(agent: AnyAgent, reward: AnyReward) -> None:
    """Checks that a reward and its agent have the same skills.

    Classes and static fields are always compared, arrays such as weights only if both
    are concrete.
    """
    # The reward sees the skills of the outermost one.
    found = (each for each in layers(agent) if isinstance(each, SkillConditioned))
    conditioned = next(found, None)
    if conditioned is None:
        return
    for part in parts(reward, AbstractSkillReward):
        if not _are_same(conditioned.skills, part.skills):
            raise ValueError(
                f"The skills of the agent are {conditioned.skills}, those of its "
                f"`{type(part).__name__}` {part.skills}: its reward would be wrong. "
                "Give both the same prior, and change its weights in both."
            )


def _are_same(first: AbstractSkillPrior, second: AbstractSkillPrior) -> bool:
    if isinstance(first, OneSkill) and first.size == second.size:
        # A `OneSkill` replaces the prior to show one of its skills.
        return True
    if isinstance(first, AnyOneHotSkills) and isinstance(second, AnyOneHotSkills):
        # Assigning skills in turn makes them as likely as drawing them uniformly.
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
    """Whether two leaves are equal, as far as that is known while tracing."""
    if not (eqx.is_array_like(first) and eqx.is_array_like(second)):
        return first is second or first == second
    if any(isinstance(leaf, jax.core.Tracer) for leaf in (first, second)):
        return True
    return np.allclose(np.asarray(first), np.asarray(second))
