"""The page of a paper: its text, and a section for each task."""

from collections.abc import Mapping, Sequence

import numpy as np
from jaxtyping import Float

import eqrl

from .paper import Experiment, Found, Paper, Published, Record
from .papers import PAPERS, load
from .run import DATA, read_run, skills_of
from .skills import read_skills


FOLDER = DATA.parent
LAST_EVALUATIONS = 10
LAST_EPISODES = 100


def write_pages() -> None:
    """Writes the page of each paper of which a run has ended."""
    for name in PAPERS:
        paper = load(name)
        parts = [_part(name, experiment) for experiment in paper.experiments]
        if any(parts):
            (FOLDER / f"{name}.md").write_text(_page(name, paper, parts))


def _page(name: str, paper: Paper, parts: list[str]) -> str:
    command = f"```sh\nnox -s papers -- {name}\n```\n"
    return "\n".join([f"# {paper.title}\n", paper.text, command, *filter(None, parts)])


def _part(name: str, experiment: Experiment) -> str:
    """The section of a task; empty if none of its runs has ended."""
    folder = DATA / name / experiment.env.replace("/", "-")
    found: dict[str, list[Record]] = {}
    for contender in experiment.contenders:
        # The name of another one may begin with the same and a number.
        paths = sorted(
            (
                path
                for path in folder.glob(f"{contender}-*.csv")
                if path.stem.removeprefix(f"{contender}-").isdecimal()
            ),
            key=lambda path: (len(path.stem), path),
        )
        if paths:
            found[contender] = [read_run(path) for path in paths]
    if not found:
        return ""
    task = experiment.env.rpartition("/")[2]
    if experiment.report is not None:
        lines = experiment.report(found)
    else:
        lines = returns_of(found, experiment.published)
    pictures = FOLDER / "pictures"
    pictures.mkdir(parents=True, exist_ok=True)
    for metric in experiment.curves:
        if all(metric in records[0].columns for records in found.values()):
            is_return = metric == "evaluation_return"
            suffix = "" if is_return else f"-{metric.replace('_', '-')}"
            picture = pictures / f"{name}-{task}{suffix}.png"
            runs = {x: _curves(records, metric) for x, records in found.items()}
            eqrl.draw_learning_curves(picture, runs, metric=metric, title=task)
            what = "Greedy returns" if is_return else metric.replace("_", " ")
            lines.append(f"\n![{what} in {task}](pictures/{picture.name})")
    drawn = {}
    for contender in found:
        skills = skills_of(folder / f"{contender}-0.csv")
        if skills.exists():
            picture = pictures / f"{name}-{task}-{contender}-skills.png"
            played = read_skills(skills)
            names = ("x", "y")[: played.descriptors.shape[-1]]
            eqrl.draw_skills(picture, played, names=names)
            what = f"Skills of {contender} in {task}"
            drawn[contender] = f"![{what}](pictures/{picture.name})"
    if drawn:
        lines += ["\nThe paths of all skills of seed 0:\n", f"| {' | '.join(drawn)} |"]
        lines += ["|" + "---|" * len(drawn), f"| {' | '.join(drawn.values())} |"]
    return "\n".join([f"## {task}\n", *lines, ""])


def returns_of(
    found: Found, published: Mapping[str, tuple[Published, ...]] | None = None
) -> list[str]:
    """A table of returns, those of each seed, and what else was measured."""
    published = published or {}
    heads = ("", "seeds", "last evaluation", "last ten", "greatest mean", "training")
    heads = (*heads, "min")
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for contender in dict.fromkeys((*found, *published)):
        if contender in found:
            lines.append(f"| {' | '.join(_cells(contender, found[contender]))} |")
        for each in published.get(contender, ()):
            if each.step is None:
                label = ", ".join(filter(None, (contender, _cited(each))))
                lines.append(f"| {label} | | | | | | |")
    for contender, records in found.items():
        known = [x for x in published.get(contender, ()) if x.step]
        if known:
            lines += ["", *_at_equal_steps(contender, records, known)]
    for contender, records in found.items():
        each = ", ".join(f"{final(record):.5g}" for record in records)
        lines.append(f"\n{contender}, the last ten evaluations of each seed: {each}.")
        for name in records[0].facts:
            if name.startswith("repeated"):
                shares = ", ".join(record.facts[name] for record in records)
                lines.append(f"\n{contender}, {name}: {shares}.")
    return lines


def _at_equal_steps(
    contender: str, records: Sequence[Record], published: Sequence[Published]
) -> list[str]:
    """A table of greedy evaluations beside published returns after as many steps."""
    sources = list(dict.fromkeys(x.source for x in published))
    heads = ("steps", contender, *sources)
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for step in sorted({x.step for x in published if x.step}):
        values = {x.source: f"{x.value:g}" for x in published if x.step == step}
        reached = [value_after(x, "evaluation_return", step) for x in records]
        ours = center(reached) if np.isfinite(reached).all() else ""
        cells = (f"{step:,}", ours, *(values.get(x, "") for x in sources))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def value_after(record: Record, name: str, step: float) -> float:
    """The last value of a column within so many steps.

    It is `nan` if the run is shorter, or has no such value.
    """
    steps, values = record.columns["step"], record.columns[name]
    known = values[np.isfinite(values) & (steps <= step)]
    return float(known[-1]) if len(known) > 0 and steps[-1] >= step else float("nan")


def final(record: Record) -> float:
    """The mean of the last ten greedy evaluations."""
    return mean_of_last(record.evaluations)


def mean_of_last(evaluations: Float[np.ndarray, " evaluations"]) -> float:
    """The mean of the last ten, or of all if they are fewer."""
    return float(evaluations[-LAST_EVALUATIONS:].mean())


def training_return(record: Record) -> float:
    """The mean return of the last 100 episodes in training."""
    returns = record.columns["episode_return"]
    known = np.isfinite(returns)
    steps = np.diff(record.columns["step"], prepend=0)
    episodes = (steps / record.columns["episode_length"])[known][::-1]
    before = np.cumsum(episodes) - episodes
    weights = np.clip(LAST_EPISODES - before, 0, episodes)
    return float(np.average(returns[known][::-1], weights=weights))


def _cells(contender: str, records: Sequence[Record]) -> list[str]:
    length = min(len(x.evaluations) for x in records)
    means = np.mean([x.evaluations[:length] for x in records], axis=0)
    minutes = np.mean([float(x.facts["processor minutes"]) for x in records])
    return [
        contender,
        str(len(records)),
        center([float(x.evaluations[-1]) for x in records]),
        center([final(x) for x in records]),
        f"{means.max():.5g}",
        center([training_return(x) for x in records]),
        f"{minutes:.0f}",
    ]


def center(values: Sequence[float]) -> str:
    """Interquartile mean over seeds, with a bootstrap interval; one seed as it is."""
    if len(values) == 1:
        return f"{values[0]:.5g}"
    given = np.asarray(values)[None]
    low, high = eqrl.bootstrap_interval(given, center="iqm")
    return f"{eqrl.interquartile_mean(given)[0]:.5g} ({low[0]:.5g} to {high[0]:.5g})"


def _cited(published: Published) -> str:
    spread = "" if published.spread is None else f" ± {published.spread:g}"
    note = f" ({published.note})" if published.note else ""
    return f"{published.source}{note}: {published.value:g}{spread}"


def _curves(records: Sequence[Record], metric: str) -> dict[str, np.ndarray]:
    """A column of all seeds, at the steps at which it was measured."""
    first = records[0].columns
    rows = np.isfinite(first[metric])
    values = [x.columns[metric][rows] for x in records]
    return {"step": first["step"][rows], metric: np.stack(values, axis=1)}


if __name__ == "__main__":
    write_pages()
