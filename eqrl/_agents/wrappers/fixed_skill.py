import dataclasses
import math
from typing import overload

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Float, Int, PRNGKeyArray, Real
from typing_extensions import TypeVar

from ..._pytree.fields import check_vector, checked_by
from ..._rewards.metra import METRA, METRAState
from ..._skills.prior import (
    AnyOneHotSkills,
    NormalSkills,
    OneHotSkills,
    SkillExtras,
    UniformSkills,
)
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
from .intrinsic import Intrinsic, IntrinsicState, find
from .normalized import NormalizedState
from .skills import SkillConditioned, SkillMemory, with_skill_size


InnerRewardState = TypeVar("InnerRewardState", default=PyTree)


class AbstractStatelessView(AbstractViewWrapper[State, Memory, Extras]):
    """A view whose state is that of the agent inside, and which learns nothing."""

    agent: eqx.AbstractVar[AbstractAgent[State, Memory, Extras]]
    """The agent inside."""

    @property
    def inner(self) -> AbstractAgent[State, Memory, Extras]:
        return self.agent

    def inner_state(self, state: State) -> State:
        return state

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


class FixedSkill(AbstractStatelessView[State, Memory, Extras]):
    """A skill-conditioned agent that acts and learns with one fixed skill."""

    agent: AbstractAgent[State, Memory, Extras]
    skill: Float[Array, " skill"] = eqx.field(metadata=checked_by(check_vector))

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


FixedSkill.__init__.__doc__ = """**Arguments:**

- `agent`: the agent inside a `SkillConditioned`.
- `skill`: a vector as long as the agent's skills.
"""


# Whether the skills belong to this reward or to the one inside cannot be seen from the
# types of the first two, and the state that is left differs.
@overload
def fix_skill(
    agent: Intrinsic[
        IntrinsicState[State, InnerRewardState],
        RewardState,
        SkillMemory[Memory],
        SkillExtras[Extras],
    ],
    state: IntrinsicState[IntrinsicState[State, InnerRewardState], RewardState],
    z: Real[Array | np.ndarray, " skill"],
) -> tuple[AnyAgent, PyTree]: ...


@overload
def fix_skill(
    agent: Intrinsic[
        NormalizedState[IntrinsicState[State, InnerRewardState]],
        RewardState,
        SkillMemory[Memory],
        SkillExtras[Extras],
    ],
    state: IntrinsicState[
        NormalizedState[IntrinsicState[State, InnerRewardState]], RewardState
    ],
    z: Real[Array | np.ndarray, " skill"],
) -> tuple[AnyAgent, PyTree]: ...


@overload
def fix_skill(
    agent: Intrinsic[State, RewardState, SkillMemory[Memory], SkillExtras[Extras]],
    state: IntrinsicState[State, RewardState],
    z: Real[Array | np.ndarray, " skill"],
) -> tuple[AbstractAgent[State, Memory, Extras], State]: ...


@overload
def fix_skill(
    agent: SkillConditioned[State, Memory, Extras],
    state: State,
    z: Real[Array | np.ndarray, " skill"],
) -> tuple[AbstractAgent[State, Memory, Extras], State]: ...


@overload
def fix_skill(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    z: Real[Array | np.ndarray, " skill"],
) -> tuple[AnyAgent, PyTree]: ...


def fix_skill(
    agent: AnyAgent, state: PyTree, z: Real[Array | np.ndarray, " skill"]
) -> tuple[AnyAgent, PyTree]:
    """Extracts one skill from an agent that has learned several.

    The result is an ordinary agent. It can be evaluated, rendered, and trained further
    on the environment's own reward:
    `eqrl.train(agent, env, trainer, agent_state=state, ...)`.

    **Arguments:**

    - `agent`: a `SkillConditioned`, in any nesting of wrappers, such as from
        `eqrl.diayn`.
    - `state`: its state.
    - `z`: the skill, such as `jax.nn.one_hot(3, 8)`.

    **Returns:**

    The agent with that skill only and without the intrinsic rewards around its
    `SkillConditioned`, and its state. Other wrappers stay around it. A `CSF` continues
    to learn from its own reward alone.

    Raises a `ValueError` if the agent has no skills, if `z` is not of their size, or if
    `state` is not of the class that a wrapper around the skills has.
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
    # With one skill an intrinsic reward has nothing to tell apart, so it is dropped,
    # and the agent sees the environment's own reward again.
    if isinstance(agent, Intrinsic):
        return inner, inner_state
    return _within(agent, state, inner, inner_state)


def _within(
    wrapper: AbstractWrapper[State, Memory, Extras],
    state: State,
    inner: AnyAgent,
    inner_state: PyTree,
) -> tuple[AnyAgent, PyTree]:
    """A copy of a wrapper around another agent, and its state."""
    # `inner` is the value of a field, and the inner state a part of the state, so that
    # `tree_at` finds both.
    around = eqx.tree_at(lambda wrapper: wrapper.inner, wrapper, inner)
    return around, eqx.tree_at(wrapper.inner_state, state, inner_state)


class GoalSkill(AbstractStatelessView[State, Memory, Extras]):
    """A skill-conditioned agent that always takes the skill that leads to a goal.

    That is the direction from the state to the goal in the space of `METRA`, scaled to
    length 1, for `NormalSkills` to their mean length, and for `UniformSkills` to the
    surface of their cube. With one-hot skills, it is the one, of those that the prior
    can draw, with the direction's largest element. Made by `eqrl.seek_goal`.
    """

    agent: AbstractAgent[State, Memory, Extras]
    reward: METRA
    reward_state: METRAState
    goal: Float[Array, " skill"] = eqx.field(metadata=checked_by(check_vector))

    def inner_transitions(
        self, state: State, transitions: Transition[Extras]
    ) -> Transition[Extras]:
        sees = lambda x: self.inner_observation(state, x)
        seen = view_of(transitions, sees, critic_sees=as_floats)
        before, after = seen.critic_observation, seen.next_critic_observation
        if before is None or after is None:
            return seen
        # The way is found from observations; critics see the skill that is taken.
        size = self.goal.shape[0]
        join = lambda x, joined: jnp.concatenate([x, joined[..., -size:]], axis=-1)
        return dataclasses.replace(
            seen,
            critic_observation=join(before, seen.observation),
            next_critic_observation=join(after, seen.next_observation),
        )

    def inner_spec(self, spec: EnvSpec) -> EnvSpec:
        return with_skill_size(spec, self.goal.shape[0])

    def inner_observation(
        self, state: State, observation: Observation[Array, "*batch obs"]
    ) -> Float[Array, "*batch joined"]:
        del state
        observation = as_floats(observation)
        point = _point_of(self.reward, self.reward_state, observation)
        way = jnp.broadcast_to(self.goal, point.shape) - point
        prior, size = self.reward.skills, way.shape[-1]
        # At the goal the direction is undefined.
        least = jnp.finfo(way.dtype).tiny
        if isinstance(prior, AnyOneHotSkills):
            if isinstance(prior, OneHotSkills) and prior.weights is not None:
                # A skill that is never drawn was not learned.
                is_drawn = jnp.broadcast_to(prior.weights > 0, way.shape)
                way = jnp.where(is_drawn, way, -jnp.inf)
            skill = jax.nn.one_hot(jnp.argmax(way, axis=-1), size)
        elif isinstance(prior, UniformSkills):
            # As far as the first side of the cube, of those that lie ahead.
            side = jnp.where(way > 0, prior.high, prior.low)
            is_ahead = way * side > 0
            share = jnp.where(is_ahead, way / jnp.where(is_ahead, side, 1), 0)
            longest = jnp.max(share, axis=-1, keepdims=True)
            skill = way / jnp.maximum(longest, least)
            skill = jnp.clip(skill, prior.low, prior.high)
        else:
            length = jnp.linalg.norm(way, axis=-1, keepdims=True)
            skill = way / jnp.maximum(length, least)
            if isinstance(prior, NormalSkills):
                skill *= math.exp(math.lgamma((size + 1) / 2) - math.lgamma(size / 2))
                skill *= math.sqrt(2)
        return jnp.concatenate([observation, skill], axis=-1)


GoalSkill.__init__.__doc__ = """**Arguments:**

- `agent`: the agent inside a `SkillConditioned`.
- `reward`, `reward_state`: the `METRA` that its skills were learned from, which sees
    observations, and its state.
- `goal`: the goal in the space of `METRA`, a vector of the size of the skills.
"""


def seek_goal(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    goal: ArrayLike,
) -> tuple[AnyAgent, PyTree]:
    """Makes an agent that heads for a goal, with skills learned from `METRA`.

    Nothing is learned: in each state the agent takes the skill that leads from there to
    the goal in the learned space, as for the zero-shot goals of the paper cited in
    `METRA`.

    **Arguments:**

    - `agent`: an `Intrinsic` with a `METRA` that sees observations, directly around a
        `SkillConditioned`; possibly in wrappers such as `Normalized`. Another reward
        goes into a `Sum` with it, or into an `Intrinsic` around both.
    - `state`: its state.
    - `goal`: an observation at the goal, as the environment returns it, such as the
        first one of an episode that begins there.

    **Returns:**

    The agent without the intrinsic rewards around its `SkillConditioned`, and its
    state. Other wrappers stay around it.

    Raises a `ValueError` if `goal` is not a vector or does not have the size of an
    observation (any size passes if `METRA` sees a function of it), or if the agent has
    no `METRA`, or one that sees a state descriptor, which agents do not observe.
    """
    goal = jnp.asarray(goal)
    if goal.dtype not in (jnp.uint8, jnp.bool_):
        # Whole numbers are not an image, which `Normalized` would leave as it is.
        goal = goal.astype(float)
    if goal.ndim != 1:
        raise ValueError(
            f"`goal` has shape {goal.shape}, but it must be one observation, a vector."
        )
    return _seek(agent, state, goal)


def _seek(agent: AnyAgent, state: PyTree, goal: Array) -> tuple[AnyAgent, PyTree]:
    """`seek_goal` for a wrapped agent, with the goal as this agent sees it."""
    if not isinstance(agent, AbstractWrapper) or isinstance(agent, SkillConditioned):
        raise ValueError(
            f"{type(agent).__name__} has no way to a goal; that takes an "
            "`eqrl.Intrinsic` with an `eqrl.METRA` directly around an "
            "`eqrl.SkillConditioned`, and other wrappers around both."
        )
    inner = agent.inner
    if isinstance(agent, Intrinsic) and isinstance(inner, SkillConditioned):
        reward, reward_state, _ = find(agent, state, None, METRA)
        if reward.descriptor in ("state_descriptor", "both"):
            raise ValueError(
                f"`descriptor={reward.descriptor!r}` of `METRA` is more than an agent "
                "observes, so it cannot tell the way; let it be 'observation' or a "
                "function of one, and have the environment observe the position."
            )
        point = _point_of(reward, reward_state, as_floats(goal))
        seeking = GoalSkill(inner.agent, reward, reward_state, point)
        return seeking, inner.inner_state(agent.inner_state(state))
    if isinstance(agent, AbstractViewWrapper) and not isinstance(agent, Intrinsic):
        try:
            seen = agent.inner_observation(state, goal)
        except TypeError:
            seen = None
        if seen is None or seen.shape != goal.shape:
            raise ValueError(
                f"`goal` has {goal.size} elements, but {type(agent).__name__} takes "
                "observations of another size."
            )
        goal = seen
    within, within_state = _seek(inner, agent.inner_state(state), goal)
    # An outer intrinsic reward is left out as well.
    if isinstance(agent, Intrinsic):
        return within, within_state
    return _within(agent, state, within, within_state)


def _point_of(
    reward: METRA, state: METRAState, observation: Float[Array, "*batch obs"]
) -> Float[Array, "*batch skill"]:
    """Points of observations in the space of `METRA`."""
    if callable(reward.descriptor):
        rows = observation.reshape(-1, observation.shape[-1])
        described = jax.vmap(reward.descriptor)(rows)
        observation = described.reshape(*observation.shape[:-1], -1)
    return reward.represent(state, observation)
