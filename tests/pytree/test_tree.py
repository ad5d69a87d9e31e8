from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from eqrl import (
    FloatLike,
    gradient_step,
    hyperparameter,
    incremental_update,
    tree_copy,
)
from eqrl._pytree.fields import strong_integer, whole_number
from eqrl._pytree.tree import check_kept, check_same_shapes, flatten, tree_where
from tests.toy import GetKey


class _Model(eqx.Module):
    """A leaf of every kind."""

    weight: Float[Array, "2"]
    count: Int[Array, ""]
    key: PRNGKeyArray
    activation: Any
    name: str = eqx.field(static=True)


def _model(weight: list[float], count: int, key: PRNGKeyArray) -> _Model:
    return _Model(
        weight=jnp.array(weight, float),
        count=jnp.array(count),
        key=key,
        activation=jax.nn.relu,
        name="model",
    )


class _Rates(eqx.Module):
    required: FloatLike = hyperparameter()
    rate: FloatLike = hyperparameter(0.5)
    optional: FloatLike | None = hyperparameter(None)


def _types(tree: PyTree) -> list[Any]:
    return [leaf.dtype for leaf in jax.tree.leaves(tree)]


class TestHyperparameter:
    @pytest.mark.parametrize("value", [3, 3.0, np.float64(3)])
    def test_is_a_strongly_typed_scalar_leaf_whatever_was_given(
        self, value: Any
    ) -> None:
        required = _Rates(required=value).required
        assert isinstance(required, jax.Array)
        assert (required.shape, required.dtype) == ((), jnp.float32)
        assert not required.aval.weak_type
        assert required == 3

    def test_weakly_typed_array_becomes_strongly_typed(self) -> None:
        weak = jnp.asarray(3.0)
        assert weak.aval.weak_type
        required = _Rates(required=weak).required
        assert isinstance(required, jax.Array)
        assert not required.aval.weak_type

    def test_default_is_a_strongly_typed_leaf_too(self) -> None:
        rate = _Rates(required=1).rate
        assert isinstance(rate, jax.Array)
        assert not rate.aval.weak_type
        assert rate == 0.5

    def test_default_none_stays_none(self) -> None:
        assert _Rates(required=1).optional is None

    def test_without_a_default_it_must_be_given(self) -> None:
        with pytest.raises(TypeError, match="required"):
            _Rates()

    def test_another_value_compiles_nothing_anew(self) -> None:
        num_traces = 0

        @eqx.filter_jit
        def trace(rates: _Rates) -> None:
            nonlocal num_traces
            del rates
            num_traces += 1

        trace(_Rates(required=1))
        trace(_Rates(required=2.5, rate=0.1))
        assert num_traces == 1

    def test_it_can_be_built_under_vmap(self) -> None:
        rates = eqx.filter_vmap(lambda x: _Rates(required=x))(jnp.arange(3.0))
        np.testing.assert_array_equal(rates.required, [0, 1, 2])


class _Counts(eqx.Module):
    required: int | Int[Array, ""] = eqx.field(converter=strong_integer)
    count: int | Int[Array, ""] = whole_number(2)


class TestWholeNumber:
    @pytest.mark.parametrize(
        "value", [3, np.int64(3), np.uint8(3), jnp.asarray(3), jnp.int8(3)]
    )
    def test_is_a_strongly_typed_scalar_leaf_whatever_was_given(
        self, value: Any
    ) -> None:
        required = _Counts(required=value).required
        assert isinstance(required, jax.Array)
        assert (required.shape, required.dtype) == ((), jnp.int32)
        assert not required.aval.weak_type
        assert required == 3

    def test_has_a_default(self) -> None:
        assert _Counts(required=0).count == 2

    @pytest.mark.parametrize("value", [1.0, True, np.float32(1)])
    def test_what_is_not_an_integer_is_refused(self, value: Any) -> None:
        with pytest.raises(ValueError, match="whole number is needed"):
            _Counts(required=value)


class TestTreeWhere:
    @pytest.mark.parametrize(("condition", "expected"), [(True, 0), (False, 1)])
    def test_takes_every_array_from_the_side_chosen(
        self, condition: bool, expected: int, getkey: GetKey
    ) -> None:
        models = [_model([1, 2], 1, getkey()), _model([3, 4], 2, getkey())]
        chosen = tree_where(jnp.array(condition), *models)
        np.testing.assert_array_equal(chosen.weight, models[expected].weight)
        np.testing.assert_array_equal(chosen.count, models[expected].count)
        assert jnp.all(chosen.key == models[expected].key)

    def test_keeps_what_is_no_array(self, getkey: GetKey) -> None:
        model = _model([1, 2], 1, getkey())
        assert tree_where(jnp.array(False), model, model).activation is jax.nn.relu


class TestTreeCopy:
    def test_is_equal(self, getkey: GetKey) -> None:
        model = _model([1, 2], 1, getkey())
        assert bool(eqx.tree_equal(tree_copy(model), model))

    def test_shares_no_buffer(self) -> None:
        tree = {"x": jnp.ones(3), "y": jnp.zeros((), int)}
        for new, old in zip(
            jax.tree.leaves(tree_copy(tree)), jax.tree.leaves(tree), strict=True
        ):
            assert new.unsafe_buffer_pointer() != old.unsafe_buffer_pointer()


class TestCheckSameShapes:
    def test_a_weak_type_is_none_after_a_step(self) -> None:
        weak = jnp.full(2, 1.0)
        assert weak.weak_type
        check_same_shapes("initial", {"x": weak}, {"x": jnp.ones(2)})

    @pytest.mark.parametrize("other", [jnp.ones(3), jnp.ones(2, int), 1.0])
    def test_another_shape_or_type_is_refused(self, other: Any) -> None:
        with pytest.raises(ValueError, match=r"`\['x'\]` is .*, not of shape \(2,"):
            check_same_shapes("initial", {"x": jnp.ones(2)}, {"x": other})


class TestCheckKept:
    @pytest.mark.parametrize(
        ("before", "after", "difference"),
        [
            ({"x": 0}, {"x": 1}, r"`\['x'\]` is 1, not 0\. Arrays"),
            ({"x": 1}, {}, r"`\['x'\]` is missing\. Arrays"),
            ({"x": 1}, {"x": 1, "y": 2}, r"`\['y'\]` has been added\. Arrays"),
            ({"x": [1]}, {"x": (1,)}, "class or a static field of a part has changed"),
            (None, {"x": 1}, "it is a dict, not None"),
            ({"x": jnp.abs}, {"x": jnp.sign}, "is <.* sign at .*, not <.* abs at"),
            ({"x": np.ones(2)}, {"x": jnp.ones(2)}, "is of shape .*, not array"),
        ],
    )
    def test_names_what_differs(self, before: Any, after: Any, difference: str) -> None:
        with pytest.raises(
            ValueError, match=rf"^It became another than `a`: .*{difference}"
        ):
            check_kept("It became another", before, after, source="a")

    def test_other_values_of_arrays_are_no_difference(self) -> None:
        before = {"x": jnp.ones(2), "y": np.ones(2), "z": (jnp.abs, None, 3)}
        after = {"x": jnp.zeros(2), "y": np.ones(2), "z": (jnp.abs, None, 3)}
        check_kept("It became another", before, after, source="a")
        check_kept("It became another", None, None, source="a")


class TestIncrementalUpdate:
    def test_moves_by_the_step_size(self, getkey: GetKey) -> None:
        new, old = _model([1, 2], 1, getkey()), _model([3, -6], 2, getkey())
        moved = incremental_update(new, old, 0.25)
        np.testing.assert_allclose(moved.weight, [2.5, -4])

    def test_step_size_one_copies(self, getkey: GetKey) -> None:
        new, old = _model([1, 2], 1, getkey()), _model([3, -6], 2, getkey())
        np.testing.assert_array_equal(incremental_update(new, old, 1.0).weight, [1, 2])

    def test_step_size_zero_stays(self, getkey: GetKey) -> None:
        new, old = _model([1, 2], 1, getkey()), _model([3, -6], 2, getkey())
        np.testing.assert_array_equal(incremental_update(new, old, 0.0).weight, [3, -6])

    def test_other_leaves_are_the_old_ones(self, getkey: GetKey) -> None:
        new, old = _model([1, 2], 1, getkey()), _model([3, -6], 2, getkey())
        moved = incremental_update(new, old, 0.25)
        assert moved.count == 2
        assert moved.key is old.key
        assert moved.activation is jax.nn.relu

    def test_keeps_the_type_of_each_leaf(self) -> None:
        old = {"half": jnp.array([3.0], jnp.bfloat16), "whole": jnp.array([3.0])}
        new = {"half": jnp.array([1.0], jnp.bfloat16), "whole": jnp.array([1.0])}
        moved = incremental_update(new, old, jnp.float32(0.25))
        assert _types(moved) == [jnp.bfloat16, jnp.float32]
        assert (float(moved["half"][0]), float(moved["whole"][0])) == (2.5, 2.5)


class TestGradientStep:
    def test_sgd_goes_down_the_gradient_times_the_rate(self, getkey: GetKey) -> None:
        model = _model([1, 2], 1, getkey())
        gradient = eqx.filter_grad(lambda m: jnp.sum(m.weight**2))(model)
        optimizer = optax.sgd(0.1)
        optimizer_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
        model, _ = gradient_step(model, gradient, optimizer, optimizer_state)
        np.testing.assert_allclose(model.weight, [0.8, 1.6], rtol=1e-6)

    def test_leaves_which_are_not_inexact_arrays_stay(self, getkey: GetKey) -> None:
        model = _model([1, 2], 1, getkey())
        gradient = eqx.filter_grad(lambda m: jnp.sum(m.weight**2))(model)
        optimizer = optax.sgd(0.1)
        optimizer_state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))
        after, _ = gradient_step(model, gradient, optimizer, optimizer_state)
        assert after.count is model.count
        assert after.key is model.key
        assert after.activation is jax.nn.relu

    def test_the_rate_is_read_at_each_step_and_not_held_in_the_state(self) -> None:
        # The second step is Adam's of a rate ten times smaller with the same moments.
        weight, gradient = jnp.array(1.0), jnp.array(0.5)
        state = optax.adam(1e-1).init(weight)
        weight, state = gradient_step(
            weight, gradient, optax.adam(jnp.array(1e-1)), state
        )
        np.testing.assert_allclose(weight, 0.9, rtol=1e-5)
        weight, _ = gradient_step(weight, gradient, optax.adam(jnp.array(1e-2)), state)
        np.testing.assert_allclose(weight, 0.89, rtol=1e-5)

    @pytest.mark.parametrize(
        "make", [optax.adam, optax.adamw, optax.rmsprop, optax.sgd]
    )
    def test_optimizers_work_under_strict_promotion(self, make: Any) -> None:
        weight = jnp.ones(2)
        optimizer = make(jnp.array(0.1))
        after, _ = gradient_step(weight, weight, optimizer, optimizer.init(weight))
        assert np.all(after < 1)
        assert after.dtype == jnp.float32

    @pytest.mark.parametrize("make", [optax.adam, optax.adamw, optax.sgd])
    def test_keeps_the_type_of_each_leaf(self, make: Any) -> None:
        # With rates that are arrays, as hyperparameters are.
        optimizer = make(jnp.float32(0.1))
        model = {"half": jnp.ones(2, jnp.bfloat16), "whole": jnp.ones(2)}
        before = (model, optimizer.init(model))
        after = gradient_step(model, model, optimizer, before[1])
        assert _types(after) == _types(before)
        assert np.all(np.asarray(after[0]["half"], float) < 1)

    def test_optimizer_which_needs_the_model_is_given_it(self) -> None:
        # Decoupled weight decay alone: w - rate * decay * w.
        optimizer = optax.adamw(0.1, weight_decay=0.5)
        weight = jnp.array([2.0])
        after, _ = gradient_step(
            weight, jnp.zeros(1), optimizer, optimizer.init(weight)
        )
        np.testing.assert_allclose(after, [1.9], rtol=1e-6)


def test_tree_where_maps_over_a_batch_of_conditions() -> None:
    def choose(condition: Bool[Array, ""]) -> Array:
        return tree_where(condition, jnp.array(1.0), jnp.array(2.0))

    chosen = jax.vmap(choose)(jnp.array([True, False]))
    np.testing.assert_array_equal(chosen, [1, 2])


def test_a_flat_tree_becomes_the_tree_again(getkey: GetKey) -> None:
    model = _model([1.0, 2.0], 3, getkey())
    assert eqx.tree_equal(flatten(model).tree, model)
