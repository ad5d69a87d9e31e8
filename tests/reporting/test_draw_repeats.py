from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.axes import Axes

import eqrl


def transitions(extras: Any) -> eqrl.Transition[Any]:
    """Three episodes of up to four steps, as `eqrl.rollout` gives them."""
    shape = (3, 4)
    return eqrl.Transition(
        observation=jnp.zeros((*shape, 2)),
        action=jnp.zeros((*shape, 1)),
        reward=jnp.zeros(shape),
        next_observation=jnp.zeros((*shape, 2)),
        terminated=jnp.zeros(shape, bool),
        truncated=jnp.zeros(shape, bool),
        timestep=jnp.zeros(shape, int),
        state_descriptor=None,
        next_state_descriptor=None,
        extras=extras,
    )


MASK = jnp.asarray(np.arange(4) < np.array([[4], [2], [3]]))


def test_a_picture_of_when_a_policy_repeats_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Any] = []
    imshow = Axes.imshow

    def record(self: Axes, rows: Any, **options: Any) -> Any:
        shown.append(rows)
        return imshow(self, rows, **options)

    monkeypatch.setattr(Axes, "imshow", record)
    trajectory = eqrl.Trajectory(action=jnp.zeros((3, 4, 1)))
    extras = eqrl.TAACExtras(
        previous=trajectory,
        trajectory=trajectory,
        switch=jnp.array([[True, False, True, False]] * 3),
        repeats=jnp.array([[1, 2, 1, 2]] * 3),
    )
    path = tmp_path / "repeats.svg"
    eqrl.draw_repeats(path, transitions(extras), MASK)
    assert path.read_bytes().startswith(b"<?xml")
    expected = np.where(MASK, [[0, 1, 0, 1]], np.nan)
    np.testing.assert_array_equal(shown, [expected])


def test_other_agents_have_no_repeats_to_draw(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"`transitions\.extras` is a NoneType"):
        eqrl.draw_repeats(tmp_path / "repeats.png", transitions(None), MASK)
