from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, PRNGKeyArray

from ..._types.custom_types import Extras, Memory, Metrics, Mode, State
from ..._types.data import EnvSpec, Transition
from ..base import AbstractAgent
from .intrinsic import Intrinsic, IntrinsicState
from .normalized import Normalized, NormalizedState
from .skill_conditioned import SkillConditioned, join_skill, with_skill_size


class FixedSkill(AbstractAgent[State, Memory, Extras]):
    """An agent that is always told the same skill, and learns with it."""

    agent: AbstractAgent[State, Memory, Extras]
    skill: Float[Array, " skill"]

    @property
    def sequence_length(self) -> int:
        return self.agent.sequence_length

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> State:
        return self.agent.init(self._spec(spec), key=key)

    def begin(
        self, state: State, spec: EnvSpec, *, index: Int[Array, ""], key: PRNGKeyArray
    ) -> Memory:
        return self.agent.begin(state, self._spec(spec), index=index, key=key)

    def act(
        self,
        state: State,
        memory: Memory,
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], Memory, Extras]:
        joined = jnp.concatenate([observation, self.skill])
        return self.agent.act(state, memory, joined, mode=mode, key=key)

    def observe(self, state: State, transitions: Transition[Extras]) -> State:
        return self.agent.observe(state, self._join(transitions))

    def update(
        self,
        state: State,
        batch: Transition[Extras],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[State, Metrics]:
        return self.agent.update(state, self._join(batch), step=step, key=key)

    def _spec(self, spec: EnvSpec) -> EnvSpec:
        return with_skill_size(spec, self.skill.shape[0])

    def _join(self, transitions: Transition[Extras]) -> Transition[Extras]:
        shape = (*transitions.timestep.shape, self.skill.shape[0])
        return join_skill(transitions, jnp.broadcast_to(self.skill, shape))


FixedSkill.__init__.__doc__ = """**Arguments:**

- `agent`: what a `SkillConditioned` is around.
- `skill`: what it is told.
"""


def fix_skill(
    agent: AbstractAgent[Any, Any, Any], state: Any, z: Float[Array, " skill"]
) -> tuple[AbstractAgent[Any, Any, Any], Any]:
    """Takes one skill out of an agent that has learnt several.

    The agent it gives is an ordinary one. It can be evaluated and rendered, and trained
    on the environment's own reward from where the skill is:
    `eqrl.train(agent, env, trainer, agent_state=state, ...)`.

    **Arguments:**

    - `agent`: a `SkillConditioned`, in any nesting of `Intrinsic` and `Normalized`, as
        `eqrl.diayn` makes it.
    - `state`: what it has learnt.
    - `z`: the skill, such as `jax.nn.one_hot(3, 8)`.

    **Returns:**

    The agent that always shows the skill, without its intrinsic reward, and its state.

    Raises a `ValueError` where the agent has no skills, or skills of another size, and
    where the state is not the agent's.
    """
    if isinstance(agent, Intrinsic):
        _check_state(agent, state, IntrinsicState)
        return fix_skill(agent.agent, state.agent, z)
    if isinstance(agent, Normalized):
        _check_state(agent, state, NormalizedState)
        inner, inner_state = fix_skill(agent.agent, state.agent, z)
        return Normalized(inner), NormalizedState(
            agent=inner_state, statistics=state.statistics
        )
    if isinstance(agent, SkillConditioned):
        skill = jnp.asarray(z, dtype=jnp.result_type(float))
        check_skill(agent, skill)
        return FixedSkill(agent=agent.agent, skill=skill), state
    raise ValueError(
        f"{type(agent).__name__} has no skill to fix; it must be a `SkillConditioned`, "
        "or an `Intrinsic` or `Normalized` around one, as `eqrl.diayn` makes it."
    )


def _check_state(
    agent: AbstractAgent[Any, Any, Any], state: Any, expected: type
) -> None:
    if not isinstance(state, expected):
        raise ValueError(
            f"`state` is a {type(state).__name__}, but what {type(agent).__name__} "
            f"learns is a {expected.__name__}; give what this agent has learnt, such "
            "as `solution.state`."
        )


def check_skill(
    agent: SkillConditioned[Any, Any, Any], skill: Float[Array, "..."]
) -> None:
    """Raises a `ValueError` where a skill has not the size of the agent's."""
    if skill.shape != (agent.skills.size,):
        raise ValueError(
            f"The skill has shape {skill.shape}, but the agent's skills have "
            f"{(agent.skills.size,)}."
        )
