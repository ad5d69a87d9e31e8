"""Agents that are not the library's own, by the path that a person gives."""

import importlib
import inspect
import os
import sys
from types import ModuleType

from .._agents import AbstractAgent
from .._agents.base import AnyAgent


def import_agent(path: str) -> type[AnyAgent]:
    """The class of agents at `package.module:Class`.

    Its module is imported, so `path` must be what a person has written and never what
    a file says. As with `python -m`, the module may be in the current directory.

    Raises a `ValueError` unless there is such a class and it is an agent.
    """
    module_name, _, class_name = path.partition(":")
    parts = class_name.split(".")
    if not all(part.isidentifier() for part in (*module_name.split("."), *parts)):
        raise ValueError(f"`agent={path!r}` must be written as `package.module:Class`.")
    found: object = _import(module_name, path)
    for part in parts:
        found = getattr(found, part, None)
    if found is None:
        raise ValueError(
            f"`agent={path!r}`: there is no `{class_name}` in `{module_name}`."
        )
    if not isinstance(found, type) or not issubclass(found, AbstractAgent):
        raise ValueError(
            f"`agent={path!r}` is not an agent; it must be a class that derives from "
            "`eqrl.AbstractAgent`."
        )
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise ValueError(f"`agent={path!r}` is abstract: it lacks {missing}.")
    return found


def name_of(agent_type: type[AnyAgent]) -> str:
    """The path of a class, as `config.json` records it."""
    return f"{agent_type.__module__}:{agent_type.__qualname__}"


def is_path(name: str) -> bool:
    """Whether the name of an agent is a path, so that it is not the library's own."""
    return ":" in name


def check_own_agent(name: str, agent_type: type[AnyAgent] | None) -> None:
    """Raises a `ValueError` unless the class at `name` is given, if that is a path."""
    given = None if agent_type is None else name_of(agent_type)
    if given is None and is_path(name):
        class_name = name.rpartition(":")[2]
        raise ValueError(
            f"The agent of this run is `{name}`, and code is never imported because a "
            f"file names it. If you trust it, give it again: `--agent {name}`, or in "
            f"Python `agent_type={class_name}`."
        )
    if given is not None and given != name:
        instead = f"give `--agent {name}`" if is_path(name) else "give none"
        raise ValueError(
            f"The agent of this run is `{name}`, but `{given}` was given; {instead}."
        )


def _import(name: str, path: str) -> ModuleType:
    directory = os.getcwd()
    if not sys.flags.safe_path and not {"", directory} & set(sys.path):
        sys.path.insert(0, directory)
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            # The module is there, and imports another one that is not.
            raise
        raise ValueError(
            f"`agent={path!r}`: there is no module `{error.name}`, neither installed "
            f"nor in `{directory}`."
        ) from error
