"""JAX programs as lists of NumPy operations, for `numpy_policy.py`."""

import dataclasses
import enum
import inspect
import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from ..nn._product import plain_product, product_p
from ..numpy_policy import FORMAT, OPERATIONS, PROGRAMS


# Primitives whose programs are inlined, by the parameter with the program.
_CALLS = {
    "closed_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "jit": "jaxpr",
    "remat2": "jaxpr",
}
# The types of arrays in NumPy, by their names in JAX. A key is an integer.
_KINDS = {
    **{f"int{bits}": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **{f"float{bits}": f"float{bits}" for bits in (16, 32, 64)},
    "bool": "bool",
    "key<fry>": "uint64",
}


class _UnsupportedError(Exception):
    """An operation that NumPy policies do not have."""


@dataclasses.dataclass
class _Step:
    # The last is that of the step; each of the others calls the next one.
    equations: tuple[JaxprEqn, ...]
    operands: list[int]
    results: list[int]


@dataclasses.dataclass
class _Recording:
    """The steps of a program so far, on numbered arrays."""

    num_arrays: int
    constants: dict[int, object]
    steps: list[_Step]

    def reserve(self) -> int:
        self.num_arrays += 1
        return self.num_arrays - 1

    def constant(self, value: object) -> int:
        place = self.reserve()
        self.constants[place] = value
        return place


def numpy_members(
    programs: Mapping[str, ClosedJaxpr],
    weights: Sequence[jax.Array],
    observation: jax.ShapeDtypeStruct,
) -> dict[str, bytes]:
    """The members of a file that `numpy_policy.load_policy` reads.

    **Arguments:**

    - `programs`: `begin`, `greedy` and `sample`. One with an operation that NumPy
        policies do not have is replaced by a text that names it.
    - `weights`: the first arguments of each program.
    - `observation`: the shape and type of an observation.
    """
    members: dict[str, bytes] = {}
    described: dict[str, object] = {
        "format": FORMAT,
        "observation": [observation.shape, observation.dtype.name],
    }
    for name, program in programs.items():
        try:
            described[name] = _describe(program, weights, members)
        except _UnsupportedError as error:
            described[name] = str(error)
    return {PROGRAMS: json.dumps(described).encode(), **members}


def _describe(
    program: ClosedJaxpr | Jaxpr,
    weights: Sequence[jax.Array],
    members: dict[str, bytes],
    callers: tuple[JaxprEqn, ...] = (),
) -> dict[str, object]:
    """A program as JSON can hold it; the arrays that it reads become members."""
    jaxpr, constants = _opened(program)
    num_inputs = len(jaxpr.invars) - len(weights)
    recording = _Recording(num_inputs, {}, [])
    places = {recording.reserve(): index for index in range(len(weights))}
    inputs = [*places, *range(num_inputs)]
    outputs = _record(recording, jaxpr, constants, inputs, callers)
    live = set(outputs)
    steps: list[list[object]] = []
    # Backwards, since an operation is needed if a later one reads its result.
    for step in reversed(recording.steps):
        if live.intersection(step.results):
            live.update(step.operands)
            steps.append(_described_step(step, members))
    kept: list[list[object]] = []
    for place in sorted(live):
        if place in places:
            name = f"weights/{places[place]}"
            kept.append([place, *_stored(weights[places[place]], name, members)])
        elif place in recording.constants:
            name = f"constants/{len(members)}"
            kept.append([place, *_stored(recording.constants[place], name, members)])
    return {
        "num_arrays": recording.num_arrays,
        "constants": kept,
        "steps": steps[::-1],
        "outputs": outputs,
    }


def _opened(program: ClosedJaxpr | Jaxpr) -> tuple[Jaxpr, Sequence[object]]:
    if isinstance(program, ClosedJaxpr):
        return program.jaxpr, program.consts
    return program, ()


def _record(
    recording: _Recording,
    jaxpr: Jaxpr,
    constants: Sequence[object],
    inputs: Sequence[int],
    callers: tuple[JaxprEqn, ...],
) -> list[int]:
    """Records a program with those that it calls; returns where its outputs are."""
    places: dict[Var, int] = dict(zip(jaxpr.invars, inputs, strict=True))
    for variable, constant in zip(jaxpr.constvars, constants, strict=True):
        places[variable] = recording.constant(constant)

    def place(atom: Var | Literal) -> int:
        if isinstance(atom, Literal):
            return recording.constant(np.asarray(atom.val, _type(atom)))
        return places[atom]

    for equation in jaxpr.eqns:
        operands = [place(atom) for atom in equation.invars]
        called = _CALLS.get(equation.primitive.name)
        program = None if called is None else equation.params[called]
        if equation.primitive is product_p:
            write = partial(plain_product, **equation.params)
            program = jax.make_jaxpr(write)(*(atom.aval for atom in equation.invars))
        if program is not None:
            inner = _opened(program)
            results = _record(recording, *inner, operands, (*callers, equation))
        else:
            results = [recording.reserve() for _ in equation.outvars]
            step = _Step((*callers, equation), operands, results)
            recording.steps.append(step)
        places.update(zip(equation.outvars, results, strict=True))
    return [place(atom) for atom in jaxpr.outvars]


def _described_step(step: _Step, members: dict[str, bytes]) -> list[object]:
    equation = step.equations[-1]
    reason = _unsupported(equation)
    if reason is not None:
        raise _UnsupportedError(reason + _where(step.equations))
    name = equation.primitive.name
    operation = OPERATIONS[name]
    given = dict(equation.params)
    if name == "scan":
        # The names of its parameters differ between versions of JAX.
        inner, _ = _opened(given["jaxpr"])
        given["num_carry"] = _num_equal_ranks(equation.outvars, inner.outvars)
        num_whole = _num_equal_ranks(equation.invars, inner.invars)
        given["num_consts"] = num_whole - given["num_carry"]
    kept: dict[str, object] = {}
    # NumPy's own functions have keyword arguments, but none that a primitive needs.
    if inspect.isfunction(operation):
        for key, parameter in inspect.signature(operation).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                kept[key] = _parameter(given[key], members, step.equations)
    kinds = [_KINDS[_type(variable)] for variable in equation.outvars]
    return [name, kept, step.operands, step.results, kinds]


def _num_equal_ranks(
    outside: Sequence[Var | Literal], inside: Sequence[Var | Literal]
) -> int:
    """The number of arrays that have the same rank outside and inside of a loop."""
    shapes = [[_array(atom).shape for atom in atoms] for atoms in (outside, inside)]
    return sum(len(x) == len(y) for x, y in zip(*shapes, strict=True))


def _unsupported(equation: JaxprEqn) -> str | None:
    """Why NumPy policies do not have an operation."""
    name, parameters = equation.primitive.name, equation.params
    # Only gradients have convolutions with batch groups, and no scan is empty.
    is_odd = parameters.get("batch_group_count", 1) != 1 or (
        name == "scan" and parameters["length"] == 0
    )
    if name not in OPERATIONS or is_odd:
        return f"NumPy policies do not have the operation `{name}`"
    partitionable = jax.config.values["jax_threefry_partitionable"]
    if name in ("random_bits", "random_split") and not partitionable:
        return "NumPy policies do not draw as with `jax_threefry_partitionable=False`"
    for variable in equation.outvars:
        if _type(variable) not in _KINDS:
            return _no_kind(_type(variable))
    return None


def _no_kind(name: str) -> str:
    return f"NumPy policies do not have the type `{name}`"


def _where(equations: Sequence[JaxprEqn]) -> str:
    """The place in the source that asked for an operation, if it is known."""
    libraries = [Path(inspect.getfile(module)).parent for module in (jax, eqx)]
    for equation in reversed(equations):
        traceback = equation.source_info.traceback
        for frame in () if traceback is None else traceback.frames:
            file = Path(frame.file_name)
            if not any(file.is_relative_to(library) for library in libraries):
                line = f"line {frame.line_num} of {file.name}"
                return f", which is in `{frame.function_name}` ({line})"
    return ""


def _parameter(
    value: object, members: dict[str, bytes], callers: tuple[JaxprEqn, ...]
) -> object:
    if isinstance(value, ClosedJaxpr | Jaxpr):
        return _describe(value, (), members, callers)
    if isinstance(value, tuple | list):
        return [_parameter(each, members, callers) for each in value]
    if isinstance(value, enum.Enum | np.dtype):
        return value.name
    return value.item() if isinstance(value, np.generic) else value


def _type(atom: Var | Literal) -> str:
    """The name of the type of an array, which may be that of keys."""
    return _array(atom).dtype.name


def _array(atom: Var | Literal) -> jax.core.ShapedArray:
    assert isinstance(atom.aval, jax.core.ShapedArray)
    return atom.aval


def _stored(value: Any, name: str, members: dict[str, bytes]) -> list[object]:
    """The type, shape and numbers of a constant; arrays become members."""
    if value.dtype.name not in _KINDS:
        raise _UnsupportedError(_no_kind(value.dtype.name))
    kind = _KINDS[value.dtype.name]
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        high, low = np.moveaxis(np.asarray(jr.key_data(value), np.uint64), -1, 0)
        value = (high << np.uint64(32)) | low
    array = np.asarray(value)
    if array.ndim == 0:
        return [kind, array.shape, array.item()]
    members[name] = array.tobytes()
    return [kind, array.shape, name]
