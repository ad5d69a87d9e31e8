"""Products of layers as they are written and as `eqrl.nn.product` makes them.

For each layer its three products: of the inputs and the weight, and the gradients of
both. Rates are medians of rounds in turns, in GFLOP/s. `written` is `jax.vjp` of
`x @ weight`, in bfloat16 with casts; where `rule` is no faster any more, the rule has
become needless on this processor. Run it as `nox -s benchmarks -- products`.
"""

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, PyTree

from eqrl.nn import Precision, product
from eqrl.nn._product import processor

from .measure import seconds


BATCH = 256
TIMES = 40
# Inputs and outputs of layers, and how many of them are stacked.
LAYERS = [(256, 256, 1), (256, 256, 2), (1024, 1024, 1), (256, 2, 1), (115, 256, 1)]

Multiply = Callable[[Array, Array], Array]


def written(x: Array, weight: Array, precision: Precision) -> Array:
    """The product as one would write it."""
    if precision == "float32":
        return x @ weight
    x, weight = x.astype(jnp.bfloat16), weight.astype(jnp.bfloat16)
    return lax.dot(x, weight, preferred_element_type=jnp.float32)


def make_product(
    multiply: Multiply, kind: str, inputs: int, outputs: int, size: int
) -> Any:
    """A function that makes a product `TIMES` times."""
    rows = jax.vmap(multiply, (0, None))
    if size > 1:
        rows = jax.vmap(rows)
    stack = (size,) if size > 1 else ()
    keys = jr.split(jr.key(0), 3)
    x = jr.normal(keys[0], (*stack, BATCH, inputs))
    weight = jr.normal(keys[1], (*stack, inputs, outputs))
    cotangent = jr.normal(keys[2], (*stack, BATCH, outputs))

    def once(x: Array, weight: Array, cotangent: Array) -> Array:
        if kind == "product":
            return rows(x, weight)
        _, pull = jax.vjp(rows, x, weight)
        return pull(cotangent)[kind == "of the weight"]

    @jax.jit
    def run(x: Array, weight: Array, cotangent: Array) -> PyTree:
        def body(carry: PyTree, _: None) -> tuple[PyTree, None]:
            made = once(*lax.optimization_barrier(carry))
            # The next product waits for this one.
            spent = 0 * lax.optimization_barrier(made).ravel()[0]
            return jax.tree.map(lambda z: z.at[(0,) * z.ndim].add(spent), carry), None

        return lax.scan(body, (x, weight, cotangent), None, length=TIMES)[0]

    return lambda: run(x, weight, cotangent)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=11)
    repeats = parser.parse_args().repeats
    print(f"turns: {processor().turns}, bfloat16: {processor().has_bfloat16}\n")
    print("| layer | precision | | written | rule | rule / written |")
    print("|---|---|---|---|---|---|")
    for inputs, outputs, size in LAYERS:
        for precision in ("float32", "bfloat16"):
            for kind in ("product", "of the input", "of the weight"):
                runs = [
                    make_product(
                        partial(multiply, precision=precision),
                        kind,
                        inputs,
                        outputs,
                        size,
                    )
                    for multiply in (written, product)
                ]
                for run in runs:
                    jax.block_until_ready(run())
                times = [[seconds(run) for run in runs] for _ in range(repeats)]
                billions = 2e-9 * TIMES * BATCH * inputs * outputs * size
                rates = [
                    billions / statistics.median(x) for x in zip(*times, strict=True)
                ]
                ratio = statistics.median(before / after for before, after in times)
                print(
                    f"| {size} x {inputs} to {outputs} | {precision} | {kind} "
                    f"| {rates[0]:.0f} | {rates[1]:.0f} | {ratio:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
