"""Priors of hyperparameters, as they are written on the command line."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
from jax.tree_util import GetAttrKey

from .._agents.base import AnyAgent
from .._population.prior import (
    AbstractPrior,
    LogUniform,
    OneMinus,
    Uniform,
    check_prior,
)
from .._pytree.fields import check_choice, range_of


Prior = tuple[str, str, float, float]
"""The name of a hyperparameter, the kind of its prior, and the bounds."""

_KINDS: dict[str, Callable[[float, float], AbstractPrior]] = {
    "uniform": Uniform,
    "loguniform": LogUniform,
    "oneminus-uniform": lambda low, high: OneMinus(Uniform(low, high)),
    "oneminus-loguniform": lambda low, high: OneMinus(LogUniform(low, high)),
}


def select_tuned(
    agent: AnyAgent, priors: Sequence[Prior]
) -> tuple[Callable[[Any], tuple[Any, ...]], tuple[AbstractPrior, ...]]:
    """`where` and `priors` of a `PBT`, for hyperparameters at any depth of the agent.

    Raises a `ValueError` unless the names are unique and each prior lies in the range
    of its hyperparameter.
    """
    paths = [path_of(agent, name) for name, *_ in priors]
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise ValueError(f"There are two priors of `{priors[index][0]}`; give one.")
    made = tuple(
        _make_prior(agent, path, prior)
        for path, prior in zip(paths, priors, strict=True)
    )
    selectors = tuple(operator.attrgetter(path) for path in paths)
    return lambda agent: tuple(select(agent) for select in selectors), made


def path_of(agent: AnyAgent, name: str) -> str:
    """The path of the one hyperparameter whose path is or ends in `name`."""
    paths = _paths(agent)
    found = [path for path in paths if f".{path}".endswith(f".{name}")]
    if len(found) == 1:
        return found[0]
    if found:
        raise ValueError(f"`{name}` could be any of {found}; give more of its path.")
    names = ", ".join(path.rpartition(".")[2] for path in paths)
    raise ValueError(
        f"There is no hyperparameter `{name}` to vary; those of this agent are {names}."
    )


def _paths(agent: AnyAgent) -> list[str]:
    """Paths of all hyperparameters that can vary, such as `agent.discount`."""
    return [
        ".".join(key.name for key in path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(agent)
        if eqx.is_inexact_array(leaf)
        and leaf.shape == ()
        and all(isinstance(key, GetAttrKey) for key in path)
    ]


def _make_prior(agent: AnyAgent, path: str, prior: Prior) -> AbstractPrior:
    name, kind, low, high = prior
    try:
        check_choice("kind", kind, _KINDS)
        made = _KINDS[kind](low, high)
        owner_path, _, field = path.rpartition(".")
        owner = operator.attrgetter(owner_path)(agent) if owner_path else agent
        check_prior(field, made, range_of(owner, field))
    except ValueError as error:
        raise ValueError(f"The prior of `{name}` is wrong: {error}") from error
    return made
