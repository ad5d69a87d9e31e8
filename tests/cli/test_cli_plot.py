"""Learning curves of runs on the command line."""

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from eqrl._cli import main
from eqrl._cli.commands import Plot
from eqrl._cli.finished import run_plot
from eqrl._run.config import (
    Population,
    Run,
    Settings,
    SkillSchedule,
    Training,
    write_config,
)
from eqrl._run.files import write_json
from eqrl._run.load import SavedRun
from eqrl._run.rewards import DiscriminatorOptions, LearnerOptions, SkillOptions
from eqrl._run.write import GrowingMetrics, read_metrics, write_table


def _write_config(
    folder: Path,
    agent: str,
    schedule: Training | Population | SkillSchedule,
    env: str = "eqrl/Point",
) -> None:
    folder.mkdir(parents=True)
    settings, within = Settings(env=env), {}
    if agent == "diayn":
        within = {"learner": LearnerOptions(), "skills": SkillOptions()}
        within |= {"reward_options": vars(DiscriminatorOptions())}
    write_config(folder, Run(agent, {}, {}, settings, schedule, **within))


def _write(folder: str, agent: str, env: str = "eqrl/Point", **metrics: Any) -> Path:
    """A run with two rows, of each seed an element of the metrics."""
    path = Path(folder)
    _write_config(path, agent, Training(), env)
    grow = GrowingMetrics(path, {})
    for row in range(2):
        values = {name: np.asarray(each[row]) for name, each in metrics.items()}
        grow(10 * (row + 1), values, None)
    return path


def _plot(*folders: str, **options: Any) -> int:
    return run_plot(Plot(tuple(map(Path, folders)), **options))


_THREE = {"episode_return": [[0.0, 1.0, 2.0], [3.0, 5.0, 7.0]], "loss": [[1] * 3] * 2}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[Any, Any]]:
    """All figures that would be written, and where."""
    monkeypatch.chdir(tmp_path)
    written: list[tuple[Any, Any]] = []
    monkeypatch.setattr(
        Figure, "savefig", lambda self, path, **_: written.append((self, path))
    )
    return written


def _curves(figure: Any) -> dict[str, list[float]]:
    return {line.get_label(): list(line.get_ydata()) for line in figure.axes[0].lines}


def test_runs_are_named_by_what_tells_them_apart(
    figures: list[tuple[Any, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    _write("x/a", "sac", **_THREE)
    _write("x/b", "td3", episode_return=[1.0, 2.0])
    _write("y/b", "sac", **_THREE)
    assert main(["plot", "x/a", "x/b", "--output", "new/curves.pdf"]) == 0
    assert _plot("x/a", "x/b", "y/b") == 0
    assert _plot("y/b") == 0
    outputs = ["new/curves.pdf", "learning_curves.png", "learning_curves.png"]
    assert capsys.readouterr().out.splitlines() == outputs
    assert [str(path) for _, path in figures] == outputs
    first, second, third = (figure for figure, _ in figures)
    assert _curves(first) == {
        "SAC on eqrl/Point": [1, 5],
        "TD3 on eqrl/Point": [1, 2],
    }
    assert list(_curves(second)) == ["x/a", "x/b", "y/b"]
    assert list(_curves(third)) == ["b"]
    titles = [each.axes[0].get_title() for each in (first, second, third)]
    assert titles == ["", "", "SAC on eqrl/Point"]


def test_each_environment_has_axes_of_its_own_and_many_curves_a_legend_below_them(
    figures: list[tuple[Any, Any]],
) -> None:
    _write("a", "sac", episode_return=[1.0, 2.0])
    _write("b", "sac", "gymnax/Pendulum-v1", episode_return=[3.0, 4.0])
    _write("c", "td3", episode_return=[5.0, 6.0])
    assert _plot("a", "b", "c") == 0
    assert _plot("a", "b", "c", title="Both") == 0
    long = "actor_lr=0.001, critic_lr=0.001, "
    for number in range(6):
        _write(f"{long}{number}", "sac", episode_return=[1.0, 2.0])
    assert _plot(*(f"{long}{number}" for number in range(6))) == 0
    facets, both, many = (figure for figure, _ in figures)
    drawn = {
        axes.get_title(): {
            line.get_label(): list(line.get_ydata()) for line in axes.lines
        }
        for axes in facets.axes
    }
    assert drawn == {
        "eqrl/Point": {"SAC": [1, 2], "TD3": [5, 6]},
        "gymnax/Pendulum-v1": {"SAC": [3, 4]},
    }
    assert [axes.get_title() for axes in both.axes] == ["Both"]
    assert len(_curves(both)) == 3
    assert not both.subfigs[0].legends
    many.draw_without_rendering()
    (legend,) = many.subfigs[0].legends
    axes = many.axes[0].get_window_extent()
    assert legend.get_window_extent().y1 < axes.y0
    assert axes.width > 0.8 * many.bbox.width


def test_options_reach_the_figure(figures: list[tuple[Any, Any]]) -> None:
    _write("a", "sac", **_THREE)
    words = ["--metric", "loss", "--center", "iqm", "--title", "Loss"]
    assert main(["plot", "a", "--interval", "0.9", *words]) == 0
    assert main(["plot", "a", "--smoothing", "2", "--interval", "range"]) == 0
    axes = ["--logarithmic", "x", "y"]
    assert main(["plot", "a", "--interval", "None", *axes]) == 0
    loss, smooth, bare = (figure.axes[0] for figure, _ in figures)
    assert (loss.get_title(), loss.get_ylabel()) == ("Loss", "loss")
    legend = loss.get_legend().get_texts()[-1].get_text()
    assert legend == "interquartile mean and 90 % interval of 3 seeds"
    assert _curves(smooth.figure) == {"a": [1, 3]}
    shaded = {(x, y) for x, y in smooth.collections[0].get_paths()[0].vertices}
    assert shaded == {(10, 0), (10, 2), (20, 1.5), (20, 4.5)}
    assert not bare.collections
    assert (bare.get_xscale(), bare.get_yscale()) == ("log", "log")


def test_skills_are_compared_by_their_intrinsic_reward(
    figures: list[tuple[Any, Any]],
) -> None:
    skills: dict[str, Any] = {
        "episode_return": [0.0, 0.0],
        "intrinsic_reward": [1.0, 2.0],
    }
    _write("a", "diayn", **skills)
    skills["episode_return"] = [0.0, 9.0]
    _write("b", "diayn", **skills)
    _write_config(Path("c"), "sac", SkillSchedule())
    columns = {"skill": [0, 1], "step": [10, 20], "intrinsic_reward": [0.5, 1.5]}
    write_table("c", {name: np.array(column) for name, column in columns.items()})
    assert _plot("a", "c") == 0
    assert _plot("a", "b") == 0
    first, second = (figure for figure, _ in figures)
    assert _curves(first) == {
        "DIAYN with SAC on eqrl/Point": [1, 2],
        "DISk with SAC on eqrl/Point": [0.5, 1.5],
        "a skill begins": [0, 1],
    }
    (begins,) = (x for x in first.axes[0].lines if x.get_label() == "a skill begins")
    assert list(begins.get_xdata()) == [10, 10]
    assert _curves(second) == {"a": [0, 0], "b": [0, 9]}


def test_members_of_a_population_are_no_independent_samples(
    figures: list[tuple[Any, Any]],
) -> None:
    _write_config(Path("a"), "sac", Population())
    generations, members = np.arange(2)[:, None], np.arange(4)[None]
    columns = {"generation": generations, "member": members}
    columns |= {"step": 10 * (generations + 1), "parent": 0 * members}
    columns |= {"score": 0.0 * members, "episode_return": generations + members}
    # One of the command line, and one of `save_run`.
    Path("b").mkdir()
    saved = SavedRun(kind="member", count=4, title="Own", agent="", env="")
    write_json("b", "config.json", {"saved": dataclasses.asdict(saved)})
    for folder in "ab":
        write_table(folder, columns)
    _write("c", "td3", **_THREE)
    assert _plot("a", "b") == 0
    assert _plot("a", "b", "c") == 0
    (alone, _), (beside, _) = figures
    means = {"SAC on eqrl/Point": [1.5, 2.5], "Own": [1.5, 2.5]}
    # Alone each member is a line, and beside seeds none is.
    assert len(alone.axes[0].lines) == 2 + 2 * 4 + 1
    assert _curves(alone).items() >= means.items()
    assert "mean and each of 4 members" in _curves(alone)
    assert not alone.axes[0].collections
    assert _curves(beside) == means | {"TD3 on eqrl/Point": [1.0, 5.0]}
    assert len(beside.axes[0].collections) == 1
    assert beside.axes[0].get_xlabel() == "environment steps of each seed or member"


def test_what_is_being_written_is_left_out(tmp_path: Path) -> None:
    folder = _write(str(tmp_path / "a"), "sac", **_THREE)
    with open(folder / "metrics.csv", "a") as file:
        file.write("0,30,1.0,1.0\n1,30,1.0,1.0\n2,30,1")
    metrics = read_metrics(folder)
    assert sorted(metrics) == ["episode_return", "loss", "step"]
    np.testing.assert_array_equal(metrics["step"], [10, 20])
    np.testing.assert_array_equal(metrics["episode_return"], _THREE["episode_return"])


def test_what_cannot_be_plotted_is_said_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    _write("a", "sac", **_THREE)
    _write("b", "sac", **_THREE)
    table = Path("b/metrics.csv")
    whole = table.read_text()
    table.write_text(whole.replace("7.0", "seven"))
    Path("empty").mkdir()
    wrong: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
        ((), {}, "No folder is given"),
        (("a", "b"), {}, "`b/metrics.csv` is damaged"),
        (("a", "a"), {}, "`a` is given twice"),
        (("a",), {"metric": "return"}, "`a` has no metric `return`; it has episode_re"),
        (("a",), {"output": Path("x.jpg")}, "`.png`, `.pdf` or `.svg`"),
        (("a",), {"interval": 95.0}, "`interval=95` is out of range"),
    ]
    for folders, options, message in wrong:
        with pytest.raises(ValueError, match=re.escape(message)):
            _plot(*folders, **options)
    assert main(["plot", "empty"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "`empty` is not the folder of a run" in line
    for text in ("", "a,b\n1,2\n", whole.replace("\n1,", "\n2,")):
        table.write_text(text)
        with pytest.raises(ValueError, match=r"`b/metrics\.csv` is damaged"):
            read_metrics("b")
    table.write_text(f"{whole.splitlines()[0]}\n")
    with pytest.raises(ValueError, match="`b` has no rows of metrics yet"):
        _plot("a", "b")
    table.unlink()
    with pytest.raises(ValueError, match=r"`b/metrics\.csv` cannot be read"):
        read_metrics("b")
    assert not Path("x.jpg").exists()
