from typing import Any, Generic

import equinox as eqx
from jaxtyping import Array, Int

from .._agents import AbstractAgent, Intrinsic
from .._pytree.stack import take_element
from .._training.replay import Counts
from .._training.solution import History
from .._training.trainer import TrainerState
from .._types.custom_types import State


class SkillTraining(eqx.Module):
    """All that is needed to go on with the skill that is learnt, or with a next one."""

    trainer_state: TrainerState[Any, Any, Any, Any]
    counts: Counts
    skill: Int[Array, ""]
    earlier_steps: Int[Array, ""]
    collected_steps: Int[Array, ""]
    world: Int[Array, ""]


SkillTraining.__init__.__doc__ = """**Arguments:**

- `trainer_state`: agent, environments and replay.
- `counts`: how far the skill is.
- `skill`: which one it is, from 0. Once it is learnt it is in the library, and this is
    less than the library's count.
- `earlier_steps`: environment steps of training of the skills before.
- `collected_steps`: environment steps in which skills were rolled out again.
- `world`: how often the environment had changed when they were rolled out last.
"""


class Skills(eqx.Module, Generic[State]):
    """Skills that were learnt one after another, and how to go on learning.

    `eqrl.pick_skill` takes one out.
    """

    states: State
    count: Int[Array, ""]
    training: SkillTraining | None = None
    metrics: History = eqx.field(default_factory=dict)


Skills.__init__.__doc__ = """**Arguments:**

- `states`: what was learnt, a stack with room for more skills than there may be yet.
- `count`: how many skills there are, the first of the stack.
- `training`: with which `eqrl.learn_skills` goes on; `None` where the skills are only
    to be used.
- `metrics`: of all skills, a row every `log_every` steps: those of `eqrl.Solution`,
    `skill`, from 0, and `collected_steps`, the environment steps that were spent so far
    to roll out skills again, which `step` does not count.
"""


def pick_skill(
    agent: AbstractAgent[Any, Any, Any], skills: Skills[Any], index: int
) -> tuple[AbstractAgent[Any, Any, Any], Any]:
    """Takes one skill out of a library.

    The agent it gives is an ordinary one. It can be evaluated and rendered, and trained
    on the environment's own reward from where the skill is:
    `eqrl.train(agent, env, trainer, agent_state=state, ...)`.

    **Arguments:**

    - `agent`: that learnt the skills.
    - `skills`: from `eqrl.learn_skills`.
    - `index`: which one, from 0.

    **Returns:**

    The agent without its reward, and what it has learnt.

    Raises a `ValueError` where there is no such skill.
    """
    if not isinstance(agent, Intrinsic):
        raise ValueError(
            f"`agent` is a {type(agent).__name__}; it must be the `Intrinsic` that was "
            "given to `eqrl.learn_skills`."
        )
    count = int(skills.count)
    if not 0 <= index < count:
        raise ValueError(
            f"`index={index}` is not a skill; there are {count}"
            + (f", 0 to {count - 1}." if count > 0 else " yet.")
        )
    return agent.agent, take_element(skills.states, index)
