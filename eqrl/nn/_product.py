"""Matrix products of layers: how they are computed, and in which precision."""

import functools
import math
import string
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.core
import jax.lax as lax
import jax.numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir
from jaxtyping import Array, Float

from .._pytree.fields import check_choice


Precision = Literal["float32", "bfloat16"]
"""The precision of the factors of products; sums are computed in float32."""

# Products that are narrower stay in float32: bfloat16 would save nothing there.
NARROW = 64


class Processor(NamedTuple):
    """Speeds of a kind of processor.

    - `turns`: whether a product whose left factor is transposed in memory takes longer
        than transposing it first. If its result is narrow, it does everywhere.
    - `has_bfloat16`: whether there are instructions for products of bfloat16.
    """

    turns: bool
    has_bfloat16: bool


# By the best instruction set; without any of these, as on processors with AVX2, both
# are false. `benchmarks/products.py` measures them; on the last not yet.
_PROCESSORS = {
    "amx_bf16": Processor(turns=True, has_bfloat16=True),
    "avx512_bf16": Processor(turns=True, has_bfloat16=True),
    "avx512f": Processor(turns=True, has_bfloat16=False),
}


@functools.cache
def processor() -> Processor:
    """The kind of processor of this machine."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="ignore") as file:
            flags = next((line for line in file if line.startswith("flags")), "")
    except OSError:
        flags = ""
    names = (name for name in _PROCESSORS if name in flags.split())
    return _PROCESSORS.get(next(names, ""), Processor(turns=False, has_bfloat16=False))


def products_of_bfloat16() -> str:
    """The type in which products of `precision="bfloat16"` are computed here."""
    if jax.default_backend() != "cpu" or processor().has_bfloat16:
        return "bfloat16"
    return "float32, of factors rounded to bfloat16"


def product(
    x: Float[Array, " inputs"],
    weight: Float[Array, "inputs outputs"],
    precision: Precision = "float32",
) -> Float[Array, " outputs"]:
    """Product of one input and the weight of a layer, `x @ weight`.

    On a CPU it is computed differently, as are its derivatives of any order. XLA's
    products are fast only if the left factor is stored row by row. The gradient of a
    weight, `x.T @ cotangent`, is the one product of a layer where it is not, and that
    can cost time: with AMX, in bfloat16, layers of 1,024 took 2.4 times as long, and
    with AVX2 one with 2 outputs 6 times. So on processors with AVX512, and for layers
    with few outputs on all, the smaller factor is transposed first, in a way that the
    compiler does not undo.

    With `precision="bfloat16"` both factors are rounded to bfloat16, and the sums are
    computed in float32. If a CPU has no instructions for that, and for small products,
    the rounded factors are multiplied in float32, which gives the same values except
    for the order of the sums.

    **Arguments:**

    - `x`: the input.
    - `weight`: the weight.
    - `precision`: "float32" or "bfloat16". Factors of types other than float32 are left
        unchanged.

    **Returns:**

    The sums over the inputs.

    Raises a `ValueError` if the factors do not fit each other or the precision is
    unknown.
    """
    check_choice("precision", precision, get_args(Precision))
    # A sum over axes of different lengths would repeat one of length 1.
    if jnp.ndim(x) != 1 or jnp.ndim(weight) != 2 or x.shape != weight.shape[:1]:
        raise ValueError(
            f"`x` has the shape {jnp.shape(x)} and `weight` {jnp.shape(weight)}; they "
            "must be (inputs,) and (inputs, outputs). Map over a batch by `jax.vmap`."
        )
    dtype = jnp.result_type(x, weight)
    x, weight = x.astype(dtype), weight.astype(dtype)
    # If a factor varies over the devices of `jax.shard_map`, both must.
    of_x, of_weight = (jax.typeof(z).manual_axis_type.varying for z in (x, weight))
    x = lax.pcast(x, tuple(of_weight - of_x), to="varying")
    weight = lax.pcast(weight, tuple(of_x - of_weight), to="varying")
    return product_p.bind(x, weight, axes="i,io->o", precision=precision)


# Programs. The axes of both factors and of the result are letters, as in `einsum`.


def plain_product(x: Array, y: Array, *, axes: str, precision: Precision) -> Array:
    """The definition of a product, in float32; `axes` are as in `jnp.einsum`."""
    if precision == "bfloat16":
        x, y = _rounded(x), _rounded(y)
    return jnp.einsum(axes, x, y)


def _rounded(x: Array) -> Array:
    """Numbers in float32, rounded to the nearest bfloat16, ties to even."""
    if x.dtype != jnp.float32:
        return x
    # In integers, which NumPy policies support. XLA may drop a cast there and back.
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    half = jnp.uint32(0x7FFF) + ((bits >> 16) & 1)
    return lax.bitcast_convert_type((bits + half) & jnp.uint32(0xFFFF0000), jnp.float32)


def _on_accelerator(x: Array, y: Array, *, axes: str, precision: Precision) -> Array:
    if precision == "float32" or x.dtype != jnp.float32:
        return jnp.einsum(axes, x, y)
    x, y = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
    return jnp.einsum(axes, x, y, preferred_element_type=jnp.float32)


def _on_cpu(
    x: Array, y: Array, *, axes: str, precision: Precision, is_on_one_core: bool = False
) -> Array:
    of_x, of_y, of_result = split(axes)
    batch = [a for a in of_x if a in of_y and a in of_result]
    summed = [a for a in of_x if a not in of_result]
    x_free = [a for a in of_x if a not in of_y]
    y_free = [a for a in of_y if a not in of_x]
    size = dict(zip(of_x + of_y, x.shape + y.shape, strict=True))
    rows, length, columns = (
        math.prod(size[a] for a in letters) for letters in (x_free, summed, y_free)
    )
    halves = precision == "bfloat16" and x.dtype == jnp.float32
    halves = halves and processor().has_bfloat16
    halves = halves and min(rows, length, columns) >= NARROW
    # Whether the summed axes are not stored where a product reads them fastest.
    x_is_turned = of_x.endswith(tuple(x_free)) and bool(summed)
    y_is_turned = of_y.endswith(tuple(summed)) and bool(y_free)
    is_narrow = 1 < columns <= min(NARROW, rows // 4)
    if not halves and not (x_is_turned and (processor().turns or is_narrow)):
        return plain_product(x, y, axes=axes, precision=precision)

    def matrix(z: Array, letters: str, first: list[str], second: list[str]) -> Array:
        z = z.transpose([letters.index(a) for a in batch + first + second])
        shape = [math.prod(size[a] for a in part) for part in (batch, first, second)]
        return z.reshape(shape if batch else shape[1:])

    if halves:
        x, y = x.astype(jnp.bfloat16), y.astype(jnp.bfloat16)
    elif precision == "bfloat16":
        x, y = _rounded(x), _rounded(y)
    x = matrix(x, of_x, *((summed, x_free) if x_is_turned else (x_free, summed)))
    y = matrix(y, of_y, *((y_free, summed) if y_is_turned else (summed, y_free)))
    turn = _turned_apart if is_on_one_core else _turned
    if x_is_turned and columns < rows:
        # The result is transposed, too.
        left = y if y_is_turned else turn(y)
        result = jnp.swapaxes(_multiplied(left, x, right_is_turned=False), -1, -2)
    else:
        left = turn(x) if x_is_turned else x
        result = _multiplied(left, y, right_is_turned=y_is_turned)
    made = batch + x_free + y_free
    result = result.reshape([size[a] for a in made])
    return result.transpose([made.index(a) for a in of_result])


def _turned(matrix: Array) -> Array:
    """The transposed matrix, or stack of them, moved in memory."""
    # Without barriers the compiler merges the transposition into the product again, or
    # into the program of `matrix`, which then is slow.
    turned = jnp.swapaxes(lax.optimization_barrier(matrix), -1, -2)
    if matrix.dtype != jnp.bfloat16:
        return lax.optimization_barrier(turned)
    # The compiler decides early whether it can multiply in bfloat16. Even past a
    # barrier, a transposition gives an array a layout for which it decides that it
    # cannot, but one axis has no other layout.
    flat = lax.optimization_barrier(turned.reshape(-1))
    return flat.reshape(turned.shape)


def _turned_apart(matrix: Array) -> Array:
    """The transposed matrix, moved in memory by a separate program.

    The compiler drops barriers before it joins programs, and joins the transposition
    with what the matrix comes from: two layers of critics took 112 microseconds instead
    of 23. It does not look into branches, nor does it know that a number with one bit
    set is not 0.
    """
    first = lax.bitcast_convert_type(matrix.ravel()[0].astype(jnp.float32), jnp.uint32)
    return lax.cond(
        (first | 1) != 0,
        _turned,
        lambda x: jnp.zeros_like(jnp.swapaxes(x, -1, -2)),
        lax.optimization_barrier(matrix),
    )


def _multiplied(left: Array, right: Array, *, right_is_turned: bool) -> Array:
    # If the compiler merges a transposition of a factor or of the result into the
    # product, it is slow again. In bfloat16 such a product cannot be run at all.
    left, right = lax.optimization_barrier((left, right))
    stack = tuple(range(left.ndim - 2))
    summed = left.ndim - 1, right.ndim - (1 if right_is_turned else 2)
    return lax.optimization_barrier(
        lax.dot_general(
            left,
            right,
            (((summed[0],), (summed[1],)), (stack, stack)),
            preferred_element_type=jnp.float32 if left.dtype == jnp.bfloat16 else None,
        )
    )


# The primitive. It is bilinear, so its derivatives are products again.


def split(axes: str) -> tuple[str, str, str]:
    """The axes of both factors and of the result."""
    factors, result = axes.split("->")
    x, y = factors.split(",")
    return x, y, result


def _to_x(
    cotangent: Array, x: object, y: Array, *, axes: str, **options: object
) -> Array:
    of_x, of_y, of_result = split(axes)
    return product_p.bind(cotangent, y, axes=f"{of_result},{of_y}->{of_x}", **options)


def _to_y(
    cotangent: Array, x: Array, y: object, *, axes: str, **options: object
) -> Array:
    of_x, of_y, of_result = split(axes)
    return product_p.bind(x, cotangent, axes=f"{of_x},{of_result}->{of_y}", **options)


def _map(
    factors: tuple[Array, Array],
    places: tuple[int | None, int | None],
    *,
    axes: str,
    **options: object,
) -> tuple[Array, int]:
    """The product of stacks, whose new axis is at these places."""
    new = next(letter for letter in string.ascii_letters if letter not in axes)
    *old, of_result = split(axes)
    of_x, of_y = (
        letters if place is None else letters[:place] + new + letters[place:]
        for letters, place in zip(old, places, strict=True)
    )
    # Where `dot_general` has it: the columns of a stack of weights are one matrix.
    place = 0
    if places[0] is None:
        own = (of_result.index(a) for a in of_result if a not in of_x)
        place = min(own, default=len(of_result))
    of_result = of_result[:place] + new + of_result[place:]
    mapped = product_p.bind(*factors, axes=f"{of_x},{of_y}->{of_result}", **options)
    return mapped, place


def _shape(
    x: jax.core.ShapedArray, y: jax.core.ShapedArray, *, axes: str, precision: Precision
) -> jax.core.ShapedArray:
    del precision
    of_x, of_y, of_result = split(axes)
    size = dict(zip(of_x + of_y, x.shape + y.shape, strict=True))
    shape = tuple(size[a] for a in of_result)
    # Each device of a mesh has a result of its own if it has factors of its own.
    sharding = x.sharding.update(spec=jax.P(*(None for _ in shape)))
    return x.update(shape=shape, weak_type=False, sharding=sharding)


def _lower_on_cpu(
    context: mlir.LoweringRuleContext, *factors: object, **options: object
) -> Any:
    # A population has a device for each core. One agent has all cores, where another
    # product hides the transposition: in a branch, training took 1.03 to 1.06 times as
    # long.
    mesh = getattr(context.module_context.axis_context, "mesh", None)
    rule = functools.partial(_on_cpu, is_on_one_core=mesh is not None and mesh.size > 1)
    return mlir.lower_fun(rule, multiple_results=False)(context, *factors, **options)


product_p = Primitive("product")
_compiled = jax.jit(product_p.bind, static_argnames=("axes", "precision"))
# Where compilation is disabled, it would call itself.
product_p.def_impl(jax.disable_jit(False)(_compiled))
product_p.def_abstract_eval(_shape)
ad.defbilinear(product_p, _to_x, _to_y)
batching.primitive_batchers[product_p] = _map
mlir.register_lowering(
    product_p, mlir.lower_fun(_on_accelerator, multiple_results=False)
)
mlir.register_lowering(product_p, _lower_on_cpu, platform="cpu")
