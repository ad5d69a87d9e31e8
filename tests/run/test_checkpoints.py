"""When it is time for a checkpoint, and of what; `test_train.py` trains with them."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest

import eqrl
from eqrl._run.solutions import Interval, _copied


def test_an_interval_of_steps_is_over_after_so_many() -> None:
    interval = Interval(every_steps=30)
    interval.begin_at(100)
    assert _saved_at(interval, range(110, 210, 10)) == [130, 160, 190]


def test_an_interval_of_seconds_is_over_after_so_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    interval = Interval(every_steps=None, every_seconds=5.0)

    def steps() -> Iterator[int]:
        nonlocal now
        for step in range(12):
            now = float(step)
            yield step

    assert _saved_at(interval, steps()) == [5, 10]


def _saved_at(interval: Interval, steps: Iterable[int]) -> list[int]:
    """The steps, of those given, at which it is time for a checkpoint."""
    saved = []
    for step in steps:
        if interval.is_over(step):
            interval.begin_at(step)
            saved.append(step)
    return saved


@pytest.mark.parametrize(
    "options", [{"every_steps": 0}, {"every_seconds": -1.0}, {"max_to_keep": 0}]
)
def test_what_is_no_interval_is_refused(options: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"`{next(iter(options))}="):
        eqrl.Checkpoints(tmp_path, **options)


def test_a_relative_directory_stays_where_it_was_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with eqrl.Checkpoints("kept") as checkpoints:
        monkeypatch.chdir("/")
        assert str(checkpoints._manager.directory) == str(tmp_path / "kept")


def test_what_is_written_in_the_background_outlives_what_training_donates() -> None:
    tree = {"array": jnp.arange(3), "key": jr.key(3, impl="rbg"), "none": None}
    key = np.asarray(jr.key_data(tree["key"]))
    copied = _copied(tree)
    for leaf in jax.tree.leaves(tree):
        leaf.delete()
    assert copied["array"].tolist() == [0, 1, 2]
    assert np.array_equal(jr.key_data(copied["key"]), key)
    assert str(jr.key_impl(copied["key"])) == "rbg"
