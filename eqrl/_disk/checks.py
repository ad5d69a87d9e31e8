from collections.abc import Sequence
from typing import Any

from .._agents import AbstractAgent, Intrinsic
from .._pytree.fields import check_integer
from .._rewards import Incremental
from .._training.trainer import Trainer


def incremental_of(agent: AbstractAgent[Any, Any, Any]) -> Incremental:
    """The reward of an agent; a `ValueError` unless it is an `Incremental`."""
    given = f"a {type(agent).__name__}"
    if isinstance(agent, Intrinsic):
        if isinstance(agent.reward, Incremental):
            return agent.reward
        given = f"an Intrinsic whose reward is a {type(agent.reward).__name__}"
    raise ValueError(
        f"`agent` is {given}; skills are learnt one after another by an "
        "`eqrl.Intrinsic(agent, eqrl.Incremental())` around any agent."
    )


def steps_of_skills(
    num_steps: int | Sequence[int], num_skills: int, trainer: Trainer
) -> list[int]:
    """How many steps each skill has."""
    check_integer("num_skills", num_skills, least=1)
    steps = (
        list(num_steps) if isinstance(num_steps, Sequence) else [num_steps] * num_skills
    )
    if len(steps) != num_skills:
        raise ValueError(
            f"`num_steps` has {len(steps)} numbers, but `num_skills={num_skills}`; "
            "give one for each skill, those that are learnt already included, or one "
            "for all."
        )
    for each in steps:
        trainer.check_num_steps(each)
        check_integer("num_steps", each, least=1)
    return steps


def check_max_skills(max_skills: int, num_skills: int) -> None:
    """Raises a `ValueError` where there is no room for all."""
    check_integer("max_skills", max_skills, least=1)
    if max_skills < num_skills:
        raise ValueError(
            f"`max_skills={max_skills}` leaves no room for `num_skills={num_skills}`."
        )
