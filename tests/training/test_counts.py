"""What counters of 32 bits cannot hold is refused before the first step."""

from typing import Any

import jax.numpy as jnp
import jax.random as jr
import pytest

import eqrl
from eqrl import Trainer

from ..toy import Drift, Learner


_MOST = 2**31 - 1


def _counts(updates: int = 0, rows: int = 0, kept: int = 0) -> eqrl.Counts:
    return eqrl.Counts(*(jnp.asarray(x, int) for x in (updates, rows, kept)))


@pytest.mark.parametrize(
    ("options", "counts", "most"),
    [
        # Rows of two environments, with and without a warm-up of 10 of them.
        ({"num_envs": 2, "updates_per_iteration": 0}, _counts(), 2 * _MOST),
        ({"num_envs": 2, "warmup_steps": 20}, _counts(), 2 * _MOST),
        ({}, _counts(rows=_MOST - 5), 5),
        ({}, _counts(rows=_MOST - 5, kept=3), 2),
        # Whole iterations, and their updates.
        ({"steps_per_iteration": 4}, _counts(), _MOST // 4 * 4),
        ({"updates_per_iteration": 3}, _counts(100, 60), (_MOST - 100) // 3),
        ({"updates_per_iteration": 3, "warmup_steps": 9}, _counts(), 9 + _MOST // 3),
    ],
)
def test_the_most_steps_are_those_that_rows_and_updates_can_count(
    options: dict[str, int], counts: eqrl.Counts, most: int
) -> None:
    given: dict[str, Any] = {"warmup_steps": 0, "capacity": 100, "batch_size": 1}
    given |= options
    trainer = Trainer(**given)
    size = trainer.steps_of_iteration
    trainer.schedule.check_counters("num_steps", most, counts)
    with pytest.raises(
        ValueError, match=rf"`num_steps={most + size}` .* at most {most};.*enable_x64"
    ):
        trainer.schedule.check_counters("num_steps", most + size, counts)


def test_every_training_that_cannot_be_counted_is_refused_before_its_first_step() -> (
    None
):
    agent, env = Learner(), Drift(max_steps=7)
    trainer = Trainer(batch_size=1, warmup_steps=1, capacity=10)
    key = jr.key(0)
    trained = lambda *arguments: pytest.fail("it took a step")
    with pytest.raises(ValueError, match=rf"`num_steps={_MOST + 1}` .* {_MOST};"):
        eqrl.train(agent, env, trainer, num_steps=_MOST + 1, key=key, callback=trained)
    with pytest.raises(ValueError, match=rf"`num_steps={_MOST + 1}`"):
        eqrl.train_seeds(
            agent,
            env,
            trainer,
            num_seeds=2,
            num_steps=_MOST + 1,
            key=key,
            callback=trained,
        )
    with pytest.raises(ValueError, match=r"`num_generations \* steps_per_generation="):
        eqrl.train_population(
            agent,
            env,
            trainer,
            None,
            size=2,
            num_generations=2**31,
            steps_per_generation=1,
            num_episodes=1,
            key=key,
            callback=trained,
        )
    with pytest.raises(
        ValueError, match=rf"`num_steps={_MOST}` .* at most {_MOST - 10}"
    ):
        eqrl.learn_skills(
            eqrl.Intrinsic(agent, eqrl.Incremental(descriptor="observation")),
            env,
            trainer,
            num_skills=1,
            num_steps=_MOST,
            key=key,
            callback=trained,
        )


def test_a_row_of_the_metrics_must_be_countable() -> None:
    schedule = Trainer(updates_per_iteration=3).schedule
    schedule.check_call("log_every", 7 * 10**8)
    for steps in (8 * 10**8, 2**31):
        with pytest.raises(ValueError, match=f"`log_every={steps}`.*lower it"):
            schedule.check_call("log_every", steps)
