from typing import overload

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._pytree.fields import check_vector, checked_by
from ..._skills.prior import SkillExtras
from ..._types.custom_types import (
    Extras,
    Memory,
    Metrics,
    Observation,
    PyTree,
    RewardState,
    State,
)
from ..._types.data import EnvSpec, Transition
from ...nn import as_floats
from ..base import (
    AbstractAgent,
    AbstractViewWrapper,
    AbstractWrapper,
    AnyAgent,
    view_of,
)
from .intrinsic import Intrinsic, IntrinsicState
from .skills import SkillConditioned, SkillMemory, with_skill_size


class FixedSkill(AbstractViewWrapper[State, Memory, Extras]):
    """A skill-conditioned agent with one skill, kept while it acts and learns."""

    agent: AbstractAgent[State, Memory, Extras]
    skill: Float[Array, " skill"] = eqx.field(metadata=checked_by(check_vector))

    @property
    def inner(self) -> AbstractAgent[State, Memory, Extras]:
        return self.agent

    def inner_state(self, state: State) -> State:
        return state

    def inner_transitions(
        self, state: State, transitions: Transition[Extras]
    ) -> Transition[Extras]:
        return view_of(transitions, lambda x: self.inner_observation(state, x))

    def inner_spec(self, spec: EnvSpec) -> EnvSpec:
        return with_skill_size(spec, self.skill.shape[0])

    def inner_observation(
        self, state: State, observation: Observation[Array, "*batch obs"]
    ) -> Float[Array, "*batch joined"]:
        del state
        skill_shape = (*observation.shape[:-1], self.skill.shape[0])
        skill = jnp.broadcast_to(self.skill, skill_shape)
        return jnp.concatenate([as_floats(observation), skill], axis=-1)

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> State:
        return self.agent.init(self.inner_spec(spec), key=key)

    def observe(self, state: State, transitions: Transition[Extras]) -> State:
        return self.agent.observe(state, self.inner_transitions(state, transitions))

    def update(
        self,
        state: State,
        batch: Transition[Extras],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[State, Metrics]:
        inner_batch = self.inner_transitions(state, batch)
        return self.agent.update(state, inner_batch, step=step, key=key)


FixedSkill.__init__.__doc__ = """**Arguments:**

- `agent`: the agent inside a `SkillConditioned`.
- `skill`: a vector of the size of its skills.
"""


@overload
def fix_skill(
    agent: Intrinsic[State, RewardState, SkillMemory[Memory], SkillExtras[Extras]],
    state: IntrinsicState[State, RewardState],
    z: Float[Array, " skill"],
) -> tuple[AbstractAgent[State, Memory, Extras], State]: ...


@overload
def fix_skill(
    agent: SkillConditioned[State, Memory, Extras],
    state: State,
    z: Float[Array, " skill"],
) -> tuple[AbstractAgent[State, Memory, Extras], State]: ...


@overload
def fix_skill(
    agent: AbstractAgent[State, Memory, Extras], state: State, z: Float[Array, " skill"]
) -> tuple[AnyAgent, PyTree]: ...


def fix_skill(
    agent: AnyAgent, state: PyTree, z: Float[Array, " skill"]
) -> tuple[AnyAgent, PyTree]:
    """Takes one skill out of an agent that has learned several.

    The result is an ordinary agent. It can be evaluated, rendered, and trained further
    on the environment's own reward:
    `eqrl.train(agent, env, trainer, agent_state=state, ...)`.

    **Arguments:**

    - `agent`: a `SkillConditioned`, in any nesting of wrappers, as `eqrl.diayn` makes
        it.
    - `state`: its state.
    - `z`: the skill, such as `jax.nn.one_hot(3, 8)`.

    **Returns:**

    The agent with that skill only and without intrinsic reward, and its state. Other
    wrappers stay around it.

    Raises a `ValueError` if the agent has no skills, if `z` is not of their size, or if
    `state` is not a state of this agent.
    """
    if isinstance(agent, SkillConditioned):
        skill = jnp.asarray(z, dtype=jnp.result_type(float))
        if skill.shape != (agent.skills.size,):
            raise ValueError(
                f"The skill has shape {skill.shape}, but the agent's skills have "
                f"{(agent.skills.size,)}."
            )
        return FixedSkill(agent=agent.agent, skill=skill), agent.inner_state(state)
    if not isinstance(agent, AbstractWrapper):
        raise ValueError(
            f"{type(agent).__name__} has no skill to fix; it must be a "
            "`SkillConditioned`, or an `eqrl.AbstractWrapper` such as `Intrinsic` or "
            "`Normalized` around one, as `eqrl.diayn` makes it."
        )
    inner, inner_state = fix_skill(agent.inner, agent.inner_state(state), z)
    # One skill leaves an intrinsic reward nothing to tell apart, so it is dropped, and
    # the environment's own reward is seen again.
    if isinstance(agent, Intrinsic):
        return inner, inner_state
    # `inner` is the value of a field, and the inner state a part of the state, so that
    # `tree_at` finds both.
    fixed = eqx.tree_at(lambda wrapper: wrapper.inner, agent, inner)
    return fixed, eqx.tree_at(agent.inner_state, state, inner_state)
