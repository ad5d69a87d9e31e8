import dataclasses
from typing import Generic

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._agents.base import AbstractAgent, AnyAgent
from .._agents.wrappers.fixed_skill import FixedSkill
from .._agents.wrappers.skills import SkillConditioned, with_skill
from .._pytree.fields import (
    HOLDS_STACK,
    Range,
    check_fields,
    converted_field,
    static_integer,
    strong_integer,
)
from .._pytree.tree import parts, take_element
from .._skills.prior import (
    AbstractSkillPrior,
    AnyOneHotSkills,
    NormalSkills,
    OneSkill,
    SphereSkills,
    UniformSkills,
)
from .._types.custom_types import EnvState, Extras, Memory, Observation, State
from .._types.data import Box, EnvSpec
from ..envs import AbstractEnv, AbstractEnvWrapper, Outcome
from .actors import Actors
from .evaluate import play_until_over
from .fit import check_fits


# As METRA's release has it: 87 % of what a normal distribution draws is within 1.5.
NORMAL_SCALE = 1.5


class SkillChoiceState(eqx.Module, Generic[EnvState]):
    """State of `SkillChoice`: that of its environment and the current observation."""

    inner: EnvState
    observation: Observation[Array, " obs"]


SkillChoiceState.__init__.__doc__ = """**Arguments:**

- `inner`: the state of the environment that the skills act in.
- `observation`: the observation of that state.
"""


class SkillChoice(
    AbstractEnvWrapper[SkillChoiceState[EnvState]],
    Generic[EnvState, State, Memory, Extras],
):
    """An environment whose actions choose among skills, each run for several steps.

    A step runs the skill of the largest element of the action, greedily and with a
    fresh memory, for `num_steps` steps, or fewer if the episode ends. Its reward is the
    undiscounted sum of the rewards of these steps; the rest of the outcome is that of
    the last one. So any agent whose actions are vectors can learn when to use which
    skill, and one that does not learn can try each skill with `step` and take the best.

    The action has as many elements as there are skills; those from the `num_skills`-th
    on are ignored. A one-hot vector chooses its skill. `num_skills` is a leaf: if
    skills are learned one after another into a stack that is long enough, the next one
    compiles nothing.

    Skills are given in one of three forms:

    - states of one agent, in a stack, as `eqrl.learn_skills` returns them;
    - agents with their states, both in stacks, such as some skills of DIAYN, by
      `equinox.filter_vmap(lambda z: eqrl.fix_skill(agent, state, z))(skills)`;
    - the skills of one agent that contains a `SkillConditioned`, with its one state.
      If they are one-hot, the action chooses as above. Otherwise it is the skill, for
      `SphereSkills` scaled to length 1, for `NormalSkills` times 1.5, and for
      `UniformSkills` from [-1, 1] to their bounds.
    """

    env: AbstractEnv[EnvState]
    agent: AbstractAgent[State, Memory, Extras] = eqx.field(metadata=HOLDS_STACK)
    states: State = eqx.field(metadata=HOLDS_STACK)
    num_skills: int | Int[Array, ""] | None = converted_field(
        convert=lambda value: None if value is None else strong_integer(value),
        what="must be an integer, or None for all.",
    )
    num_steps: int = static_integer(least=1)

    def __check_init__(self) -> None:
        prior, size = self._prior, self._num_choices
        if self._is_vector and self.num_skills is not None:
            raise ValueError(
                "`num_skills` limits a choice, but the action is the skill itself if "
                "skills are not one-hot; give `num_skills=None`."
            )
        Range(low=1, high=size, optional=True).check("num_skills", self.num_skills)
        # The base class checks fields too, but only after this method.
        check_fields(self)
        if isinstance(prior, OneSkill):
            raise ValueError(
                "The prior of `agent` is a `OneSkill`: there is nothing to choose."
            )
        stacked = prior is None and _is_stack(self.agent, size)
        if parts(self.agent, FixedSkill) and not stacked:
            raise ValueError(
                "One `FixedSkill` runs the same skill whatever is chosen. Give a stack "
                f"of {size} agents, as `agents, states = equinox.filter_vmap(lambda z: "
                "eqrl.fix_skill(agent, state, z))(skills)` makes it; or the agent with "
                "all its skills and its one state."
            )
        hint = (
            "`states` must be those of `agent`, with one leading axis for the skills."
            if prior is None
            else "An `agent` with a `SkillConditioned` chooses among its own skills: "
            "`states` must be its one state, not a stack."
        )
        # Whichever skill is chosen, the shapes are the same.
        choice = jax.ShapeDtypeStruct((size,), jnp.result_type(float))
        agent, state = eqx.filter_eval_shape(type(self)._skill, self, choice)
        check_fits(agent, state, self.env.spec, hint=hint)

    @property
    def inner(self) -> AbstractEnv[EnvState]:
        return self.env

    def inner_state(self, state: SkillChoiceState[EnvState]) -> EnvState:
        return state.inner

    @property
    def spec(self) -> EnvSpec:
        spec = self.env.spec
        max_steps = spec.max_steps
        if max_steps is not None:
            # Rounded up: the last choice may be cut short.
            max_steps = -(-max_steps // self.num_steps)
        return dataclasses.replace(
            spec, action=Box(self._num_choices), max_steps=max_steps
        )

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[SkillChoiceState[EnvState], Observation[Array, " obs"]]:
        inner, observation = self.env.reset(key=key)
        return SkillChoiceState(inner=inner, observation=observation), observation

    def step(
        self,
        state: SkillChoiceState[EnvState],
        action: Float[Array, " act"],
        *,
        key: PRNGKeyArray,
    ) -> tuple[SkillChoiceState[EnvState], Outcome]:
        begin_key, step_key = jr.split(key)
        agent, skill = self._skill(action)
        zero = jnp.zeros((), int)
        reward_size = self.env.spec.reward_size
        actor = Actors(
            env_state=state.inner,
            observation=state.observation,
            memory=agent.begin(skill, self.env.spec, index=zero, key=begin_key),
            timestep=zero,
            episode_return=jnp.zeros(() if reward_size is None else (reward_size,)),
        )

        # Returns are counted from here, even in mid-episode.
        episode = play_until_over(
            agent,
            skill,
            self.env,
            actor,
            max_steps=self.num_steps,
            mode="greedy",
            key=step_key,
        )
        actor = episode.actors
        outcome = Outcome(
            observation=actor.observation,
            reward=episode.returns,
            terminated=episode.terminated,
            truncated=episode.truncated,
        )
        after = SkillChoiceState(inner=actor.env_state, observation=actor.observation)
        return after, outcome

    @property
    def _prior(self) -> AbstractSkillPrior | None:
        """The skill prior of a single agent; `None` if it has no skills."""
        skilled = parts(self.agent, SkillConditioned)
        return skilled[0].skills if skilled else None

    @property
    def _is_vector(self) -> bool:
        """Whether the action is the skill, rather than a choice."""
        return self._prior is not None and not isinstance(self._prior, AnyOneHotSkills)

    @property
    def _num_choices(self) -> int:
        if self._prior is not None:
            return self._prior.size
        arrays = jax.tree.leaves(eqx.filter(self.states, eqx.is_array))
        axes = {array.shape[:1] for array in arrays}
        if len(axes) != 1 or axes == {()}:
            raise ValueError(
                "Every array in `states` must have one leading axis for the skills, as "
                "`equinox.filter_vmap` makes it; the leading axes here are "
                f"{sorted(axes)}."
            )
        ((size,),) = axes
        return size

    def _skill(
        self, action: Float[Array, " act"]
    ) -> tuple[AbstractAgent[State, Memory, Extras], State]:
        """The agent that runs the skill of an action, and its state."""
        prior = self._prior
        if self._is_vector:
            if isinstance(prior, NormalSkills):
                action = NORMAL_SCALE * action
            elif isinstance(prior, UniformSkills):
                action = prior.low + (action + 1) / 2 * (prior.high - prior.low)
            elif isinstance(prior, SphereSkills):
                length = jnp.linalg.norm(action)
                # An action of length 0 has no direction; it becomes the first axis.
                first = jnp.zeros_like(action).at[0].set(1)
                # The inner `where` keeps the division finite.
                scaled = action / jnp.where(length > 0, length, 1)
                action = jnp.where(length > 0, scaled, first)
            return with_skill(self.agent, action), self.states
        if self.num_skills is not None:
            exists = jnp.arange(action.shape[0]) < self.num_skills
            action = jnp.where(exists, action, -jnp.inf)
        chosen = jnp.argmax(action)
        if prior is not None:
            skill = jax.nn.one_hot(chosen, prior.size)
            return with_skill(self.agent, skill), self.states
        state = take_element(self.states, chosen)
        if _is_stack(self.agent, self._num_choices):
            return take_element(self.agent, chosen), state
        return self.agent, state


SkillChoice.__init__.__doc__ = """**Arguments:**

- `env`: the environment that the skills act in.
- `agent`: the agent of all skills; a stack of agents, in which every array has a
    leading axis `skills`; or an agent that contains a `SkillConditioned`.
- `states`: the agent's state for each skill, every array with a leading axis `skills`.
    With a `SkillConditioned`, its one state.
- `num_skills`: how many of them, from the first, can be chosen; 1 to all. `None` means
    all, and is required if the action is the skill itself.
- `num_steps`: number of steps that a skill runs, at least 1.
"""


def _is_stack(agent: AnyAgent, size: int) -> bool:
    """Whether this is a stack of agents rather than one.

    One agent has some hyperparameter that is a scalar, or none at all; a fixed skill is
    a vector.
    """
    if any(fixed.skill.ndim == 1 for fixed in parts(agent, FixedSkill)):
        return False
    arrays = jax.tree.leaves(eqx.filter(agent, eqx.is_array))
    return len(arrays) > 0 and all(array.shape[:1] == (size,) for array in arrays)
