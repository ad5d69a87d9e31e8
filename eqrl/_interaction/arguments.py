"""Checks of what every function that plays or trains is given."""

from .._agents import AbstractAgent
from .._pytree.fields import check_instance, check_key
from ..envs._base import check_is_env


def check_arguments(agent: object, env: object, key: object) -> None:
    """Raises a `ValueError` unless these are an agent, an environment and a key."""
    check_is_agent(agent)
    check_is_env("env", env)
    check_key(key)


def check_is_agent(agent: object) -> None:
    """Raises a `ValueError` unless `agent` is an agent."""
    check_instance("agent", agent, AbstractAgent, such_as="`eqrl.SAC()`")
