"""Counters that go round keep what follows from them."""

import functools

import jax
import numpy as np
import pytest
from jaxtyping import Array

from eqrl import Trainer
from eqrl._training.schedule import Folding


_MOST = 2**31 - 1


@functools.partial(jax.jit, static_argnums=0)
def _after(
    folding: Folding, counter: Array, folded: Array, number: Array
) -> tuple[tuple[Array, Array], Array]:
    after = folding.after(counter, folded, number)
    return after, folding.lowest_bits(*after)


@pytest.mark.parametrize(
    ("limit", "period", "numbers"),
    [
        (100, 30, range(0, 400, 7)),
        (_MOST - 2000, 2**29 // 1000 * 1000, (1, 3000, 2**30, 2**31 - 1)),
        (_MOST - 10**6, 1_774_080_000, (1, 3000, 2**30, 2**31 - 1)),
    ],
)
def test_a_counter_that_goes_round_is_exact(
    limit: int, period: int, numbers: range | tuple[int, ...]
) -> None:
    folding = Folding(limit, period)
    counter, folded, total = 0, 0, 0
    for number in (limit - 1, *numbers, *numbers):
        given = map(np.int32, (counter, folded, number))
        (low, rounds), bits = _after(folding, *given)
        counter, folded, total = int(low), int(rounds), total + number
        assert folding.exact(counter, folded) == total
        assert int(bits) == total % 2**32
        assert folding.fold(total) == (counter, folded)
        assert 0 <= counter < limit and (folded == 0 or counter >= limit - period)
        # What happens every so often goes on doing so.
        assert (counter - total) % period == 0


@pytest.mark.parametrize("rows", [1, 7, 1000, 10**6, 2**29, 7 * 10**8])
@pytest.mark.parametrize("steps", [1, 25])
def test_rows_go_round_with_the_replay_and_leave_it_full(rows: int, steps: int) -> None:
    trainer = Trainer(capacity=rows, batch_size=1, steps_per_iteration=steps)
    folding = trainer.schedule.row_folding
    assert folding.period % rows == 0
    assert folding.limit - folding.period >= max(rows, 3 * 10**8)
    # With the rows that were kept and those of an iteration it fits 32 bits.
    assert folding.limit + rows + steps <= _MOST


@pytest.mark.parametrize("updates", [0, 1, 25])
def test_what_agents_do_every_few_updates_keeps_its_turn(updates: int) -> None:
    folding = Trainer(updates_per_iteration=updates).schedule.update_folding
    for every in (*range(1, 13), 100, 500, 1000, 1024, 4096, 5000, 10_000):
        assert folding.period % every == 0
    assert folding.limit - folding.period >= 3 * 10**8
    # And so does the number of the next one.
    assert folding.limit + updates <= _MOST


def test_a_row_of_the_metrics_must_be_countable() -> None:
    schedule = Trainer(updates_per_iteration=3).schedule
    schedule.check_call("log_every", 7 * 10**8)
    for steps in (8 * 10**8, 2**31):
        with pytest.raises(ValueError, match=f"`log_every={steps}`.*lower it"):
            schedule.check_call("log_every", steps)
