"""Looking for something inside an agent."""

import equinox as eqx
from jaxtyping import Array, Float

from ..._rewards.base import AnyReward, Sum
from ..._skills.prior import OneSkill
from ..._types.custom_types import PyTree
from ..base import AnyAgent
from .base import AbstractWrapper, Part, check_state, parts
from .intrinsic import Intrinsic, IntrinsicState
from .skills import SkillConditioned


def find(
    agent: AnyAgent,
    state: PyTree,
    transitions: PyTree,
    kind: type[Part],
    *,
    hint: str = "",
) -> tuple[Part, PyTree, PyTree]:
    """The outermost agent or intrinsic reward of one kind inside nested wrappers.

    **Arguments:**

    - `agent`: any agent, perhaps a wrapper.
    - `state`: its state; `None` if no state is needed.
    - `transitions`: of its episodes, with any leading axes; `None` if they are not
        needed.
    - `kind`: a class of agents or of rewards.
    - `hint`: what to do if there is none, the end of the error's message.

    **Returns:**

    What was found, its state, and the transitions as it sees them.

    Raises a `ValueError` if there is none.
    """
    names = []
    while True:
        names.append(type(agent).__name__)
        if isinstance(agent, kind):
            return agent, state, transitions
        if isinstance(agent, Intrinsic):
            names[-1] += f" of {type(agent.reward).__name__}"
            reward_state = None
            if state is not None:
                check_state(agent, state, IntrinsicState)
                reward_state = state.reward
            for reward, part_state in _rewards(agent.reward, reward_state):
                if isinstance(reward, kind):
                    return reward, part_state, transitions
        if not isinstance(agent, AbstractWrapper):
            raise ValueError(
                f"There is no `{kind.__name__}` in this agent, a "
                f"{' around a '.join(names)}. Only an `eqrl.AbstractWrapper` is looked "
                f"into. {hint}".strip()
            )
        # Transitions first: how they are seen depends on the wrapper's own state.
        if state is not None and transitions is not None:
            transitions = agent.inner_transitions(state, transitions)
        if state is not None:
            state = agent.inner_state(state)
        agent = agent.inner


def unwrap(agent: AnyAgent, kind: type[Part]) -> Part:
    """The outermost agent or intrinsic reward of one kind inside nested wrappers.

    A static type checker infers the class, as in
    `eqrl.unwrap(agent, eqrl.SAC).actor_lr`.

    **Arguments:**

    - `agent`: any agent, perhaps an `eqrl.AbstractWrapper`.
    - `kind`: a class of agents or of rewards, such as `eqrl.SAC` or
        `eqrl.Discriminator`.

    Raises a `ValueError` if there is none.
    """
    return find(agent, None, None, kind)[0]


def _rewards(reward: AnyReward, state: PyTree) -> list[tuple[AnyReward, PyTree]]:
    """A reward and, if it is a sum, all that are added, each with its state."""
    found = [(reward, state)]
    if isinstance(reward, Sum):
        for index, part in enumerate(reward.rewards):
            part_state = None if state is None else state.rewards[index]
            found.extend(_rewards(part, part_state))
    return found


def with_skill(agent: AnyAgent, skill: Float[Array, " skill"]) -> AnyAgent:
    """The same agent, always with one skill."""
    return eqx.tree_at(
        lambda agent: [part.skills for part in parts(agent, SkillConditioned)],
        agent,
        replace_fn=lambda _: OneSkill(skill),
    )
