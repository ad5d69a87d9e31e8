"""Priors of hyperparameters, and the settings that a grid and priors make."""

import dataclasses
import itertools
import math
import operator
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, PRNGKeyArray

from .._agents.base import AnyAgent, layers
from .._pytree.fields import (
    Range,
    check_fields,
    check_instance,
    interval,
    number,
    range_of,
    shown,
)
from .._pytree.tree import show_values
from .._training.trainer import Trainer
from .._types.custom_types import FloatLike


_DOWN = 0.8
_UP = 1.25


class AbstractPrior(eqx.Module):
    """The prior of one hyperparameter, and how its values are perturbed."""

    def __check_init__(self) -> None:
        check_fields(self)

    def __repr__(self) -> str:
        return show_values(self)

    @abstractmethod
    def sample(self, *, key: PRNGKeyArray) -> Float[Array, ""]:
        """Draws a value."""

    @abstractmethod
    def perturb(
        self, value: Float[Array, ""], *, key: PRNGKeyArray
    ) -> Float[Array, ""]:
        """Multiplies `value` by 1.25 or 0.8, each with probability one half.

        The factors are those of population based training. They apply in the
        coordinates of the prior, and the result is clipped to its range.
        """


def _multiply(
    value: Float[Array, ""],
    low: FloatLike,
    high: FloatLike,
    *,
    key: PRNGKeyArray,
) -> Float[Array, ""]:
    factor = jnp.where(jr.bernoulli(key), _UP, _DOWN)
    return jnp.clip(value * factor, low, high)


def _check_order(low: FloatLike, high: FloatLike) -> None:
    # A traced bound has no value to compare with.
    if not isinstance(low, Tracer):
        Range(low=float(low), low_open=True).check("high", high)


class Uniform(AbstractPrior):
    """A uniform prior."""

    low: FloatLike = eqx.field(converter=number("low"), metadata=interval())
    high: FloatLike = eqx.field(converter=number("high"), metadata=interval())

    def __check_init__(self) -> None:
        check_fields(self)
        _check_order(self.low, self.high)

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, ""]:
        return jr.uniform(key, (), minval=self.low, maxval=self.high)

    def perturb(
        self, value: Float[Array, ""], *, key: PRNGKeyArray
    ) -> Float[Array, ""]:
        return _multiply(value, self.low, self.high, key=key)


Uniform.__init__.__doc__ = """**Arguments:**

- `low`, `high`: the bounds, `low` less than `high`.
"""


class LogUniform(AbstractPrior):
    """A prior that is uniform in the logarithm."""

    low: FloatLike = eqx.field(
        converter=number("low"), metadata=interval(low=0, low_open=True)
    )
    high: FloatLike = eqx.field(converter=number("high"), metadata=interval())

    def __check_init__(self) -> None:
        check_fields(self)
        _check_order(self.low, self.high)

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, ""]:
        low, high = jnp.log(self.low), jnp.log(self.high)
        # Rounding may leave the range by one bit.
        value = jnp.exp(jr.uniform(key, (), minval=low, maxval=high))
        return jnp.clip(value, self.low, self.high)

    def perturb(
        self, value: Float[Array, ""], *, key: PRNGKeyArray
    ) -> Float[Array, ""]:
        return _multiply(value, self.low, self.high, key=key)


LogUniform.__init__.__doc__ = """**Arguments:**

- `low`, `high`: the bounds, more than 0, `low` less than `high`.
"""


class OneMinus(AbstractPrior):
    """A prior of one minus the hyperparameter, for a value near one.

    A discount of 0.985 times 1.25 would be more than 1. As one minus 0.015 it is
    perturbed to 0.988 or 0.981.
    """

    prior: AbstractPrior

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, ""]:
        return 1 - self.prior.sample(key=key)

    def perturb(
        self, value: Float[Array, ""], *, key: PRNGKeyArray
    ) -> Float[Array, ""]:
        return 1 - self.prior.perturb(1 - value, key=key)


OneMinus.__init__.__doc__ = """**Arguments:**

- `prior`: the prior of one minus the hyperparameter.
"""


def check_prior(name: str, prior: AbstractPrior, allowed: Range | None) -> None:
    """Checks that a prior of this module stays within a range.

    **Arguments:**

    - `name`: the name of the hyperparameter.
    - `prior`: any prior; one of a custom class passes, since its range is not known.
    - `allowed`: the range of the hyperparameter; `None` if it has none.
    """
    bounds = bounds_of(prior)
    if allowed is None or bounds is None:
        return
    for bound in bounds:
        allowed.check(name, bound)


def bounds_of(prior: AbstractPrior) -> tuple[FloatLike, FloatLike] | None:
    """The least and the greatest value of a prior; `None` for one of a custom class."""
    if isinstance(prior, (Uniform, LogUniform)):
        return prior.low, prior.high
    if isinstance(prior, OneMinus):
        bounds = bounds_of(prior.prior)
        return None if bounds is None else (1 - bounds[1], 1 - bounds[0])
    return None


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting of the hyperparameters, by name, and its agent and trainer."""

    values: dict[str, object]
    agent: AnyAgent
    trainer: Trainer


def make_settings(
    agent: AnyAgent,
    trainer: Trainer,
    grid: Mapping[str, Iterable[object]],
    priors: Mapping[str, AbstractPrior],
    num_draws: int | None,
    *,
    key: PRNGKeyArray,
    saved: Sequence[Mapping[str, object]] = (),
) -> list[Setting]:
    """All settings of a sweep, those of the first draw first.

    The arguments are those of `sweep`; `key` is for the draws. `saved` are the values
    of the settings as drawn before, perhaps by a processor that rounds otherwise.
    """
    if (num_draws is None) != (not priors):
        raise ValueError(
            f"`num_draws={num_draws}` and `priors` of {[*priors] or 'nothing'} do not "
            "fit: it is how often to draw from them, so give both or neither."
        )
    paths: dict[str, str] = {}
    for name in (*grid, *priors):
        path = find_path(agent, trainer, name)
        if path in paths.values():
            raise ValueError(f"`{path}` is given twice, the second time as `{name}`.")
        paths[name] = path
    listed: dict[str, list[object]] = {}
    for name, values in grid.items():
        is_many = isinstance(values, Iterable) and not isinstance(values, str)
        listed[name] = [*values] if is_many else []
        if not listed[name]:
            raise ValueError(
                f"`grid[{name!r}]={shown(values)}` must be a list of values, such as "
                "`[1e-4, 1e-3]`."
            )
        for one, other in itertools.combinations(listed[name], 2):
            if eqx.tree_equal(one, other):
                raise ValueError(
                    f"`grid[{name!r}]` has {shown(other)} twice, whose settings would "
                    "be the same; give each value once, and more seeds to train a "
                    "setting more often."
                )
    for name, prior in priors.items():
        check_instance(f"priors[{name!r}]", prior, AbstractPrior)
        if paths[name].startswith(_TRAINER):
            raise ValueError(
                f"`{name}` is of the trainer, whose fields are whole numbers, which no "
                "prior draws; put it into the `grid`."
            )
        owner, _, field = paths[name].rpartition(".")
        node = operator.attrgetter(owner)(agent) if owner else agent
        try:
            check_prior(field, prior, range_of(node, field))
        except ValueError as error:
            raise ValueError(f"The prior of `{name}` is wrong: {error}") from error
    settings = []
    for index in range(num_draws or 1):
        keys = jr.split(jr.fold_in(key, index), len(priors))
        draw = {
            name: float(str(np.asarray(prior.sample(key=each))))
            for each, (name, prior) in zip(keys, priors.items(), strict=True)
        }
        if len(settings) < len(saved):
            draw = _as_saved(draw, saved[len(settings)])
        for point in itertools.product(*listed.values()):
            values = {**dict(zip(grid, point, strict=True)), **draw}
            try:
                changed = _changed(
                    agent, trainer, {paths[x]: values[x] for x in values}
                )
            except (TypeError, ValueError) as error:
                raise ValueError(f"The setting {values} is wrong: {error}") from error
            settings.append(Setting(values, *changed))
    return settings


def _as_saved(
    draw: Mapping[str, float], saved: Mapping[str, object]
) -> dict[str, float]:
    """A draw with the saved values, where they differ from it by rounding only."""
    kept = dict(draw)
    for name, value in draw.items():
        before = saved.get(name)
        if isinstance(before, float) and math.isclose(value, before, rel_tol=1e-5):
            kept[name] = before
    return kept


def find_path(agent: AnyAgent, trainer: Trainer, name: str) -> str:
    """The path of the one field of the agent or the trainer that ends in `name`.

    Fields of the trainer begin with `trainer.`; a whole path may begin with a dot.
    """
    paths = [*_paths(agent), *(f"{_TRAINER}{path}" for path in _paths(trainer))]
    path = only_match(paths, name)
    if path is None:
        raise ValueError(
            f"There is no hyperparameter `{name}`; those of this agent and its trainer "
            f"are {', '.join(paths)}."
        )
    return path


def only_match(paths: Sequence[str], name: str) -> str | None:
    """The path that ends in `name`; `None` if there is none.

    If there are several, a `ValueError` is raised. With a dot before it, `name` is a
    whole path.
    """
    found = _matches(paths, name)
    if len(found) > 1:
        raise ValueError(
            f"`{name}` could be any of {found}; give more of its path, or all of it "
            f"with a dot before it: `.{min(found, key=len)}`."
        )
    return found[0] if found else None


def _matches(paths: Iterable[str], name: str) -> list[str]:
    return [
        path for path in paths if f".{path}" == name or f".{path}".endswith(f".{name}")
    ]


def name_of_option(agent: AnyAgent, name: str) -> str:
    """An option of the command line as `find_path` takes it.

    It is a field of the innermost agent. If other fields end in its name, this is its
    whole path, and otherwise the name.
    """
    found = _matches(_paths(agent), name)
    path = "agent." * (len([*layers(agent)]) - 1) + name
    return f".{path}" if path in found and len(found) > 1 else name


_TRAINER = "trainer."


def _paths(node: Any) -> Iterator[str]:
    """The paths of all fields of a dataclass, including those of nested dataclasses."""
    for field in dataclasses.fields(node):
        yield field.name
        value = getattr(node, field.name)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            yield from (f"{field.name}.{inner}" for inner in _paths(value))


def _changed(
    agent: AnyAgent, trainer: Trainer, values: Mapping[str, object]
) -> tuple[AnyAgent, Trainer]:
    """Agent and trainer with other values, by their paths."""
    options: dict[str, Any] = {}
    of_agent: dict[tuple[str, ...], object] = {}
    for path, value in values.items():
        if path.startswith(_TRAINER):
            options[path.removeprefix(_TRAINER)] = value
        else:
            of_agent[tuple(path.split("."))] = value
    agent = _replaced(agent, of_agent)
    if options and trainer.is_on_policy:
        # The other fields follow from these.
        sizes = {
            "num_envs": trainer.num_envs,
            "steps_per_iteration": trainer.steps_per_iteration,
            "make_replay": trainer.make_replay,
        } | options
        num_steps = sizes.pop("steps_per_iteration")
        return agent, Trainer.on_policy(num_steps=num_steps, **sizes)
    return agent, dataclasses.replace(trainer, **options)


def _replaced(node: Any, values: Mapping[tuple[str, ...], object]) -> Any:
    """The node with other values, by their paths."""
    # The constructor converts and checks its arguments, which may have to fit each
    # other, so they are replaced together.
    fields: dict[str, object] = {}
    for name in dict.fromkeys(path[0] for path in values):
        below = {path[1:]: x for path, x in values.items() if path[0] == name}
        field = below.pop((), getattr(node, name))
        fields[name] = _replaced(field, below) if below else field
    return dataclasses.replace(node, **fields)
