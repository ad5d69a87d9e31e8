"""Fields and arguments that declare the values they allow, and their checks."""

import dataclasses
import functools
import inspect
import math
import types
import typing
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar, cast

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray
from typing_extensions import is_protocol

from .._types.custom_types import FloatLike


_RANGE = "eqrl_range"
_LEAST = "eqrl_least"
_CHOICES = "eqrl_choices"
_CHECK = "eqrl_check"
_INIT_ONLY = "eqrl_init_only"

HOLDS_STACK = {"eqrl_holds_stack": True}
"""Metadata of a field that holds a stack in a module that is none itself."""

_A_NUMBER = (
    "is not a number. Give a float; a rate that varies belongs in `make_optimizer`, as "
    "in `lambda rate: optax.adam(schedule)`, and a prior into `eqrl.PBT`."
)

# Suggestions in errors for arguments of classes that later modules define.
_EXAMPLES = {
    "AbstractAgent": "`eqrl.SAC()`",
    "AbstractEnv": '`eqrl.envs.make("brax/ant")`',
    "EnvSpec": "`env.spec`",
    "Trainer": "`eqrl.Trainer()`",
    "Transition": "what `eqrl.transitions_from_arrays` gives",
}

Converted = TypeVar("Converted")
Value = TypeVar("Value")
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Range:
    """The interval that a hyperparameter must lie in.

    - `low`, `high`: the bounds; `high` itself is allowed if it is finite.
    - `low_open`: whether `low` itself is excluded.
    - `optional`: whether `None` is allowed too.
    """

    low: float | int = -math.inf
    high: float | int = math.inf
    low_open: bool = False
    optional: bool = False

    def __str__(self) -> str:
        left = "(" if self.low_open or self.low == -math.inf else "["
        right = ")" if self.high == math.inf else "]"
        return f"{left}{self.low:g}, {self.high:g}{right}"

    def check(self, name: str, value: Any) -> None:
        """Checks that `value` is one finite number in the interval.

        Under `jit` or `vmap` only the shape is checked.
        """
        allowed = f"it must be a finite number in {self}"
        if value is None:
            if not self.optional:
                raise ValueError(f"`{name}=None` is not a number; {allowed}.")
            return
        shape = converted(name, np.shape, value, f"is not a number; {allowed}.")
        if shape != ():
            raise ValueError(
                f"`{name}` has shape {shape}; {allowed}. Make a stack, one "
                "for each of many values, by `equinox.filter_vmap` over the "
                "constructor."
            )
        # The value of a tracer is unknown: constructors run under `vmap` too.
        if isinstance(value, jax.core.Tracer):
            return
        number = converted(name, float, value, f"is not a number; {allowed}.")
        above = number > self.low if self.low_open else number >= self.low
        if not (above and number <= self.high and math.isfinite(number)):
            raise ValueError(f"`{name}={number:g}` is out of range; {allowed}.")


@dataclasses.dataclass(frozen=True)
class AtLeast:
    """The least integer allowed; if `counted`, a JAX array must hold the value."""

    least: int
    counted: bool = False

    def check(self, name: str, value: Any) -> None:
        check_integer(name, value, least=self.least)
        most = jnp.iinfo(jnp.result_type(int)).max
        if self.counted and value > most:
            raise ValueError(
                f"`{name}={value}` is more than an array of JAX can count, {most}. "
                "Lower it."
            )


PositiveInt = typing.Annotated[int, AtLeast(1)]
Count = typing.Annotated[int, AtLeast(1, counted=True)]
NonNegativeInt = typing.Annotated[int, AtLeast(0)]


@dataclasses.dataclass(frozen=True)
class Takes:
    """The arguments that a function, or each in a sequence, must be callable with."""

    arguments: tuple[str, ...]

    def check(self, name: str, value: object) -> None:
        for function in value if isinstance(value, Sequence) else (value,):
            check_arity(name, function, *self.arguments)


def hyperparameter(
    # `MISSING` is dataclasses' own sign of a required field: `None` means optional.
    default: float | None = dataclasses.MISSING,  # pyright: ignore[reportArgumentType]
    *,
    low: float | int = -math.inf,
    high: float | int = math.inf,
    low_open: bool = False,
    init_only: bool | str = False,
) -> Any:
    """A field of an `equinox.Module` for a float that enters arithmetic.

    It is stored as a strongly typed scalar array, a leaf. So it can be mapped over with
    `equinox.filter_vmap`, tuned by population based training and changed with
    `equinox.tree_at`, without compiling anything anew.

    **Arguments:**

    - `default`: the value when none is given, in the units of the field. `None` makes
        the field optional. Without a default the field is required.
    - `low`, `high`: the interval it must lie in, bounds included. It is checked when a
        module is made: agents, environments, rewards, skill priors, replays and priors
        of populations call `eqrl.check_fields` in their `__check_init__`. Population
        based training respects it, and the help of the command line shows it.
    - `low_open`: whether `low` itself is excluded.
    - `init_only`: whether only `init` reads it, so that changing it later has no
        effect; or the name of a field of the module that holds this flag. Population
        based training draws such a value, and then keeps it.

    **Returns:**

    A dataclass field, to be assigned as in `name: FloatLike = hyperparameter(0.99)`.
    """
    allowed = Range(low=low, high=high, low_open=low_open, optional=default is None)
    metadata = {_RANGE: allowed, _INIT_ONLY: init_only}
    return converted_field(
        default, convert=_strong_scalar, what=_A_NUMBER, metadata=metadata
    )


def number(name: str) -> Callable[[FloatLike], Float[Array, ""]]:
    """The converter of a required hyperparameter, with the name of its field.

    Static type checkers see that a field is required only where it is written out, as
    in `low: FloatLike = eqx.field(converter=number("low"), metadata=interval())`.
    """
    return lambda value: converted(name, _strong_scalar, value, _A_NUMBER)


def interval(
    *, low: float | int = -math.inf, low_open: bool = False
) -> dict[str, object]:
    """The metadata of a required hyperparameter: the interval it must lie in."""
    return {_RANGE: Range(low=low, high=math.inf, low_open=low_open, optional=False)}


def hyperparameters(
    default: float | None,
    *,
    low: float | int = -math.inf,
    high: float | int = math.inf,
    check: Callable[[str, Any], None] | None = None,
) -> Any:
    """Like `hyperparameter`, for a number, or a tuple or vector of numbers.

    Each is a leaf that must lie in the interval. `check` is a further check, as for
    `checked_by`.
    """
    allowed = Range(low=low, high=high, optional=default is None)
    metadata = {_RANGE: allowed} | ({} if check is None else checked_by(check))
    return converted_field(
        default, convert=_strong_scalars, what=_A_NUMBER, metadata=metadata
    )


def whole_number(default: int) -> Any:
    """Like `hyperparameter`, for an integer that does not determine a shape."""
    what = "must be a whole number."
    return converted_field(default, convert=strong_integer, what=what)


def static_integer(
    default: int | None = dataclasses.MISSING,  # pyright: ignore[reportArgumentType]
    *,
    least: int,
) -> Any:
    """A static field for an integer of at least `least`, such as a size.

    A `default` of `None` makes the field optional.
    """
    return converted_field(
        default, convert=plain_integer, metadata={_LEAST: least}, static=True
    )


def static_choice(
    default: str = dataclasses.MISSING,  # pyright: ignore[reportArgumentType]
    choices: Collection[str] = (),
) -> Any:
    """A static field for a string that must be one of `choices`."""
    metadata = {_CHOICES: tuple(choices)}
    return converted_field(default, metadata=metadata, static=True)


def checked_by(check: Callable[[str, Any], None]) -> dict[str, object]:
    """The metadata of a field that `check` is called with, by its name and value."""
    return {_CHECK: check}


def converted_field(
    default: object = dataclasses.MISSING,
    *,
    convert: Callable[[Any], object] | None = None,
    what: str = "",
    metadata: Mapping[str, object] | None = None,
    static: bool = False,
) -> Any:
    """A field whose values are converted; `check_fields` reads its `metadata`.

    If `convert` raises a `TypeError` or a `ValueError`, that becomes a `ValueError`
    with the name of the field and `what` a value must be.
    """
    options: dict[str, Any] = {"metadata": dict(metadata or {}), "static": static}
    if default is not dataclasses.MISSING:
        options["default"] = default
    if convert is not None:
        # The field has its name only once the class is made.
        options["converter"] = lambda value: converted(field.name, convert, value, what)
    field = eqx.field(**options)
    return field


def converted(
    name: str, convert: Callable[[Any], Converted], value: Any, what: str
) -> Converted:
    """`convert(value)`; a `ValueError` that names the argument if that fails.

    `what` is the end of its message: what the value must be.
    """
    try:
        return convert(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"`{name}={shown(value)}` {what}") from error


def check_fields(module: eqx.Module) -> None:
    """Checks that the values of all fields are as declared.

    Called in `__check_init__`, by the abstract bases of eqrl for every subclass. A
    `__check_init__` of a subclass runs before that of its base. It reads the ranges of
    `hyperparameter`; under `jit` or `vmap` only shapes are checked. Fields declared as
    a module, a tuple of modules, a function or a `bool` must hold one.
    """
    for field in dataclasses.fields(module):
        value = getattr(module, field.name)
        if _CHECK in field.metadata:
            field.metadata[_CHECK](field.name, value)
        # Before the range, so that a value of another kind is named as such.
        check_declared(field.name, value, field.type)
        if _RANGE in field.metadata:
            allowed = field.metadata[_RANGE]
            if isinstance(value, tuple):
                # An optional field may be `None` as a whole, but not in part.
                each = dataclasses.replace(allowed, optional=False)
                for index, element in enumerate(value):
                    each.check(f"{field.name}[{index}]", element)
            else:
                allowed.check(field.name, value)
        is_left_out = value is None and field.default is None
        if _LEAST in field.metadata and not is_left_out:
            check_integer(field.name, value, least=field.metadata[_LEAST])
        if _CHOICES in field.metadata:
            check_choice(field.name, value, field.metadata[_CHOICES])


def check_declared(name: str, value: object, declared: Any) -> None:
    """Checks that a value is not clearly of another type than the declared one.

    It reads what `Annotated` adds (`Range`, `AtLeast`, `Takes`), strings of a
    `Literal`, keys, modules and tuples of them, other classes of eqrl, functions,
    `bool`, and whether a value is optional. Every value passes for other types, such as
    arrays and numbers, and other unions.
    """
    origin, inner = typing.get_origin(declared), typing.get_args(declared)
    kind = origin or declared
    if declared == PRNGKeyArray:
        check_key(value)
    elif origin is typing.Annotated:
        allowed = [x for x in inner[1:] if isinstance(x, (Range, AtLeast, Takes))]
        for each in allowed:
            each.check(name, value)
        if not allowed:
            check_declared(name, value, inner[0])
    elif origin in (typing.Union, types.UnionType):
        # A union of several kinds passes: an array or a number has many of them.
        alternatives = [each for each in inner if each is not types.NoneType]
        is_left_out = value is None and types.NoneType in inner
        if len(alternatives) == 1 and not is_left_out:
            check_declared(name, value, alternatives[0])
    elif origin is typing.Literal:
        check_choice(name, value, inner)
    elif kind is tuple:
        # Only tuples of modules. Tuples of numbers are sizes, with more precise checks.
        element, *rest = inner or (object,)
        if rest == [Ellipsis] and is_module(typing.get_origin(element) or element):
            if not isinstance(value, (tuple, list)):
                raise ValueError(
                    f"`{name}={shown(value)}` must be a tuple, also of a single value."
                )
            for index, each in enumerate(value):
                check_declared(f"{name}[{index}]", each, element)
    elif kind is bool:
        if not isinstance(value, (bool, np.bool_)):
            raise ValueError(f"`{name}={shown(value)}` must be True or False.")
    elif kind is Callable or (
        isinstance(kind, type) and is_protocol(kind) and "__call__" in vars(kind)
    ):
        check_callable(name, value)
    elif is_module(kind) or (
        isinstance(kind, type) and kind.__module__.startswith("eqrl.")
    ):
        # A class may have a more helpful message than its name.
        check = getattr(kind, "_check_argument", None)
        if check is None:
            check_instance(name, value, kind)
        else:
            check(name, value)


def checked(function: Function) -> Function:
    """Checks the arguments of each call by their annotations, with `check_declared`.

    So `num_episodes: PositiveInt` must be an integer of at least 1, `mode: Mode` one of
    the strings of a `Literal`, `key: PRNGKeyArray` one key, and `env: AbstractEnv` a
    single environment: an argument of an abstract class must not be a stack, unless it
    is `Annotated`. The first argument that does not fit raises a `ValueError` that
    names it. NumPy integers become Python's.
    """
    # Inspecting takes longer than all checks of a call, so it is done once.
    signature = inspect.signature(function)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs)
        except TypeError:
            # Python's own error names the function.
            return function(*args, **kwargs)
        for name, value in given.arguments.items():
            declared = signature.parameters[name].annotation
            check_declared(name, value, declared)
            # A stack has the class of its elements; only its hyperparameters reveal it.
            kind = typing.get_origin(declared) or declared
            if is_module(kind) and inspect.isabstract(kind):
                check_single(name, value)
            # In a compiled program a NumPy integer would be an array.
            given.arguments[name] = plain_integer(value)
        return function(*given.args, **given.kwargs)

    return cast(Function, call)


def check_single(name: str, module: object) -> None:
    """Checks that a module, such as an agent, is not a stack of several."""
    if (stack := stack_of(module)) is not None:
        field, size = stack
        raise ValueError(
            f"`{name}` is a stack of {size}: its `{field}` has an axis of that length. "
            f"Take one by `eqrl.member({name}, index)`, and its state likewise; or "
            "train them all by `eqrl.train_population`."
        )


def is_module(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, eqx.Module)


def check_callable(name: str, value: object) -> None:
    """Checks that a value can be called."""
    if not callable(value):
        raise ValueError(f"`{name}={shown(value)}` must be a function.")


def check_factory(name: str, factory: object, *sizes: int, **options: object) -> None:
    """Checks that a factory of networks can be called with these arguments."""
    advice = (
        " Give a factory of networks, such as those of `eqrl.nn`, rather than a "
        "network."
    )
    check_arity(name, factory, *["size"] * len(sizes), advice=advice, **options)


def check_arity(
    name: str, function: object, *arguments: str, advice: str = "", **options: object
) -> None:
    """Checks that `function` can be called with these arguments, named by strings."""
    check_callable(name, function)
    try:
        signature = inspect.signature(cast(Callable[..., Any], function))
    except (TypeError, ValueError):
        return  # Some builtins have no signature.
    try:
        signature.bind(*arguments, **options)
    except TypeError as error:
        given = ", ".join([*arguments, *(f"{option}=..." for option in options)])
        raise ValueError(
            f"`{name}={shown(function)}` cannot be called as `{name}({given})`: "
            f"{error}.{advice}"
        ) from error


def check_instance(name: str, value: object, kind: type) -> None:
    """Checks that `value` is an instance of `kind`."""
    if isinstance(value, kind):
        return
    if isinstance(value, type) and issubclass(value, kind):
        raise ValueError(
            f"`{name}` is the class `{value.__name__}`; give an instance of it, as "
            f"`{value.__name__}(...)` makes it."
        )
    example = _EXAMPLES.get(kind.__name__)
    raise ValueError(
        f"`{name}={shown(value)}` is of type {type(value).__name__}; it must be an "
        f"instance of `{kind.__name__}`"
        + ("." if example is None else f", such as {example}.")
    )


def check_vector(name: str, value: object) -> None:
    """Checks that a value is an array with one axis."""
    if not isinstance(value, (jax.Array, np.ndarray)) or value.ndim != 1:
        raise ValueError(f"`{name}={shown(value)}` must be an array with one axis.")


def is_key(array: jax.Array | np.ndarray | np.generic | jax.ShapeDtypeStruct) -> bool:
    """Whether an array holds typed keys, as `jax.random.key` makes them."""
    return jnp.issubdtype(array.dtype, jax.dtypes.prng_key)


def check_key(key: object) -> None:
    """Checks that `key` is a single JAX key."""
    if isinstance(key, (jax.Array, np.ndarray)):
        if is_key(key):
            axes = key.shape
        elif key.dtype == np.uint32 and key.ndim > 0:
            # As `jax.random.PRNGKey` makes it.
            axes = key.shape[:-1]
        else:
            axes = None
        if axes == ():
            return
        if axes is not None:
            raise ValueError(
                f"`key` is a stack of keys of shape {axes}; give one, such as `key[0]`."
            )
    raise ValueError(
        f"`key={shown(key)}` is not a key; give one, such as `jax.random.key(0)`."
    )


def typed_key(key: PRNGKeyArray) -> PRNGKeyArray:
    """The key, typed if it is one of `jax.random.PRNGKey`."""
    return key if is_key(key) else jr.wrap_key_data(key)


def reusable_key(key: PRNGKeyArray) -> PRNGKeyArray:
    """The key of a whole training or evaluation, which may be given again.

    A resumed training takes the same key again, and so does a comparison, which
    `jax_debug_key_reuse` refuses; a clone passes. Within a program, a typed key is
    returned unchanged.
    """
    key = typed_key(key)
    return key if isinstance(key, jax.core.Tracer) else jr.clone(key)


def shown(value: object) -> str:
    """A value in one short line of a message."""
    text = " ".join(repr(value).split())
    return text if len(text) <= 80 else f"{text[:77]}..."


def range_of(module: eqx.Module | type[eqx.Module], name: str) -> Range | None:
    """The range that a field was declared with; `None` if it was declared with none."""
    return _metadata(module, name).get(_RANGE)


def is_init_only(module: eqx.Module, name: str) -> bool:
    """Whether only `init` reads a field, so that a later change has no effect."""
    marked = _metadata(module, name).get(_INIT_ONLY, False)
    return bool(getattr(module, marked) if isinstance(marked, str) else marked)


def _metadata(module: eqx.Module | type[eqx.Module], name: str) -> Mapping[str, Any]:
    found = (x.metadata for x in dataclasses.fields(module) if x.name == name)
    return next(found, {})


def stack_of(tree: object) -> tuple[str, int] | None:
    """A hyperparameter that has an axis, and its length; `None` if there is none.

    Hyperparameters are scalars, so a module that has one with an axis is a stack,
    unless it is within a field with the metadata `HOLDS_STACK`.
    """
    if isinstance(tree, (tuple, list)):
        return next((found for x in tree if (found := stack_of(x))), None)
    if not isinstance(tree, eqx.Module):
        return None
    for field in dataclasses.fields(tree):
        value = getattr(tree, field.name, None)
        if field.metadata.keys() & HOLDS_STACK:
            continue
        if _RANGE in field.metadata:
            for each in value if isinstance(value, tuple) else (value,):
                if len(shape := getattr(each, "shape", ())) > 0:
                    return field.name, shape[0]
        elif found := stack_of(value):
            return found
    return None


def _strong_scalar(value: Any) -> Any:
    # An explicit dtype removes weak typing. A weakly typed leaf would cause a retrace
    # once it is replaced by a strongly typed one, such as a perturbed value.
    if value is None:
        return None
    if isinstance(value, (str, bytes)):
        raise ValueError(f"A hyperparameter must be a number, but {value!r} was given.")
    return jnp.asarray(value, dtype=jnp.result_type(float))


def _strong_scalars(value: Any) -> Any:
    if isinstance(value, (tuple, list)) or getattr(value, "ndim", 0) == 1:
        return tuple(_strong_scalar(element) for element in value)
    return _strong_scalar(value)


def strong_integer(value: Any) -> Any:
    """An integer as a strongly typed scalar array."""
    if not jnp.issubdtype(jnp.result_type(value), jnp.integer):
        raise ValueError(f"A whole number is needed, but {value!r} was given.")
    return jnp.asarray(value, dtype=jnp.result_type(int))


def plain_integer(value: Value) -> Value | int:
    """Converts a NumPy integer to Python's; returns anything else as it is."""
    return int(value) if isinstance(value, np.integer) else value


def check_integer(name: str, value: Any, *, least: int) -> None:
    """Checks that `value` is an integer of at least `least`."""
    # `True` is an `int` of Python, but never a size.
    is_integer = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not is_integer or value < least:
        raise ValueError(
            f"`{name}={shown(value)}` must be an integer, at least {least}."
        )


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Checks that `value` is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        names = ", ".join(repr(choice) for choice in choices)
        raise ValueError(f"`{name}={shown(value)}` must be one of {names}.")
