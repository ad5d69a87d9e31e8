import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.figure import Figure

import eqrl
from eqrl._reporting.figure import save_figure
from eqrl._reporting.learning_curve import draw_learning_curve
from eqrl._storage.files import atomic_write
from tests.reporting.made import population


_BEGINNINGS = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml", "": b"\x89PNG"}


@pytest.mark.parametrize("suffix", _BEGINNINGS)
def test_a_file_holds_what_its_suffix_says_and_equal_figures_equal_bytes(
    suffix: str, tmp_path: Path
) -> None:
    paths = [tmp_path / f"{name}{suffix.upper()}" for name in "ab"]
    for path in paths:
        figure = Figure(figsize=(1, 1))
        figure.add_subplot().plot([0, 1], label="line")
        with atomic_write(path) as partial:
            save_figure(figure, str(partial))
    first, second = (path.read_bytes() for path in paths)
    assert first.startswith(_BEGINNINGS[suffix])
    assert first == second
    # Fonts of type 3 are refused by publishers.
    assert b"/Type3" not in first


def test_the_search_for_fonts_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
    # Matplotlib warns so if the first import, or a slow machine, needs five seconds.
    logger = logging.getLogger("matplotlib.font_manager")
    logger.warning("Matplotlib is building the font cache; this may take a moment.")
    assert caplog.messages == []
    logger.warning("findfont: Font family 'Nowhere' not found.")
    assert caplog.messages == ["findfont: Font family 'Nowhere' not found."]


def _population() -> Any:
    scores = np.array([[1.0, 2.0]])
    parents = np.array([[0, 1]])
    return population(scores[..., None], parents, scores=scores, discount=scores / 3)


def _draw_skills(path: Path) -> None:
    trajectories = eqrl.SkillTrajectories(
        descriptors=jnp.zeros((1, 1, 2, 2)), mask=jnp.ones((1, 1, 2), bool)
    )
    eqrl.draw_skills(path, trajectories)


_METRICS = {"step": np.array([1, 2]), "episode_return": np.array([1.0, 2.0])}
_DRAWINGS: dict[str, Callable[[Path], None]] = {
    "draw_skills": _draw_skills,
    "draw_schedules": lambda path: eqrl.draw_schedules(path, _population()),
    "draw_family_tree": lambda path: eqrl.draw_family_tree(path, _population()),
    "draw_learning_curve": lambda path: draw_learning_curve(path, _METRICS, title=""),
    "draw_learning_curves": lambda path: eqrl.draw_learning_curves(
        path, {"run": _METRICS}
    ),
}


@pytest.mark.parametrize("name", _DRAWINGS)
def test_the_suffix_decides_and_others_are_refused_with_what_is_allowed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    # To render a figure takes most of the time.
    monkeypatch.setattr(
        Figure, "savefig", lambda self, path, *, format, **_: written.append(format)
    )
    _DRAWINGS[name](tmp_path / "x.pdf")
    assert written == ["pdf"]
    with pytest.raises(ValueError, match=r"`\.jpg`.*`\.png`, `\.pdf` or `\.svg`"):
        _DRAWINGS[name](tmp_path / "x.jpg")
