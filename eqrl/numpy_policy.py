"""Exported policies, run by NumPy alone.

This module imports NumPy and the standard library only, and neither JAX nor eqrl. Where
they are not installed, a copy of it loads exported policies.
"""

import json
import math
import os
import statistics
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np


# A file is a zip archive, as `exported_policy.py` says. This member holds the programs
# `begin`, `greedy` and `sample` as lists of operations, which have the names of JAX, or
# as a text that says why NumPy cannot run one of them.
PROGRAMS = "numpy.json"
FORMAT = 1

_HEADER = "policy.json"

_Described = dict[str, Any]
# NumPy makes a number of an array of the shape `()`.
_Bits = np.ndarray | np.unsignedinteger
_Operation = Callable[..., object]
# The strides, the padding, and the dilations of an image and of a window.
_Geometry = tuple[Sequence[int], Sequence[Sequence[int]], Sequence[int], Sequence[int]]


class NumPyPolicy:
    """A policy that acts in one environment, from NumPy arrays to NumPy arrays.

    `load_policy` makes it. It keeps the agent's memory within an episode, so call
    `reset` when an episode begins, and load one policy for each environment.
    """

    def __init__(
        self,
        begin: "_Program",
        act: "_Program",
        observation: tuple[tuple[int, ...], np.dtype],
        *,
        seed: int,
    ) -> None:
        self._begin = begin
        self._act = act
        self._shape, self._kind = observation
        self._seed = np.array(seed, np.uint32)
        self._num_episodes = 0
        self._num_steps = 0
        self._memory: Sequence[np.ndarray] | None = None

    @property
    def observation_size(self) -> int:
        """The length of an observation."""
        return self._shape[0]

    def reset(self) -> None:
        """Begins an episode; the first begins by itself."""
        self._memory = None

    def act(self, observation: np.ndarray) -> np.ndarray:
        """The action after the next observation of the episode.

        It is a vector in [-1, 1], or an integer of shape `()`.

        **Arguments:**

        - `observation`: a vector of the same size and type as in training.
        """
        given, kind = np.asarray(observation), self._kind
        fits = given.dtype.kind in "biuf" if kind.kind == "f" else given.dtype == kind
        if given.shape != self._shape or not fits:
            raise ValueError(
                f"`observation` has the shape {given.shape} and the type {given.dtype},"
                f" but must be {self.observation_size} numbers, of the type {kind}."
            )
        # As in compiled programs, no number is too large, and 1 / 0 is infinite.
        with np.errstate(all="ignore"):
            if self._memory is None:
                episode = np.array(self._num_episodes % 2**32, np.uint32)
                self._memory = self._begin(self._seed, episode)
                self._num_episodes += 1
            step = np.array(self._num_steps % 2**32, np.uint32)
            given = given.astype(kind)
            action, *self._memory = self._act(*self._memory, given, self._seed, step)
        self._num_steps += 1
        return action.copy()


def load_policy(
    path: str | os.PathLike[str],
    *,
    mode: Literal["greedy", "sample"] = "greedy",
    seed: int = 0,
) -> NumPyPolicy:
    """Loads a policy that `eqrl.export_policy` wrote, to act without JAX.

    ```python
    policy = eqrl.numpy_policy.load_policy("walker.policy")
    policy.reset()
    action = policy.act(observation)
    ```

    Only NumPy is needed. Where eqrl is not installed, put a copy of the file
    `eqrl/numpy_policy.py` there and call its `load_policy`. The policy draws from the
    same random bits as that of `eqrl.load_policy`, and their actions differ by rounding
    only.

    **Arguments:**

    - `path`: the file.
    - `mode`: how actions are picked, `"greedy"` as in evaluation or `"sample"` as in
        training.
    - `seed`: at least 0, for sampled actions and for draws once per episode. The same
        seed draws the same actions.

    Raises a `ValueError` of one line that names the file if it is damaged, was not
    exported, was exported before policies had a NumPy form, or has an operation that
    this module does not know. That can only come from a custom network or agent, and
    the error names it; to find out, load the policy once after exporting it.
    """
    if mode not in ("greedy", "sample"):
        raise ValueError(f"`mode={mode!r}` must be 'greedy' or 'sample'.")
    # A bool is an integer to Python.
    is_integer = isinstance(seed, int | np.integer) and type(seed) is not bool
    if not is_integer or not 0 <= seed < 2**32:
        raise ValueError(
            f"`seed={seed}` must be an integer, at least 0 and less than 2^32."
        )
    header, members = _read(Path(path))
    with_jax = "load it with JAX, by `eqrl.load_policy`"
    if PROGRAMS not in members:
        raise ValueError(
            f"`{path}` was exported with eqrl {header['eqrl']}, without a form for "
            f"NumPy; export it again, or {with_jax}."
        )
    described = json.loads(members[PROGRAMS])
    if described["format"] != FORMAT:
        raise ValueError(
            f"`{path}` has the format {described['format']} of policies for NumPy, and "
            f"this module reads {FORMAT}; take it from eqrl {header['eqrl']}."
        )
    programs: list[_Program] = []
    for name in ("begin", mode):
        if isinstance(described[name], str):
            raise ValueError(
                f"`{path}` cannot act without JAX: {described[name]}; {with_jax}."
            )
        try:
            programs.append(_Program(described[name], members))
        except KeyError as error:
            raise ValueError(
                f"`{path}` has the operation {error}, which this module does not know; "
                f"take the module from eqrl {header['eqrl']}, or {with_jax}."
            ) from error
    begin, act = programs
    shape, kind = described["observation"]
    return NumPyPolicy(begin, act, (tuple(shape), np.dtype(kind)), seed=int(seed))


# Each module can be copied alone, so this is also in `exported_policy.py`.
def _read(path: Path) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Reads the header and all other members of a file, even those not needed."""
    try:
        with zipfile.ZipFile(path) as archive:
            header = json.loads(archive.read(_HEADER))
            if header["format"] == 1:
                return header, {name: archive.read(name) for name in header["members"]}
    except OSError as error:
        raise ValueError(f"`{path}` cannot be read: {error.strerror}.") from error
    except Exception as error:  # A flipped bit may ask for a password, for example.
        raise ValueError(
            f"`{path}` is damaged, or is not a policy that `eqrl.export_policy` wrote; "
            "take it from a copy, or export the policy again."
        ) from error
    raise ValueError(
        f"`{path}` has the format {header['format']} of exported policies, and this "
        "module reads 1; take it from a later eqrl."
    )


class _Program:
    """A list of operations, each on some of the arrays made before it."""

    def __init__(self, described: _Described, members: Mapping[str, bytes]) -> None:
        self._num_arrays: int = described["num_arrays"]
        self._constants = [
            # Arrays are separate members; single numbers are inline.
            (place, np.ndarray(shape, kind, members[value]))
            if isinstance(value, str)
            else (place, np.array(value, kind))
            for place, kind, shape, value in described["constants"]
        ]
        self._steps = [
            (
                OPERATIONS[name],
                {key: _parameter(value, members) for key, value in parameters.items()},
                operands,
                results,
                [np.dtype(kind) for kind in kinds],
            )
            for name, parameters, operands, results, kinds in described["steps"]
        ]
        self._outputs: list[int] = described["outputs"]

    def __call__(self, *inputs: np.ndarray) -> list[np.ndarray]:
        arrays: list[Any] = [None] * self._num_arrays
        arrays[: len(inputs)] = inputs
        for place, constant in self._constants:
            arrays[place] = constant
        for operation, parameters, operands, results, kinds in self._steps:
            made = operation(*(arrays[place] for place in operands), **parameters)
            several = made if isinstance(made, list | tuple) else (made,)
            for place, kind, array in zip(results, kinds, several, strict=True):
                # NumPy sums integers, for example, in a type that it chooses.
                arrays[place] = np.asarray(array, kind)
        return [arrays[place] for place in self._outputs]


def _parameter(value: object, members: Mapping[str, bytes]) -> object:
    if isinstance(value, dict):  # The body of a loop or a branch.
        return _Program(value, members)
    if isinstance(value, list):
        return [_parameter(each, members) for each in value]
    return value


# Numbers.


def _divide(x: np.ndarray, y: np.ndarray) -> object:
    if x.dtype.kind == "f":
        return np.true_divide(x, y)
    # Towards zero, unlike `//`.
    return np.sign(x) * np.sign(y) * (np.abs(x) // np.abs(y))


def _remainder(x: np.ndarray, y: np.ndarray) -> object:
    # It has the sign of `x`; XLA leaves an integer as it is where `y` is 0.
    remainder = np.fmod(x, y)
    return remainder if x.dtype.kind == "f" else np.where(y == 0, x, remainder)


def _round(x: np.ndarray, *, rounding_method: str) -> object:
    whole = np.trunc(x)
    halves_away = whole + np.sign(x) * (np.abs(x - whole) >= 0.5)
    return np.rint(x) if rounding_method == "TO_NEAREST_EVEN" else halves_away


def _inverse_error_function(x: float) -> float:
    if abs(x) >= 1:
        return math.copysign(math.inf, x) if abs(x) == 1 else math.nan
    return statistics.NormalDist().inv_cdf((x + 1) / 2) / math.sqrt(2)


def _each(function: Callable[[float], float]) -> _Operation:
    """A function of Python on each element, for which NumPy has none."""
    return np.vectorize(function, otypes=[float])


def _select(which: np.ndarray, *cases: np.ndarray) -> np.ndarray:
    chosen = cases[0]
    for number, case in enumerate(cases[1:], 1):
        chosen = np.where(which == number, case, chosen)
    return chosen


def _convert(x: np.ndarray, *, new_dtype: str) -> np.ndarray:
    kind = np.dtype(new_dtype)
    if x.dtype.kind != "f" or kind.kind not in "iu":
        return x.astype(kind)
    # As in XLA, what is too large becomes the largest integer, and `nan` becomes 0.
    lowest, highest = kind.type(np.iinfo(kind).min), kind.type(np.iinfo(kind).max)
    is_low, is_high = x <= np.float64(lowest), x >= np.float64(highest)
    inside = np.where(is_low | is_high | np.isnan(x), 0, x).astype(kind)
    return np.where(is_high, highest, np.where(is_low, lowest, inside))


def _bitcast(x: np.ndarray, *, new_dtype: str) -> np.ndarray:
    kind = np.dtype(new_dtype)
    if kind.itemsize < x.itemsize:
        return np.ascontiguousarray(x)[..., None].view(kind)
    if kind.itemsize > x.itemsize:
        return np.ascontiguousarray(x).view(kind)[..., 0]
    return x.view(kind)


def _shift_right_logical(x: np.ndarray, by: np.ndarray) -> object:
    unsigned = f"u{x.itemsize}"
    return np.right_shift(x.view(unsigned), by.view(unsigned)).view(x.dtype)


# Reductions.


def _reduce(ufunc: np.ufunc) -> _Operation:
    def reduce(x: np.ndarray, *, axes: Sequence[int]) -> object:
        return ufunc.reduce(x, axis=tuple(axes))

    return reduce


def _accumulate(ufunc: np.ufunc) -> _Operation:
    def accumulate(x: np.ndarray, *, axis: int, reverse: bool) -> np.ndarray:
        if reverse:
            return np.flip(ufunc.accumulate(np.flip(x, axis), axis), axis)
        return ufunc.accumulate(x, axis)

    return accumulate


def _sort(*operands: np.ndarray, dimension: int, num_keys: int) -> list[np.ndarray]:
    order = np.lexsort(operands[:num_keys][::-1], axis=dimension)
    return [np.take_along_axis(operand, order, dimension) for operand in operands]


# Shapes.


def _broadcast(
    x: np.ndarray, *, shape: Sequence[int], broadcast_dimensions: Sequence[int]
) -> np.ndarray:
    ones = [1] * len(shape)
    for size, dimension in zip(x.shape, broadcast_dimensions, strict=True):
        ones[dimension] = size
    return np.broadcast_to(x.reshape(ones), shape)


def _slice(
    x: np.ndarray,
    *,
    start_indices: Sequence[int],
    limit_indices: Sequence[int],
    strides: Sequence[int] | None,
) -> np.ndarray:
    steps = [1] * x.ndim if strides is None else strides
    return x[tuple(map(slice, start_indices, limit_indices, steps))]


def _window(
    shape: Sequence[int], starts: Sequence[np.ndarray], sizes: Sequence[int]
) -> tuple[slice, ...]:
    """A part of an array, moved so that it is within the array."""
    places = [
        min(max(int(start), 0), length - size)
        for start, length, size in zip(starts, shape, sizes, strict=True)
    ]
    return tuple(map(slice, places, np.add(places, sizes)))


def _dynamic_update(
    x: np.ndarray, update: np.ndarray, *starts: np.ndarray
) -> np.ndarray:
    updated = x.copy()
    updated[_window(x.shape, starts, update.shape)] = update
    return updated


def _pad(
    x: np.ndarray, value: object, *, padding_config: Sequence[Sequence[int]]
) -> np.ndarray:
    """Pads before, after and between elements; negative numbers remove elements."""
    before, after, between = np.reshape(padding_config, (-1, 3)).astype(int).T
    sizes = np.array(x.shape, int)
    sizes += np.maximum(sizes - 1, 0) * between
    starts = np.maximum(before, 0)
    padded = np.full(starts + sizes + np.maximum(after, 0), value, x.dtype)
    padded[tuple(map(slice, starts, starts + sizes, between + 1))] = x
    ends = padded.shape - np.maximum(-after, 0)
    return padded[tuple(map(slice, np.maximum(-before, 0), ends))]


# Products, convolutions, and reading and writing at indices.


def _dot_general(
    x: np.ndarray, y: np.ndarray, *, dimension_numbers: Sequence[Sequence[list[int]]]
) -> np.ndarray:
    (x_summed, y_summed), (x_batch, y_batch) = dimension_numbers
    x_free = [axis for axis in range(x.ndim) if axis not in x_summed + x_batch]
    y_free = [axis for axis in range(y.ndim) if axis not in y_summed + y_batch]
    batch = [x.shape[axis] for axis in x_batch]
    length = math.prod(x.shape[axis] for axis in x_summed)
    rows = [x.shape[axis] for axis in x_free]
    columns = [y.shape[axis] for axis in y_free]
    left = x.transpose(x_batch + x_free + x_summed)
    right = y.transpose(y_batch + y_summed + y_free)
    product = np.matmul(
        left.reshape([*batch, math.prod(rows), length]),
        right.reshape([*batch, length, math.prod(columns)]),
    )
    return product.reshape(batch + rows + columns)


def _windows(
    x: np.ndarray, value: object, sizes: Sequence[int], geometry: _Geometry
) -> np.ndarray:
    """The windows over the last axes of an array, of shape `(..., *places, *sizes)`."""
    strides, padding, base_dilation, dilation = geometry
    num_others = x.ndim - len(sizes)
    between = [spread - 1 for spread in base_dilation]
    config = [(*ends, n) for ends, n in zip(padding, between, strict=True)]
    x = _pad(x, value, padding_config=[(0, 0, 0)] * num_others + config)
    spans = [(size - 1) * n + 1 for size, n in zip(sizes, dilation, strict=True)]
    axes = tuple(range(num_others, x.ndim))
    windows = np.lib.stride_tricks.sliding_window_view(x, spans, axes)
    steps = [1] * num_others + [*strides, *dilation]
    return windows[tuple(slice(None, None, step) for step in steps)]


def _reduce_window(ufunc: np.ufunc, identity: float) -> _Operation:
    def reduce(
        x: np.ndarray,
        *,
        window_dimensions: Sequence[int],
        window_strides: Sequence[int],
        padding: Sequence[Sequence[int]],
        base_dilation: Sequence[int],
        window_dilation: Sequence[int],
    ) -> np.ndarray:
        geometry = (window_strides, padding, base_dilation, window_dilation)
        value = _convert(np.array(identity), new_dtype=x.dtype.name)
        windows = _windows(x, value, window_dimensions, geometry)
        return ufunc.reduce(windows, axis=tuple(range(x.ndim, 2 * x.ndim)))

    return reduce


def _convolve(
    x: np.ndarray,
    y: np.ndarray,
    *,
    window_strides: Sequence[int],
    padding: Sequence[Sequence[int]],
    lhs_dilation: Sequence[int],
    rhs_dilation: Sequence[int],
    dimension_numbers: Sequence[Sequence[int]],
    feature_group_count: int,
) -> np.ndarray:
    image_order, filter_order, result_order = dimension_numbers
    # (filters, channels, *window) and (batch, channels, *places, *window).
    filters = y.transpose(filter_order)
    geometry = (window_strides, padding, lhs_dilation, rhs_dilation)
    windows = _windows(x.transpose(image_order), 0, filters.shape[2:], geometry)
    summed = [1, *range(x.ndim, windows.ndim)], [1, *range(2, x.ndim)]
    groups = zip(
        np.split(windows, feature_group_count, 1),
        np.split(filters, feature_group_count, 0),
        strict=True,
    )
    features = [np.tensordot(image, group, summed) for image, group in groups]
    result = np.moveaxis(np.concatenate(features, -1), -1, 1)
    return result.transpose(np.argsort(result_order))


def _indexed(
    shape: Sequence[int],
    indices: np.ndarray,
    sizes: Sequence[int],
    indexed: Sequence[int],
    batched: Sequence[Sequence[int]],
) -> tuple[tuple[np.ndarray, ...], np.ndarray]:
    """The places of windows of an array, and whether each window is within it.

    The places have, all together, the shape `(*indices.shape[:-1], *sizes)`. Windows
    that are not within the array are moved there.
    """
    rank, batch = len(shape), indices.shape[:-1]
    indices = indices.astype(np.int64)
    within = np.ones(batch, bool)
    places = []
    for axis, (length, size) in enumerate(zip(shape, sizes, strict=True)):
        start = np.zeros(batch, np.int64)
        if axis in indexed:
            start = indices[..., indexed.index(axis)]
        elif axis in batched[0]:
            start = np.indices(batch)[batched[1][batched[0].index(axis)]]
        within &= (start >= 0) & (start <= length - size)
        start = np.clip(start, 0, length - size).reshape(batch + (1,) * rank)
        places.append(start + np.arange(size).reshape([-1] + [1] * (rank - axis - 1)))
    return tuple(places), within.reshape(batch + (1,) * rank)


def _gather(
    x: np.ndarray,
    indices: np.ndarray,
    *,
    dimension_numbers: Sequence[Sequence[int]],
    slice_sizes: Sequence[int],
    mode: str,
    fill_value: float | None,
) -> np.ndarray:
    offsets, collapsed, indexed, *batched = dimension_numbers
    places, within = _indexed(x.shape, indices, slice_sizes, indexed, batched)
    gathered = x[places]
    if mode == "FILL_OR_DROP":
        gathered = np.where(within, gathered, np.array(fill_value, x.dtype))
    num_batch = indices.ndim - 1
    single = [num_batch + axis for axis in [*collapsed, *batched[0]]]
    gathered = gathered.squeeze(tuple(single))
    return np.moveaxis(gathered, range(num_batch, gathered.ndim), offsets)


def _scatter(ufunc: np.ufunc | None) -> _Operation:
    """Writes windows into an array, combined with what is there by a function."""

    def scatter(
        x: np.ndarray,
        indices: np.ndarray,
        updates: np.ndarray,
        *,
        dimension_numbers: Sequence[Sequence[int]],
        mode: str,
    ) -> np.ndarray:
        windows, inserted, indexed, *batched = dimension_numbers
        num_batch, single = indices.ndim - 1, [*inserted, *batched[0]]
        updates = np.moveaxis(updates, windows, range(num_batch, updates.ndim))
        updates = np.expand_dims(updates, [num_batch + axis for axis in single])
        sizes = updates.shape[num_batch:]
        places, within = _indexed(x.shape, indices, sizes, indexed, batched)
        written = np.broadcast_to(within | (mode != "FILL_OR_DROP"), updates.shape)
        places = tuple(np.broadcast_to(p, updates.shape)[written] for p in places)
        result = x.copy()
        if ufunc is None:
            result[places] = updates[written]
        else:
            ufunc.at(result, places, updates[written])
        return result

    return scatter


# Random bits, those of JAX. A key is one integer of 64 bits, so that whatever moves
# numbers moves keys.


def _halves(x: _Bits) -> tuple[_Bits, _Bits]:
    return (x >> np.uint64(32)).astype(np.uint32), x.astype(np.uint32)


def _joined(high: _Bits, low: _Bits) -> _Bits:
    return (high.astype(np.uint64) << np.uint64(32)) | low.astype(np.uint64)


def _threefry(keys: _Bits, counts: _Bits) -> _Bits:
    """Threefry-2x32 with 20 rounds (https://doi.org/10.1145/2063384.2063405)."""
    first, second = _halves(keys)
    schedule = (first, second, first ^ second ^ np.uint32(0x1BD11BDA))
    x, y = _halves(counts)
    x, y = x + first, y + second
    for number in range(5):
        for rotation in ((13, 15, 26, 6), (17, 29, 16, 24))[number % 2]:
            x = x + y
            y = (y << np.uint32(rotation)) | (y >> np.uint32(32 - rotation))
            y = x ^ y
        x = x + schedule[(number + 1) % 3]
        y = y + schedule[(number + 2) % 3] + np.uint32(number + 1)
    return _joined(x, y)


def _counted(keys: np.ndarray, *, shape: Sequence[int]) -> _Bits:
    """The 64 bits for each element of a shape, of each key."""
    counts = np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)
    return _threefry(keys.reshape(keys.shape + (1,) * len(shape)), counts)


def _random_bits(keys: np.ndarray, *, bit_width: int, shape: Sequence[int]) -> _Bits:
    bits = _counted(keys, shape=shape)
    if bit_width == 64:
        return bits
    high, low = _halves(bits)
    return (high ^ low).astype(f"u{bit_width // 8}")


# Branches and loops.


def _while(
    *operands: np.ndarray,
    cond_nconsts: int,
    cond_jaxpr: _Program,
    body_nconsts: int,
    body_jaxpr: _Program,
) -> list[np.ndarray]:
    of_condition, others = operands[:cond_nconsts], operands[cond_nconsts:]
    of_body, carried = others[:body_nconsts], list(others[body_nconsts:])
    while cond_jaxpr(*of_condition, *carried)[0]:
        carried = body_jaxpr(*of_body, *carried)
    return carried


def _scan(
    *operands: np.ndarray,
    jaxpr: _Program,
    length: int,
    num_consts: int,
    num_carry: int,
    reverse: bool,
) -> list[np.ndarray]:
    constants = operands[:num_consts]
    carried = operands[num_consts : num_consts + num_carry]
    scanned = operands[num_consts + num_carry :]
    order = range(length)[::-1] if reverse else range(length)
    rows: dict[int, list[np.ndarray]] = {}
    for place in order:
        made = jaxpr(*constants, *carried, *(array[place, ...] for array in scanned))
        carried, rows[place] = made[:num_carry], made[num_carry:]
    columns = zip(*(rows[place] for place in range(length)), strict=True)
    return [*carried, *map(np.stack, columns)]


# The functions of NumPy that have JAX's names, and those that have others.
_ALIKE = (
    "abs add cbrt ceil cos cosh exp exp2 expm1 floor log log1p nextafter sign sin sinh "
    "sqrt square tan tanh"
)
_RENAMED = (
    "acos=arccos acosh=arccosh and=bitwise_and asin=arcsin asinh=arcsinh atan=arctan "
    "atan2=arctan2 atanh=arctanh eq=equal ge=greater_equal gt=greater "
    "is_finite=isfinite le=less_equal lt=less max=maximum min=minimum mul=multiply "
    "ne=not_equal neg=negative not=invert or=bitwise_or pow=power sub=subtract "
    "shift_left=left_shift shift_right_arithmetic=right_shift xor=bitwise_xor"
)
_SUMS = {"max": np.maximum, "min": np.minimum, "prod": np.multiply, "sum": np.add}
# By the names of JAX's primitives. A function is given those of the parameters of a
# primitive that are its keyword arguments.
OPERATIONS: dict[str, _Operation] = {
    **{name: getattr(np, name) for name in _ALIKE.split()},
    **{
        name: getattr(np, renamed)
        for name, renamed in (pair.split("=") for pair in _RENAMED.split())
    },
    **{f"cum{name}": _accumulate(ufunc) for name, ufunc in _SUMS.items()},
    **{f"reduce_{name}": _reduce(ufunc) for name, ufunc in _SUMS.items()},
    "reduce_and": _reduce(np.logical_and),
    "reduce_or": _reduce(np.logical_or),
    **dict.fromkeys(("copy", "copy_p", "name"), np.asarray),
    **dict.fromkeys(("random_clone", "stop_gradient"), np.asarray),
    "argmax": lambda x, *, axes: np.argmax(x, axes[0]),
    "argmin": lambda x, *, axes: np.argmin(x, axes[0]),
    "bitcast_convert_type": _bitcast,
    "broadcast_in_dim": _broadcast,
    "clamp": lambda low, x, high: np.minimum(np.maximum(x, low), high),
    "concatenate": lambda *xs, dimension: np.concatenate(xs, dimension),
    "cond": lambda which, *xs, branches: branches[
        np.clip(int(which), 0, len(branches) - 1)
    ](*xs),
    "conv_general_dilated": _convolve,
    "convert_element_type": _convert,
    "div": _divide,
    "dot_general": _dot_general,
    "dynamic_slice": lambda x, *starts, slice_sizes: x[
        _window(x.shape, starts, slice_sizes)
    ],
    "dynamic_update_slice": _dynamic_update,
    "erf": _each(math.erf),
    "erf_inv": _each(_inverse_error_function),
    "erfc": _each(math.erfc),
    "gather": _gather,
    "integer_pow": lambda x, *, y: np.power(x, np.array(y, x.dtype)),
    "iota": lambda *, shape, dimension: _broadcast(
        np.arange(shape[dimension]), shape=shape, broadcast_dimensions=[dimension]
    ),
    "logistic": lambda x: 1 / (1 + np.exp(-x)),
    "pad": _pad,
    "random_bits": _random_bits,
    "random_fold_in": lambda keys, data: _threefry(keys, data.astype(np.uint64)),
    "random_seed": lambda x: x.view(f"u{x.itemsize}").astype(np.uint64),
    "random_split": _counted,
    "random_unwrap": lambda keys: np.stack(_halves(keys), -1),
    "random_wrap": lambda data: _joined(data[..., 0], data[..., 1]),
    "reduce_window_max": _reduce_window(np.maximum, -math.inf),
    "reduce_window_min": _reduce_window(np.minimum, math.inf),
    "reduce_window_sum": _reduce_window(np.add, 0.0),
    "rem": _remainder,
    "reshape": lambda x, *, new_sizes: x.reshape(new_sizes),
    "rev": lambda x, *, dimensions: np.flip(x, tuple(dimensions)),
    "round": _round,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "scan": _scan,
    "scatter": _scatter(None),
    "scatter-add": _scatter(np.add),
    "select_n": _select,
    "shift_right_logical": _shift_right_logical,
    "slice": _slice,
    "sort": _sort,
    "split": lambda x, *, sizes, axis: np.split(x, np.cumsum(sizes)[:-1], axis),
    "squeeze": lambda x, *, dimensions: x.squeeze(tuple(dimensions)),
    "stack": lambda *xs, axis: np.stack(xs, axis),
    "tile": lambda x, *, reps: np.tile(x, reps),
    "transpose": lambda x, *, permutation: x.transpose(permutation),
    "unstack": lambda x, *, axis: [*np.moveaxis(x, axis, 0)],
    "while": _while,
}
