"""The rule for products of layers, beside `jnp.matmul` and rounded factors."""

from collections.abc import Callable
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import ml_dtypes
import numpy as np
import pytest
from jax import export
from jaxtyping import Array

from eqrl._pytree.tree import parts
from eqrl.nn import ActionValues, Convolution, Gaussian, _product
from eqrl.nn._mlp import Linear
from eqrl.nn._product import (
    Precision,
    Processor,
    plain_product,
    processor,
    product,
)
from tests.toy import GetKey


# What the program is on each kind of processor; the first is without AVX512.
PROCESSORS = [
    Processor(turns=False, has_bfloat16=False),
    Processor(turns=True, has_bfloat16=False),
    _product.processor(),
]

Multiply = Callable[[Array, Array], Array]


def _everything(multiply: Multiply, x: Array, y: Array, w: Array, stack: Array) -> Any:
    """Products, derivatives and second derivatives of rows and stacks.

    Results and factors that are transposed are among them: in bfloat16 the compiler can
    make a program of these that does not run.
    """
    rows = jax.vmap(multiply, (0, None))
    times = jax.vmap(rows, (0, None))

    def loss(x: Array, w: Array) -> Array:
        return jnp.sum(jnp.sin(rows(x, w) / 10) ** 2)

    def of_stack(x: Array, stack: Array) -> Array:
        return jnp.sum(jax.vmap(rows, (None, 0))(x, stack) ** 3) / 1e3

    tangents = (0.1 * x, 0.2 * w)
    both = jax.grad(loss, (0, 1))
    return {
        "one": multiply(x[0], w),
        "rows": rows(x, w),
        "columns": jax.vmap(multiply, (1, None), 1)(x.T, w),
        "both transposed": rows((y.T @ y).T, (w.T * 2).T).T,
        "stack": jax.vmap(rows)(jnp.stack([x, y]), stack),
        "stack of rows": jax.vmap(jax.vmap(multiply, (None, 0)), (0, None))(x, stack),
        "gradients": both(x, w),
        "gradients of a stack": jax.grad(of_stack, (0, 1))(x, stack),
        "stack of gradients": jax.vmap(both, (None, 0))(x, stack),
        "in time": jax.grad(lambda w: jnp.sum(times(jnp.stack([x, y]), w) ** 2))(w),
        "gradients of rows": jax.vmap(
            jax.grad(lambda x, w: jnp.sum(jnp.sin(multiply(x, w) / 10)), (0, 1)),
            (0, None),
        )(x[:4], w),
        "forward": jax.jvp(loss, (x, w), tangents),
        "second": jax.jvp(both, (x, w), tangents),
        "linearized": jax.linearize(loss, x, w)[1](*tangents),
        "filtered": eqx.filter_grad(lambda w: jnp.sum(both(x, w)[1] ** 2))(w),
    }


@pytest.mark.parametrize("processor", PROCESSORS)
@pytest.mark.parametrize("outputs", [96, 3])
def test_a_product_is_that_of_matrices_in_its_derivatives_too(
    processor: Processor,
    outputs: int,
    monkeypatch: pytest.MonkeyPatch,
    getkey: GetKey,
) -> None:
    monkeypatch.setattr(_product, "processor", lambda: processor)
    inputs = jr.normal(getkey(), (2, 80, 80))
    stack = jr.normal(getkey(), (2, 80, outputs))
    arguments = (*inputs, stack[0], stack)
    made = jax.jit(partial(_everything, product))(*arguments)
    expected = jax.jit(partial(_everything, jnp.matmul))(*arguments)
    for name in expected:
        for a, b in zip(
            *map(jax.tree.leaves, (made[name], expected[name])), strict=True
        ):
            scale = float(jnp.abs(b).max())
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5 * scale, err_msg=name)


def test_bfloat16_multiplies_rounded_factors_on_every_processor(
    monkeypatch: pytest.MonkeyPatch, getkey: GetKey
) -> None:
    def rounded(x: Any) -> np.ndarray:
        return np.asarray(x).astype(ml_dtypes.bfloat16).astype(float)

    x = jr.normal(getkey(), (80, 70))
    w = jr.normal(getkey(), (70, 96))
    cotangent = jr.normal(getkey(), (80, 96))
    expected = [
        rounded(x) @ rounded(w),
        rounded(cotangent) @ rounded(w).T,
        rounded(x).T @ rounded(cotangent),
    ]

    def all_of(x: Array, w: Array, cotangent: Array) -> list[Array]:
        multiply = jax.vmap(lambda x, w: product(x, w, "bfloat16"), (0, None))
        result, pull = jax.vjp(multiply, x, w)
        return [result, *pull(cotangent)]

    for kind in PROCESSORS:
        monkeypatch.setattr(_product, "processor", lambda kind=kind: kind)
        made = jax.jit(lambda *args: all_of(*args))(x, w, cotangent)
        for a, b in zip(made, expected, strict=True):
            assert a.dtype == jnp.float32
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)
        text = jax.jit(lambda *args: all_of(*args)).lower(x, w, cotangent).as_text()
        assert ("bf16" in text) == kind.has_bfloat16
    # Exported policies are for other devices as well.
    exported = export.export(jax.jit(all_of), platforms=("cpu", "cuda"))
    made = exported(x, w, cotangent).call(x, w, cotangent)
    for a, b in zip(made, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-4)
    # Halfway between two numbers of bfloat16 is the even one, and what is infinite or
    # not a number remains so.
    odd = jnp.asarray([1 + 1 / 256, 1 + 3 / 256, -3e38, jnp.inf, jnp.nan])
    one = plain_product(
        odd[:, None], jnp.ones((1, 1)), axes="bi,io->bo", precision="bfloat16"
    )
    np.testing.assert_array_equal(one[:, 0], rounded(odd))


def test_outside_of_jit_a_layer_is_compiled_once(
    compilations: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer, x = Linear(3, 2, key=jr.key(0)), jnp.arange(3.0)
    first = layer(x)
    compilations.clear()
    np.testing.assert_array_equal(layer(x), first)
    assert compilations == []
    with jax.disable_jit():
        np.testing.assert_array_equal(layer(x), first)
    # Neither a batch nor a stack of layers is multiplied as it is.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    stack = jax.tree.map(lambda x: x[None], layer)
    for wrong, given in ((layer, jnp.ones((5, 3))), (stack, x)):
        with pytest.raises(ValueError, match=r"Map over a batch by `jax\.vmap`"):
            wrong(given)


def test_every_form_runs_in_bfloat16(getkey: GetKey) -> None:
    inputs = jr.normal(getkey(), (2, 80, 80))
    stack = jr.normal(getkey(), (2, 80, 96))
    arguments = (*inputs, stack[0], stack)

    def multiply(x: Array, w: Array) -> Array:
        return product(x, w, "bfloat16")

    made = jax.jit(partial(_everything, multiply))(*arguments)
    expected = jax.jit(partial(_everything, jnp.matmul))(*arguments)
    for name in expected:
        for a, b in zip(
            *map(jax.tree.leaves, (made[name], expected[name])), strict=True
        ):
            error = jnp.linalg.norm(a - b) / jnp.linalg.norm(b)
            assert error < 0.02, name


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_member_alone_and_in_turn_has_equal_bits(
    precision: Precision, monkeypatch: pytest.MonkeyPatch, getkey: GetKey
) -> None:
    turning = Processor(turns=True, has_bfloat16=processor().has_bfloat16)
    monkeypatch.setattr(_product, "processor", lambda: turning)
    # What tells branches apart is the first number.
    x = jr.normal(getkey(), (80, 80)).at[0, 0].set(0.0)
    stack = jr.normal(getkey(), (4, 80, 96))

    def gradient(w: Array) -> tuple[Array, Array]:
        def loss(x: Array, w: Array) -> Array:
            return jnp.sum(jnp.tanh(jax.vmap(lambda x: product(x, w, precision))(x)))

        return jax.grad(loss, (0, 1))(x, w)

    alone = [jax.jit(gradient)(member) for member in stack]
    in_turn = jax.lax.map(gradient, stack)
    # Where members are spread over devices, transpositions are in branches.
    on_cpu = _product._on_cpu
    monkeypatch.setattr(
        _product,
        "_on_cpu",
        lambda *factors, **options: on_cpu(
            *factors, **options | {"is_on_one_core": True}
        ),
    )
    spread = jax.jit(lambda w: gradient(w))
    assert "stablehlo.case" in spread.lower(stack[0]).as_text()
    in_branches = spread(stack[0])
    for part, expected in zip(in_turn, zip(*alone, strict=True), strict=True):
        np.testing.assert_array_equal(part, jnp.stack(expected))
    for part, expected in zip(in_branches, alone[0], strict=True):
        np.testing.assert_array_equal(part, expected)


def test_a_stack_of_second_derivatives_shares_one_direction(getkey: GetKey) -> None:
    w, v = jr.normal(getkey(), (2, 3, 2))

    def mixed(multiply: Any, x: Array) -> Array:
        loss = lambda w, x: jnp.sum(multiply(x, w) ** 2)
        return jax.grad(lambda x: jnp.vdot(v, jax.grad(loss)(w, x)))(x)

    xs = jr.normal(getkey(), (4, 3))
    found, expected = (
        jax.vmap(partial(mixed, multiply))(xs) for multiply in (product, jnp.matmul)
    )
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_transpositions_are_programs_of_their_own_on_several_devices() -> None:
    x, stack = jnp.ones((80, 80)), jnp.ones((2, 80, 80))

    def gradients(stack: Array) -> Array:
        # Inputs that devices share, and weights of their own.
        rows = jax.vmap(product, (0, None))
        return jax.lax.map(jax.grad(lambda w: jnp.sum(rows(x, w) ** 2)), stack)

    automatic = (jax.sharding.AxisType.Auto,)
    for size in (1, 2):
        mesh = jax.sharding.AbstractMesh((size,), ("population",), automatic)
        spec = jax.P("population")
        spread = jax.shard_map(gradients, mesh=mesh, in_specs=spec, out_specs=spec)
        text = jax.jit(spread).trace(stack).lower(lowering_platforms=("cpu",)).as_text()
        assert ("stablehlo.case" in text) == (size > 1 and processor().turns)


def test_gradients_of_few_outputs_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_product, "processor", lambda: PROCESSORS[0])
    rows = partial(jax.vmap(product, (0, None)), jnp.ones((8, 300)))
    gradient = jax.jit(jax.grad(lambda weight: jnp.sum(rows(weight) ** 2)))
    for outputs in (1, 2, 64, 65):
        text = gradient.lower(jnp.ones((300, outputs))).as_text()
        assert ("contracting_dims = [0] x [0]" in text) == (outputs in {1, 65})


def test_wide_layers_alone_are_of_bfloat16(getkey: GetKey) -> None:
    policy = Gaussian((128, 32, 64), precision="bfloat16")(100, 3, key=getkey())
    layers = eqx.filter(policy, lambda x: isinstance(x, Linear), is_leaf=_is_layer)
    found = [x.precision for x in jax.tree.leaves(layers, is_leaf=_is_layer)]
    assert found == ["bfloat16", "float32", "float32", "float32"]
    # So are those of blocks and images, and all of two heads but the value.
    wide: dict[str, Any] = {"hidden_sizes": (64, 64), "precision": "bfloat16"}
    for make, expected in (
        (Gaussian(**wide, residual=True), 0),
        (Gaussian(**wide, encoder=Convolution((9, 9, 8), 64)), 0),
        (ActionValues(**wide, dueling=True), 1),
    ):
        made = eqx.filter_eval_shape(make, 9 * 9 * 8, 64, key=jr.key(0))
        kinds = [layer.precision for layer in parts(made, Linear)]
        assert len(kinds) > 2 and kinds.count("float32") == expected


def _is_layer(x: object) -> bool:
    return isinstance(x, Linear)
