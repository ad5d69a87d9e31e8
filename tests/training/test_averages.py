import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqrl._training.iteration import Averages, empty_averages


NAN, INF = np.nan, np.inf


def add_all(rows: list[tuple[float, float]]) -> Averages:
    averages = empty_averages(["a", "b"])
    for a, b in rows:
        averages = averages.add({"a": jnp.asarray(a * 1.0), "b": jnp.asarray(b * 1.0)})
    return averages


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ((1, 2, 6), 3),
        # What is not known is neither averaged nor counted.
        ((1, NAN, 3, NAN), 2),
        ((), NAN),
        ((NAN, NAN), NAN),
        # Infinity is not skipped; of both signs it has no average.
        ((1, INF), INF),
        ((INF, 1, -2), INF),
        ((INF, -INF, 1), NAN),
    ],
)
def test_each_metric_has_the_mean_of_the_values_that_are_known(
    values: tuple[float, ...], expected: float
) -> None:
    result = add_all([(value, 10) for value in values]).result()
    np.testing.assert_allclose(result["a"], expected)
    np.testing.assert_allclose(result["b"], 10 if values else NAN)


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
    counts = jnp.full_like(averages.counts, 2**24)
    averages = eqx.tree_at(lambda averages: averages.counts, averages, counts)
    averages = averages.add({"loss": jnp.array(1.0)})
    np.testing.assert_array_equal(averages.counts, [2**24 + 1])


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([], None),
        ([(1, 1), (1, 1)], None),
        ([(1, 1), (1, NAN)], "b"),
        ([(1, 1), (NAN, NAN)], "a"),
        ([(1, 1), (1, NAN), (NAN, NAN)], "b"),
        ([(1, 1), (1, -INF), (NAN, 1)], "b"),
        ([(NAN, NAN)], "a"),
        # The second is computed in every other update.
        ([(1, 1), (1, NAN), (1, 1), (1, NAN)], None),
        ([(1, 1), (1, NAN), (1, 1), (NAN, NAN)], "a"),
        ([(1, 1), (1, NAN), (1, 1), (1, NAN), (NAN, NAN)], "a"),
        ([(1, 1), (1, NAN), (1, 1), (1, NAN), (1, NAN), (NAN, NAN)], "b"),
        ([(1, NAN), (NAN, NAN)], "a"),
    ],
)
def test_the_metric_that_turned_first_is_found_and_has_no_average(
    rows: list[tuple[float, float]], expected: str | None
) -> None:
    averages = add_all(rows)
    diverged = dict(zip("ab", np.asarray(averages.diverged()), strict=True))
    assert diverged == {"a": expected == "a", "b": expected == "b"}
    before, result = averages.result(), averages.result(failed=True)
    for name, is_first in diverged.items():
        if is_first:
            assert not np.isfinite(result[name])
        else:
            np.testing.assert_array_equal(result[name], before[name])
