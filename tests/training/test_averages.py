import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqrl._training.iteration import empty_averages


def test_result_is_the_mean_of_each_metric() -> None:
    averages = empty_averages(["loss", "length"])
    for loss, length in ((1.0, 10.0), (2.0, 20.0), (6.0, 60.0)):
        averages = averages.add({"loss": jnp.array(loss), "length": jnp.array(length)})
    result = averages.result()
    np.testing.assert_allclose(result["loss"], 3.0)
    np.testing.assert_allclose(result["length"], 30.0)


def test_nan_is_skipped_and_not_counted() -> None:
    averages = empty_averages(["loss"])
    for loss in (1.0, jnp.nan, 3.0, jnp.nan):
        averages = averages.add({"loss": jnp.asarray(loss)})
    np.testing.assert_allclose(averages.result()["loss"], 2.0)


@pytest.mark.parametrize("values", [(), (jnp.nan, jnp.nan)])
def test_result_is_nan_where_there_was_nothing_to_average(
    values: tuple[float, ...],
) -> None:
    averages = empty_averages(["loss"])
    for loss in values:
        averages = averages.add({"loss": jnp.asarray(loss)})
    assert np.isnan(averages.result()["loss"])


@pytest.mark.parametrize("values", [(1.0, jnp.inf), (jnp.inf, 1.0, -2.0)])
def test_infinity_is_not_skipped(values: tuple[float, ...]) -> None:
    averages = empty_averages(["loss"])
    for loss in values:
        averages = averages.add({"loss": jnp.asarray(loss)})
    assert averages.result()["loss"] == jnp.inf


def test_infinities_of_both_signs_have_no_average() -> None:
    averages = empty_averages(["loss"])
    for loss in (jnp.inf, -jnp.inf, 1.0):
        averages = averages.add({"loss": jnp.asarray(loss)})
    assert np.isnan(averages.result()["loss"])


def test_a_million_equal_values_do_not_drift() -> None:
    averages = jax.lax.fori_loop(
        0,
        1_000_000,
        lambda _, averages: averages.add({"loss": jnp.full((), 0.3)}),
        empty_averages(["loss"]),
    )
    np.testing.assert_allclose(averages.result()["loss"], 0.3, rtol=1e-5)


def test_values_are_counted_beyond_what_a_float_can_count() -> None:
    averages = empty_averages(["loss"])
    counts = jax.tree.map(lambda x: jnp.asarray(2**24, x.dtype), averages.counts)
    averages = eqx.tree_at(lambda averages: averages.counts, averages, counts)
    averages = averages.add({"loss": jnp.array(1.0)})
    assert int(averages.counts["loss"]) == 2**24 + 1


def test_metrics_which_are_not_given_are_left_as_they_are() -> None:
    averages = empty_averages(["loss", "length"])
    averages = averages.add({"loss": jnp.array(1.0), "length": jnp.array(10.0)})
    averages = averages.add({"loss": jnp.array(3.0)})
    result = averages.result()
    np.testing.assert_allclose(result["loss"], 2.0)
    np.testing.assert_allclose(result["length"], 10.0)


def test_adding_leaves_the_averages_added_to_unchanged() -> None:
    before = empty_averages(["loss"]).add({"loss": jnp.array(1.0)})
    before.add({"loss": jnp.array(5.0)})
    np.testing.assert_allclose(before.result()["loss"], 1.0)
