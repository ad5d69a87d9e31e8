"""Checks of what every function that plays or trains is given."""

from jaxtyping import PRNGKeyArray

from .._agents import AbstractAgent
from .._pytree.fields import check_instance, reusable_key, stack_of
from ..envs._base import check_is_env


def check_arguments(
    agent: object, env: object, key: PRNGKeyArray, *, may_be_stack: bool = False
) -> PRNGKeyArray:
    """The key, which may be used again.

    Raises a `ValueError` unless these are an agent, an environment and a key.
    """
    check_is_agent(agent, may_be_stack=may_be_stack)
    check_is_env("env", env)
    return reusable_key(key)


def check_is_agent(agent: object, *, may_be_stack: bool = False) -> None:
    """Raises a `ValueError` unless `agent` is an agent, and a single one."""
    check_instance("agent", agent, AbstractAgent, such_as="`eqrl.SAC()`")
    if not may_be_stack and (stack := stack_of(agent)) is not None:
        name, size = stack
        raise ValueError(
            f"`agent` is a stack of {size}: its `{name}` has an axis of that length. "
            "Take one by `eqrl.member(agent, index)`, and its state likewise; or train "
            "them all by `eqrl.train_population`."
        )
