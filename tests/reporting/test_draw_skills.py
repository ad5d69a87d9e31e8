import dataclasses
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import rgb_to_hsv
from PIL import Image, ImageSequence

import eqrl
from tests.toy import Clock


def evaluation(
    num_skills: int = 3, descriptor_size: int = 2, skills: Any = None
) -> eqrl.SkillEvaluation:
    """Skill i goes i along each element a step; its second episode has two steps."""
    shape = (num_skills, 2, 4)
    steps = jnp.arange(1.0, 5.0)
    places = jnp.arange(float(num_skills))[:, None, None] * steps[None, None]
    descriptors = jnp.stack(
        [(index + 1) * places for index in range(descriptor_size)], axis=-1
    )
    mask = jnp.ones(shape, bool).at[:, 1, 2:].set(False)
    shown = jnp.eye(num_skills) if skills is None else skills
    return eqrl.SkillEvaluation(
        skills=shown,
        returns=jnp.zeros(shape[:2]),
        diversity_returns=jnp.zeros(shape[:2]),
        lengths=jnp.sum(mask, axis=2),
        descriptors=jnp.broadcast_to(descriptors, (num_skills, 2, 4, descriptor_size)),
        recovered_skills=jnp.zeros((*shape, shown.shape[1])),
        mask=mask,
        accuracy=jnp.ones(()),
    )


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, Any, Any]]:
    """What is plotted as lines: x, y and color."""
    lines: list[tuple[Any, Any, Any]] = []
    plot = Axes.plot

    def record(self: Axes, *args: Any, **options: Any) -> Any:
        if len(args) == 2:
            lines.append((np.asarray(args[0]), np.asarray(args[1]), options["color"]))
        return plot(self, *args, **options)

    monkeypatch.setattr(Axes, "plot", record)
    return lines


def is_png(path: Path) -> bool:
    return path.read_bytes().startswith(b"\x89PNG")


def test_each_episode_is_a_line_up_to_its_end(
    drawn: list[tuple[Any, Any, Any]], tmp_path: Path
) -> None:
    eqrl.draw_skills(tmp_path / "skills.png", evaluation())
    assert is_png(tmp_path / "skills.png")
    assert len(drawn) == 6
    np.testing.assert_array_equal(drawn[2][0], [1, 2, 3, 4])
    np.testing.assert_array_equal(drawn[2][1], [2, 4, 6, 8])
    np.testing.assert_array_equal(drawn[5][0], [2, 4])


def test_an_animation_ends_with_the_whole_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    played = evaluation(num_skills=2)
    eqrl.draw_skills(tmp_path / "skills.gif", played)
    with Image.open(tmp_path / "skills.gif") as animation:
        images = [
            np.asarray(image.convert("RGB")).astype(int)
            for image in ImageSequence.Iterator(animation)
        ]
    # One for each of four steps.
    assert len(images) == 4
    colored = [np.sum(np.ptp(image, axis=2) > 30) for image in images]
    assert colored == sorted(colored)
    assert 0 < colored[0] < colored[-1]
    monkeypatch.setattr("eqrl._reporting.figure.MOST_IMAGES", 3)
    eqrl.draw_skills(tmp_path / "skills.gif", played)
    with Image.open(tmp_path / "skills.gif") as animation:
        assert animation.n_frames == 3  # pyright: ignore


def test_a_line_begins_where_the_episode_did(
    drawn: list[tuple[Any, Any, Any]], figures: list[Any]
) -> None:
    whole = dataclasses.replace(
        evaluation(), first_descriptors=jnp.full((3, 2, 2), -5.0)
    )
    eqrl.draw_skills("skills.png", whole)
    eqrl.draw_skills("skills.png", whole, dimensions=(1,), names=("height",))
    np.testing.assert_array_equal(drawn[2][:2], [[-5, 1, 2, 3, 4], [-5, 2, 4, 6, 8]])
    np.testing.assert_array_equal(drawn[8][:2], [[0, 1, 2, 3, 4], [-5, 2, 4, 6, 8]])
    assert figures[1].axes[0].get_ylabel() == "height"


def test_closed_walls_are_drawn_and_elements_have_the_names_that_are_given(
    figures: list[Any],
) -> None:
    walls = (((9.0, 1.0), (9.0, 2.0)), ((3.0, 1.0), (50.0, 2.0)))
    env = eqrl.envs.TimeLimit(eqrl.envs.Point(walls=walls, num_open=1), 5)
    for dimensions, expected in (
        ((0, 1), [[3, 1], [50, 2]]),
        ((1, 0), [[1, 3], [2, 50]]),
    ):
        names = ("north", "east")
        eqrl.draw_skills(
            "skills.png", evaluation(), dimensions=dimensions, names=names, env=env
        )
        axes = figures[-1].axes[0]
        (drawn,) = axes.collections
        np.testing.assert_array_equal(drawn.get_segments(), [expected])
        assert (axes.get_xlabel(), axes.get_ylabel()) == names
        # They reach further than the skills, which decide what is shown.
        assert max(axes.get_xlim()[1], axes.get_ylim()[1]) < 30
    eqrl.draw_skills("skills.png", evaluation())
    assert figures[-1].axes[0].get_xlabel() == "descriptor 0"


def test_names_and_walls_that_do_not_fit_are_refused() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"names": ("x",)}, r"`names=\('x',\)` must be 2"),
        ({"env": eqrl.envs.Point(), "dimensions": (0,)}, "walls in the plane"),
        ({"env": Clock()}, "no walls: it is a `Clock`"),
    ]
    for options, message in wrong:
        with pytest.raises(ValueError, match=message):
            eqrl.draw_skills("skills.png", evaluation(), **options)


@pytest.mark.usefixtures("figures")
def test_each_skill_has_a_color(drawn: list[tuple[Any, Any, Any]]) -> None:
    eqrl.draw_skills("skills.png", evaluation(num_skills=12))
    colors = [color for _, _, color in drawn]
    assert colors[::2] == colors[1::2]
    assert len(set(colors)) == 12


@pytest.mark.usefixtures("figures")
def test_directions_are_colored_by_their_angle(
    drawn: list[tuple[Any, Any, Any]],
) -> None:
    skills = jnp.array([[1.0, 0.0], [2.0, 0.0], [0.0, -1.0]])
    eqrl.draw_skills("skills.png", evaluation(skills=skills))
    hues = [rgb_to_hsv(color)[0] for _, _, color in drawn[::2]]
    np.testing.assert_allclose(hues, [0, 0, 0.75], atol=1e-6)


@pytest.mark.usefixtures("figures")
@pytest.mark.parametrize(("size", "dimensions"), [(1, (0, 1)), (3, (2,)), (1, (0,))])
def test_one_element_is_drawn_over_the_steps(
    size: int,
    dimensions: tuple[int, ...],
    drawn: list[tuple[Any, Any, Any]],
) -> None:
    eqrl.draw_skills(
        "skills.png", evaluation(descriptor_size=size), dimensions=dimensions
    )
    np.testing.assert_array_equal(drawn[2][0], [1, 2, 3, 4])
    factor = dimensions[0] + 1
    np.testing.assert_array_equal(drawn[2][1], factor * np.arange(1, 5))


@pytest.mark.parametrize("dimensions", [(0, 2), (0, 1, 1), ()])
def test_elements_that_are_not_there_are_refused(
    dimensions: tuple[int, ...], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match="elements of a descriptor, 0 to 1"):
        eqrl.draw_skills(tmp_path / "skills.png", evaluation(), dimensions=dimensions)


@pytest.mark.parametrize("num_skills", [2, 12])
def test_trajectories_alone_are_drawn_like_one_hot_skills(
    num_skills: int, drawn: list[tuple[Any, Any, Any]], tmp_path: Path
) -> None:
    whole = evaluation(num_skills=num_skills)
    eqrl.draw_skills(tmp_path / "whole.png", whole)
    trajectories = eqrl.SkillTrajectories(
        descriptors=whole.descriptors, mask=whole.mask
    )
    eqrl.draw_skills(tmp_path / "trajectories.png", trajectories)
    assert len(drawn) == 4 * num_skills
    for first, second in zip(drawn, drawn[2 * num_skills :], strict=False):
        np.testing.assert_array_equal(first[0], second[0])
        np.testing.assert_array_equal(first[1], second[1])
        assert first[2] == second[2]
    pictures = [tmp_path / "whole.png", tmp_path / "trajectories.png"]
    assert pictures[0].read_bytes() == pictures[1].read_bytes()
