"""The matmuls of a program alone: the limit of a machine.

They are the products of layers and the `dot_general`s of the program as JAX traces it,
each made in the way that `eqrl.nn.product` chooses; one of `batch` products of
`rows x inner` with `inner x columns` counts 2 * batch * rows * inner * columns
operations.
"""

import collections
import dataclasses
import math
import string
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.sharding import Mesh
from jaxtyping import Array, Float, Int, PRNGKeyArray, PyTree

import eqrl
from eqrl._training.mesh import Members, on_each_device, replicate, shard
from eqrl.nn._product import plain_product, product_p, split


@dataclasses.dataclass(frozen=True)
class Matmul:
    """A product of arrays of these shapes; `axes` are as in `jnp.einsum`."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    axes: str
    dtype: str
    precision: eqrl.nn.Precision = "float32"

    @property
    def operations(self) -> int:
        of_left, of_right, _ = split(self.axes)
        sizes = zip(of_left + of_right, self.left + self.right, strict=True)
        return 2 * math.prod(dict(sizes).values())


def matmuls_of(jaxpr: Jaxpr, share: Fraction) -> Iterator[tuple[Matmul, Fraction]]:
    """All matmuls in a program, each with the number of its runs.

    **Arguments:**

    - `jaxpr`: of the program.
    - `share`: of the runs that take a branch.
    """
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in ("dot_general", "product"):
            operands: list[Any] = [variable.aval for variable in equation.invars]
            left, right = (tuple(operand.shape) for operand in operands)
            options: dict[str, Any] = {"dtype": str(operands[0].dtype)}
            if name == "product":
                options |= equation.params
            else:
                options["axes"] = _axes(
                    left, right, equation.params["dimension_numbers"]
                )
            yield Matmul(left, right, **options), Fraction(1)
        times = Fraction(1)
        if name == "cond":
            times = share
        elif name == "scan":
            times = Fraction(equation.params["length"])
        for inner in _jaxprs(equation.params):
            found = list(matmuls_of(inner, share))
            if found and name == "while":
                raise ValueError("How often a loop runs its matmuls is not known.")
            for matmul, count in found:
                yield matmul, count * times


def _axes(left: tuple[int, ...], right: tuple[int, ...], dimensions: Any) -> str:
    """The axes of a `dot_general`."""
    letters = string.ascii_letters
    of_left = letters[: len(left)]
    of_right = list(letters[len(left) : len(left) + len(right)])
    (left_summed, right_summed), (left_batch, right_batch) = dimensions
    shared = zip(left_batch + left_summed, right_batch + right_summed, strict=True)
    for left_axis, right_axis in shared:
        of_right[right_axis] = of_left[left_axis]
    summed = [of_left[axis] for axis in left_summed]
    batch = [of_left[axis] for axis in left_batch]
    free = [a for a in of_left if a not in summed + batch]
    free += [a for a in of_right if a not in of_left]
    return f"{of_left},{''.join(of_right)}->{''.join(batch + free)}"


def _jaxprs(parameters: dict[str, Any]) -> Iterator[Jaxpr]:
    for value in parameters.values():
        for entry in value if isinstance(value, tuple | list) else [value]:
            if isinstance(entry, ClosedJaxpr):
                yield entry.jaxpr
            elif isinstance(entry, Jaxpr):
                yield entry


@eqx.filter_jit
def _multiply(
    operands: Any,
    counts: tuple[tuple[Matmul, int], ...],
    num_rounds: Int[Array, ""],
    members: Members,
    mesh: Mesh | None,
) -> Float[Array, " population"]:
    def multiply_member(operands: Any, num_rounds: Int[Array, ""]) -> Float[Array, ""]:
        def multiply_all(index: Int[Array, ""], total: Float[Array, ""]) -> Any:
            del index
            for (matmul, count), pair in zip(counts, operands, strict=True):
                total = lax.fori_loop(
                    0, count, lambda _, x, m=matmul, p=pair: _once(m, p, x), total
                )
            return total

        return lax.fori_loop(0, num_rounds, multiply_all, jnp.zeros(()))

    def multiply_share(stacked: Any, num_rounds: Int[Array, ""]) -> tuple[Any, None]:
        map_all = jax.vmap if members == "together" else _map_in_turn
        return map_all(lambda x: multiply_member(x, num_rounds))(stacked), None

    totals, _ = on_each_device(multiply_share, mesh, operands, num_rounds)
    return totals


def _map_in_turn(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda stacked: lax.map(function, stacked)


def _once(
    matmul: Matmul,
    operands: tuple[Array, Array],
    total: Float[Array, ""],
    *,
    is_written: bool = False,
) -> Float[Array, ""]:
    # The barriers hide that the operands never change and that only one number of the
    # product is used, so all of it is computed each time.
    left, right, total = lax.optimization_barrier((*operands, total))
    options: dict[str, Any] = {"axes": matmul.axes, "precision": matmul.precision}
    make = plain_product if is_written else product_p.bind
    product = make(left, right, **options)
    return total + lax.optimization_barrier(product).ravel()[0]


def _operands(matmuls: Sequence[Matmul], size: int) -> list[tuple[Array, Array]]:
    """Random operands of each matmul, of each member."""

    def make(matmul: Matmul, key: PRNGKeyArray) -> tuple[Array, Array]:
        left_key, right_key = jr.split(key)
        return (
            jr.normal(left_key, (size, *matmul.left), matmul.dtype),
            jr.normal(right_key, (size, *matmul.right), matmul.dtype),
        )

    keys = jr.split(jr.key(3), len(matmuls))
    return [make(matmul, keys[index]) for index, matmul in enumerate(matmuls)]


def make_matmul_run(
    counts: list[tuple[Matmul, int]],
    *,
    size: int = 1,
    members: Members = "in_turn",
    mesh: Mesh | None = None,
) -> Callable[[int], PyTree]:
    """A function that runs these matmuls for a number of rounds.

    **Arguments:**

    - `counts`: the number of runs of each matmul in a round.
    - `size`: members, each with its own operands.
    - `members`: whether those of a device multiply together or in turn.
    - `mesh`: the devices; `None` is the first one.
    """
    operands = shard(_operands([matmul for matmul, _ in counts], size), mesh)

    def run(num_rounds: int) -> PyTree:
        length = replicate(jnp.asarray(num_rounds, int), mesh)
        return _multiply(operands, tuple(counts), length, members, mesh)

    return run


@eqx.filter_jit
def _side_by_side(
    operands: Any,
    lanes: tuple[Matmul, ...],
    is_written: bool,
    num_rounds: Int[Array, ""],
    mesh: Mesh | None,
) -> Float[Array, " population"]:
    def multiply_member(operands: Any, num_rounds: Int[Array, ""]) -> Float[Array, ""]:
        def multiply(index: Int[Array, ""], totals: Any) -> Any:
            del index
            return [
                _once(lane, pair, total, is_written=is_written)
                for lane, pair, total in zip(lanes, operands, totals, strict=True)
            ]

        zeros = [jnp.zeros(()) for _ in lanes]
        return jnp.stack(lax.fori_loop(0, num_rounds, multiply, zeros)).sum()

    def multiply_share(stacked: Any, num_rounds: Int[Array, ""]) -> tuple[Any, None]:
        each = _map_in_turn(lambda x: multiply_member(x, num_rounds))
        return each(stacked), None

    totals, _ = on_each_device(multiply_share, mesh, operands, num_rounds)
    return totals


def make_lanes_run(
    lanes: tuple[Matmul, ...], *, is_written: bool, size: int, mesh: Mesh | None
) -> Callable[[int], PyTree]:
    """A function that runs matmuls that do not depend on each other, round by round.

    **Arguments:**

    - `lanes`: the matmuls, each of which waits only for itself.
    - `is_written`: whether they are made as one would write them.
    - `size`, `mesh`: as in `make_matmul_run`, members in turn.
    """
    operands = shard(_operands(lanes, size), mesh)

    def run(num_rounds: int) -> PyTree:
        length = replicate(jnp.asarray(num_rounds, int), mesh)
        return _side_by_side(operands, lanes, is_written, length, mesh)

    return run


def halves_of(matmul: Matmul) -> tuple[Matmul, Matmul]:
    """The two matmuls of a stack of two; of another matmul, it and itself."""
    of_left, of_right, of_result = split(matmul.axes)
    for letter in set(of_left) & set(of_right) & set(of_result):
        place = of_left.index(letter)
        if matmul.left[place] == 2:
            left, right = list(matmul.left), list(matmul.right)
            del left[place], right[of_right.index(letter)]
            half = dataclasses.replace(
                matmul,
                left=tuple(left),
                right=tuple(right),
                axes=matmul.axes.replace(letter, ""),
            )
            return half, half
    return matmul, matmul


def count_matmuls(
    agent: Any, spec: eqrl.EnvSpec, batch: Any, share: Fraction
) -> list[tuple[Matmul, Fraction]]:
    """The average number of runs of each matmul in an update.

    **Arguments:**

    - `agent`, `batch`: of the update.
    - `spec`: of the environment.
    - `share`: of the updates that take a branch.
    """
    shapes = eqx.filter_eval_shape(agent.init, spec, key=jr.key(0))
    arrays, static = eqx.partition(
        shapes, lambda leaf: isinstance(leaf, jax.ShapeDtypeStruct)
    )

    def update(arrays: Any, batch: Any, step: Int[Array, ""], key: PRNGKeyArray) -> Any:
        state = eqx.combine(arrays, static)
        state, _ = agent.update(state, batch, step=step, key=key)
        return eqx.filter(state, eqx.is_array)

    closed = jax.make_jaxpr(update)(arrays, batch, jnp.zeros((), int), jr.key(2))
    totals: dict[Matmul, Fraction] = collections.defaultdict(Fraction)
    for matmul, count in matmuls_of(closed.jaxpr, share):
        totals[matmul] += count
    return list(totals.items())


def operations_of(counts: list[tuple[Matmul, Fraction]]) -> float:
    """Billions of operations of the matmuls of an update."""
    return float(sum(matmul.operations * count for matmul, count in counts)) / 1e9
