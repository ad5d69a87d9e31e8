"""Priors of hyperparameters, as they are written on the command line."""

import operator
from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.tree_util import GetAttrKey

from .._agents import AbstractAgent
from .._population import PBT, AbstractPrior, LogUniform, OneMinus, Uniform
from .._population.pbt import Selection
from .._types.custom_types import FloatLike


Prior = tuple[str, str, float, float]
"""The name of a hyperparameter, the kind of its prior, and the bounds."""

_KINDS: dict[str, Callable[[float, float], AbstractPrior]] = {
    "uniform": Uniform,
    "loguniform": LogUniform,
    "oneminus-uniform": lambda low, high: OneMinus(Uniform(low, high)),
    "oneminus-loguniform": lambda low, high: OneMinus(LogUniform(low, high)),
}


def make_pbt(
    agent: AbstractAgent[Any, Any, Any],
    priors: Sequence[Prior],
    *,
    num_replaced: int,
    num_elite: int,
    resample_probability: FloatLike,
    selection: Selection,
    copy_replay: bool,
) -> PBT:
    """A `PBT` of the hyperparameters that are named, wherever in the agent they are."""
    paths = [path_of(agent, name) for name, *_ in priors]
    for index, path in enumerate(paths):
        if path in paths[:index]:
            raise ValueError(f"There are two priors of `{priors[index][0]}`; give one.")
    made = tuple(_make_prior(*prior) for prior in priors)
    for prior, path in zip(priors, paths, strict=True):
        _check_bounds(agent, prior, path)
    select = operator.attrgetter(*paths)

    def where(agent: Any) -> tuple[Any, ...]:
        selected = select(agent)
        return selected if len(paths) > 1 else (selected,)

    return PBT(
        where=where,
        priors=made,
        num_replaced=num_replaced,
        num_elite=num_elite,
        resample_probability=resample_probability,
        selection=selection,
        copy_replay=copy_replay,
    )


def _paths(agent: AbstractAgent[Any, Any, Any]) -> list[str]:
    """Of all hyperparameters that can be varied, such as `agent.discount`."""
    return [
        ".".join(key.name for key in path)
        for path, leaf in jax.tree_util.tree_leaves_with_path(agent)
        if eqx.is_inexact_array(leaf)
        and leaf.shape == ()
        and all(isinstance(key, GetAttrKey) for key in path)
    ]


def path_of(agent: AbstractAgent[Any, Any, Any], name: str) -> str:
    """Of the one hyperparameter whose path is or ends in the name."""
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


def _make_prior(name: str, kind: str, low: float, high: float) -> AbstractPrior:
    if kind not in _KINDS:
        raise ValueError(
            f"The prior of `{name}` cannot be `{kind}`; kinds are {', '.join(_KINDS)}."
        )
    try:
        return _KINDS[kind](low, high)
    except ValueError as error:
        raise ValueError(f"The prior of `{name}` is wrong: {error}") from error


def _check_bounds(agent: AbstractAgent[Any, Any, Any], prior: Prior, path: str) -> None:
    """Raises a `ValueError` where the agent would refuse what the prior may give."""
    name, kind, *bounds = prior
    owner_path, _, field = path.rpartition(".")
    owner = operator.attrgetter(owner_path)(agent) if owner_path else agent
    check = getattr(type(owner), "__check_init__", None)
    if check is None:
        return
    for bound in bounds:
        value = jnp.asarray(1 - bound if kind.startswith("oneminus") else bound)
        try:
            check(eqx.tree_at(operator.attrgetter(field), owner, value))
        except ValueError as error:
            raise ValueError(f"The prior of `{name}` is wrong: {error}") from error
