from collections.abc import Sequence
from pathlib import Path

from .._reporting.figure import figure_suffix
from .._reporting.learning_curve import draw_learning_curves, shown_metrics
from .._reporting.statistics import Center, center_of
from .._run.config import read_schedule, read_title
from .._run.load import read_saved
from .._run.write import read_metrics
from .._training.rows import History
from .commands import Plot


_INTRINSIC = "intrinsic_reward"


def run_plot(command: Plot) -> int:
    """Draws the learning curves of runs into one figure."""
    if not command.folders:
        raise ValueError("No folder is given; name those of one run or several.")
    figure_suffix(command.output)
    title, labels = _title_and_labels(command.folders)
    runs = {
        label: _read(folder, command.center)
        for folder, label in zip(command.folders, labels, strict=True)
    }
    metric = command.metric
    if metric is None:
        shown = [name for run in runs.values() for name in shown_metrics(run)]
        has_returns = any(name.startswith("episode_return") for name in shown)
        are_skills = _INTRINSIC in shown and not has_returns
        metric = _INTRINSIC if are_skills else "episode_return"
    for folder, run in zip(command.folders, runs.values(), strict=True):
        if metric not in run:
            names = ", ".join(sorted(run.keys() - {"step"}))
            raise ValueError(f"`{folder}` has no metric `{metric}`; it has {names}.")
    command.output.parent.mkdir(parents=True, exist_ok=True)
    draw_learning_curves(
        command.output,
        runs,
        metric=metric,
        center=command.center,
        interval=command.interval,
        smoothing=command.smoothing,
        title=title if command.title is None else command.title,
    )
    print(command.output)
    return 0


def _read(folder: Path, center: Center) -> History:
    metrics = read_metrics(folder)
    saved = read_saved(folder)
    kind = read_schedule(folder).kind if saved is None else saved.kind
    if kind != "member":
        return metrics
    # Members copy each other, so how they differ says nothing about another population.
    return {
        name: center_of(values, center) if values.ndim == 2 else values
        for name, values in metrics.items()
    }


def _title_and_labels(folders: Sequence[Path]) -> tuple[str, list[str]]:
    """A title that the runs share, and a label for each."""
    titles = [_title(folder) for folder in folders]
    names = [folder.resolve().name for folder in folders]
    if len(folders) > 1 and len(set(titles)) == len(titles):
        return "", titles
    title = titles[0] if len(set(titles)) == 1 else ""
    paths = [str(folder) for folder in folders]
    for labels in (names, paths):
        if len(set(labels)) == len(labels):
            return title, labels
    (twice, *_) = [path for path in paths if paths.count(path) > 1]
    raise ValueError(f"`{twice}` is given twice; name each run once.")


def _title(folder: Path) -> str:
    saved = read_saved(folder)
    return read_title(folder) if saved is None else saved.title
