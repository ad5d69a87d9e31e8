"""Agents and environments by their names on the command line."""

import ast
import dataclasses
import importlib
import inspect
import os
import pkgutil
import re
import sys
from collections.abc import Callable, Collection, Mapping
from types import NoneType
from typing import Any, get_type_hints

from .. import _agents
from .._agents.base import AbstractAgent, AbstractWrapper, AnyAgent
from .._agents.csf import CSF
from .._agents.discrete_sac import DiscreteSAC
from .._agents.dqn import DQN
from .._agents.ppo import PPO
from .._agents.pqn import PQN
from .._agents.taac.taac import TAAC
from .._agents.taac.trajectory import LinearTrajectory, QuadraticTrajectory
from .._agents.wrappers.skills import SkillConditioned
from .._rewards.base import AnyReward
from .._skills.prior import SphereSkills
from .._types.data import AbstractActionSpace, Box, Discrete
from ..envs._base import AnyEnv
from ..nn import Choice, Critic, Gaussian, NetworkFactory, Normal


def import_agent(path: str) -> type[AnyAgent]:
    """The class of agents at `package.module:Class`.

    Its module is imported, so `path` must come from the user and never from a file. As
    with `python -m`, the module may be in the current directory.

    Raises a `ValueError` if there is no such class or it is not an agent.
    """
    found = import_object(path, "agent", "Class")
    if not isinstance(found, type) or not issubclass(found, AbstractAgent):
        raise ValueError(
            f"`agent={path!r}` is not an agent; it must be a class that derives from "
            "`eqrl.AbstractAgent`."
        )
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise ValueError(f"`agent={path!r}` is abstract: it lacks {missing}.")
    return found


def import_env(path: str) -> Callable[..., Any]:
    """The function that makes environments at `package.module:make`."""
    if path.startswith("gymnasium/") and is_path(path):
        raise ValueError(
            f"`env={path!r}` imports a package; name a function that makes it, as "
            "`--env package.module:make`."
        )
    found = import_object(path, "env", "make")
    # `config.json` records the qualified name, which a partial function lacks.
    if not callable(found) or not hasattr(found, "__qualname__"):
        raise ValueError(
            f"`env={path!r}` makes no environment; it must be a function, defined by "
            "`def`, or a class, that returns one."
        )
    return found


def import_object(path: str, what: str, form: str) -> object:
    """The object that the user named by the path of a module and a name in it.

    Raises a `ValueError` if there is no such object.
    """
    module_name, _, class_name = path.partition(":")
    parts = class_name.split(".")
    if not all(part.isidentifier() for part in (*module_name.split("."), *parts)):
        raise ValueError(
            f"`{what}={path!r}` must be written as `package.module:{form}`."
        )
    directory = os.getcwd()
    if not sys.flags.safe_path and not {"", directory} & set(sys.path):
        sys.path.insert(0, directory)
    try:
        found: object = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            # The module exists, but imports another one that does not.
            raise
        raise ValueError(
            f"`{what}={path!r}`: there is no module `{error.name}`, neither installed "
            f"nor in `{directory}`. A module is written without `.py`."
        ) from error
    for part in parts:
        found = getattr(found, part, None)
    if found is None:
        raise ValueError(
            f"`{what}={path!r}`: there is no `{class_name}` in `{module_name}`."
        )
    return found


def name_of(agent_type: Any) -> str:
    """The path of a class or a function, as `config.json` records it."""
    return f"{agent_type.__module__}:{agent_type.__qualname__}"


def is_path(name: str) -> bool:
    """Whether the name of an agent or an environment is a path, unlike eqrl's names."""
    return ":" in name


@dataclasses.dataclass(frozen=True)
class NamedAgent:
    """An agent that has a name, without the options of a run."""

    agent_type: type[AnyAgent]
    fixed: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    env: str = "gymnax/Pendulum-v1"
    """The default environment, which has actions that the agent can take."""

    @property
    def hidden_sizes(self) -> tuple[int, ...] | None:
        """The hidden layers of all of its networks; `None` if they differ."""
        factories = default_factories(self.agent_type).values()
        sizes = {factory.hidden_sizes for factory in factories}
        given = inspect.signature(self.agent_type).parameters.get("hidden_sizes")
        if given is not None:
            is_tuple = isinstance(given.default, tuple)
            sizes.add(given.default if is_tuple else Critic().hidden_sizes)
        return sizes.pop() if len(sizes) == 1 else None

    @property
    def is_on_policy(self) -> bool:
        """Whether it learns on-policy, judging by the type of its `sequence_length`."""
        result = inspect.getattr_static(self.agent_type, "sequence_length")
        getter = getattr(result, "fget", None)
        return getter is not None and get_type_hints(getter).get("return") is NoneType


def _find_agents() -> dict[str, NamedAgent]:
    """Agents of the library by their names on the command line.

    Names are derived from the classes in `_agents` that are neither abstract nor
    wrappers, so a new agent needs no entry here.
    """
    found: dict[str, NamedAgent] = {}
    for module in pkgutil.walk_packages(_agents.__path__, f"{_agents.__name__}."):
        for each in vars(importlib.import_module(module.name)).values():
            if (
                isinstance(each, type)
                and each.__module__ == module.name
                and issubclass(each, AbstractAgent)
                and not issubclass(each, AbstractWrapper)
                and not inspect.isabstract(each)
            ):
                name = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", each.__name__).lower()
                found[name] = NamedAgent(each)
                if each in _DISCRETE:
                    found[name] = NamedAgent(each, env="gymnax/CartPole-v1")
    return found


_DISCRETE: tuple[type[AnyAgent], ...] = (DiscreteSAC, DQN, PQN)

_SPECIAL = {
    "taac-l": NamedAgent(TAAC, fixed={"trajectory": LinearTrajectory()}),
    "taac-q": NamedAgent(TAAC, fixed={"trajectory": QuadraticTrajectory()}),
}

AGENTS = dict(sorted((_find_agents() | _SPECIAL).items()))

# Actors of an agent whose default depends on the environment.
_ACTORS: dict[type[AbstractActionSpace], NetworkFactory] = {
    Box: Normal(),
    Discrete: Choice(),
}

# Networks of an agent that has no default for them.
_FACTORIES = {"make_actor": Gaussian(), "make_critic": Critic()}


def find_agent(name: str, agent_type: type[AnyAgent] | None) -> NamedAgent:
    """The agent with a name, or of the given class if it is a custom one."""
    return AGENTS[name] if agent_type is None else NamedAgent(agent_type)


def default_factories(agent_type: type[AnyAgent | AnyReward]) -> dict[str, Any]:
    """The default of each argument of an agent or a reward that makes networks.

    It is the one of its class; a `make_actor` or `make_critic` without a default is a
    `Gaussian` or a `Critic`.
    """
    found: dict[str, Any] = {}
    for name, parameter in inspect.signature(agent_type).parameters.items():
        factory: Any = parameter.default
        if factory is inspect.Parameter.empty and name in _FACTORIES:
            found[name] = _FACTORIES[name]
        elif dataclasses.is_dataclass(factory) and not isinstance(factory, type):
            if "hidden_sizes" in {field.name for field in dataclasses.fields(factory)}:
                found[name] = factory
    return found


def make_agent(
    named: NamedAgent,
    options: Mapping[str, Any],
    changes: Mapping[str, Any],
    find_space: Callable[[], AbstractActionSpace],
    must_change: Collection[str] = (),
) -> AnyAgent:
    """An agent from its `default_factories`, without wrappers except around `CSF`.

    `changes` are fields of the factories of all of its networks, such as
    `hidden_sizes`. The actor of `PPO` fits the actions of the environment, which
    `find_space` returns.

    Raises a `ValueError` if the class does not take the options, or if a change in
    `must_change` has no effect.
    """
    signature = inspect.signature(named.agent_type)
    networks = default_factories(named.agent_type)
    if changes:
        if named.agent_type is PPO:
            networks["make_actor"] = _ACTORS[type(find_space())]
        unused = changes.keys() & {*must_change}
        for name, factory in networks.items():
            fields = {field.name for field in dataclasses.fields(factory)}
            known = {x: changes[x] for x in changes if x in fields}
            if named.agent_type is CSF and name == "make_phi":
                # A difference of representations would lose its digits.
                known.pop("precision", None)
            networks[name] = dataclasses.replace(factory, **known)
            unused -= known.keys()
        networks |= {x: changes[x] for x in changes if x in signature.parameters}
        if unused := sorted(unused - signature.parameters.keys()):
            option = {"encoder": "convolution"}.get(unused[0], unused[0])
            raise ValueError(
                f"`{option}` changes nothing in `{name_of(named.agent_type)}`: "
                "neither its own arguments nor those of its default factories have "
                "this name. Leave it out."
            )
    arguments = {**options, **named.fixed, **networks}
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ValueError(
            f"`{name_of(named.agent_type)}` does not take the options "
            f"{sorted(arguments)}: {error}."
        ) from error
    make: Any = named.agent_type
    agent: AnyAgent = make(**arguments)
    if isinstance(agent, CSF):
        # It learns only skills, and its observations must end with one.
        return SkillConditioned(agent, SphereSkills(agent.num_dimensions))
    return agent


def option_of(text: str) -> tuple[str, Any]:
    """The name and the value of a parameter of an environment."""
    name, sign, value = text.partition("=")
    if not (all(map(str.isidentifier, name.split("."))) and sign):
        raise ValueError(f"`env_option={text!r}` must be written as `name=value`.")
    # Shells and JSON write Booleans in lower case.
    words = {"true": "True", "false": "False", "none": "None", "null": "None"}
    try:
        return name, ast.literal_eval(words.get(value.lower(), value))
    except (SyntaxError, ValueError):
        return name, value


def with_options(env: Any, name: str, options: Mapping[str, Any]) -> AnyEnv:
    """An environment of a library with other parameters."""
    holder = env.params if name.startswith("gymnax/") else env
    known = [field.name for field in dataclasses.fields(holder) if field.init]
    known = [] if name.startswith("brax/") else known
    wrong = sorted(options.keys() - {*known})
    if wrong:
        raise ValueError(
            f"`{name}` has no parameter `{wrong[0]}`; it has {', '.join(known)}."
            if known
            else f"`{name}` has no parameters that can be set: {wrong} are given."
        )
    for option, value in options.items():
        is_number = isinstance(getattr(holder, option), int | float)
        if is_number and not isinstance(value, int | float):
            raise ValueError(f"`env_option={option}={value}` must be a number.")
    changed = dataclasses.replace(holder, **options)
    return type(env)(env.environment, changed) if holder is not env else changed


def check_given(kind: str, path: str, argument: str, given: Any) -> None:
    """Checks that the agent or the environment of a run was given, if it has a path.

    **Arguments:**

    - `kind`: `agent` or `env`, as the command line calls it.
    - `path`: its name in the run.
    - `argument`: what `eqrl.load_run` calls it.
    - `given`: the class or the function, if one was given.
    """
    what = {"agent": "agent", "env": "environment"}[kind]
    found = None if given is None else name_of(given)
    if found is None and is_path(path):
        raise ValueError(
            f"The {what} of this run is `{path}`, and code is never imported because a "
            f"file names it. If you trust it, give it again: `--{kind} {path}`, or in "
            f"Python `{argument}={path.rpartition(':')[2]}`."
        )
    if found is not None and found != path:
        instead = f"give `--{kind} {path}`" if is_path(path) else "give none"
        raise ValueError(
            f"The {what} of this run is `{path}`, but `{found}` was given; {instead}."
        )


def check_agent(name: str, agent_type: type[AnyAgent] | None) -> None:
    """Checks that an agent exists, by its name or, if it is custom, `agent_type`."""
    check_given("agent", name, "agent_type", agent_type)
    if agent_type is None and name not in AGENTS:
        names = ", ".join(repr(name) for name in AGENTS)
        raise ValueError(
            f"`agent={name!r}` must be one of {names}, or one of your own, written as "
            "`package.module:Class`."
        )
