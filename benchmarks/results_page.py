"""The table and the pictures of results, from the files that `results.py` writes."""

import csv
import pathlib

import numpy as np
from jaxtyping import Float

import eqrl
from eqrl.presets import PRESETS, PUBLISHED as REACHED_BY_OTHERS, best


FOLDER = pathlib.Path(__file__).parent.parent / "docs" / "results"
DATA = FOLDER / "data"
AGENTS = ("PPO", "PQN", "DQN", "DiscreteSAC", "SAC", "TD3", "TAAC")

# Returns that gymnax's README gives for its checkpoints of PPO or evolution strategies.
PUBLISHED = {
    "gymnax/Acrobot-v1": -80.0,
    "gymnax/Asterix-MinAtar": 15.0,
    "gymnax/BernoulliBandit-misc": 90.0,
    "gymnax/Breakout-MinAtar": 28.0,
    "gymnax/CartPole-v1": 500.0,
    "gymnax/Catch-bsuite": 1.0,
    "gymnax/DeepSea-bsuite": 0.0,
    "gymnax/DiscountingChain-bsuite": 1.1,
    "gymnax/FourRooms-misc": 1.0,
    "gymnax/Freeway-MinAtar": 58.0,
    "gymnax/GaussianBandit-misc": 0.0,
    "gymnax/MemoryChain-bsuite": 0.1,
    "gymnax/MetaMaze-misc": 32.0,
    "gymnax/MountainCar-v0": -118.0,
    "gymnax/MountainCarContinuous-v0": 92.0,
    "gymnax/Pendulum-v1": -130.0,
    "gymnax/PointRobot-misc": 10.0,
    "gymnax/SpaceInvaders-MinAtar": 131.0,
    "gymnax/UmbrellaChain-bsuite": 1.0,
}


def write_page() -> None:
    """Writes the files of the page of results: tables, and a picture of each row."""
    write_presets()
    heads = ["environment", "random", *AGENTS, "published"]
    table = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    pictures = []
    for folder in sorted(path for path in DATA.glob("*/*") if path.is_dir()):
        environment = f"{folder.parent.name}/{folder.name}"
        cells = [_cell(folder / f"{agent}.csv") for agent in ("random", *AGENTS)]
        published = PUBLISHED.get(environment)
        last = "" if published is None else f"{published:g}"
        table.append(f"| {' | '.join([environment, *cells, last])} |")
        name = f"{folder.name}.png"
        if _draw(FOLDER / "pictures" / name, folder, title=environment):
            pictures.append(f"![Learning curves on {environment}](pictures/{name})")
    (FOLDER / "table.md").write_text("\n".join(table) + "\n")
    (FOLDER / "pictures.md").write_text("\n".join(pictures) + "\n")


def write_presets() -> None:
    """Writes the table of presets, the one that `eqrl train` takes first."""
    heads = (
        *("environment", "agent", "steps", "minutes", "return"),
        *("interquartile mean", "least", "greatest", "published"),
    )
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    presets = PRESETS.values()
    for env in sorted({preset.env for preset in presets}):
        chosen = best(env)
        found = [preset for preset in presets if preset.env == env]
        for preset in sorted(found, key=lambda preset: preset != chosen):
            low, high = preset.interval
            middle = eqrl.interquartile_mean(np.asarray([preset.returns]))
            published = REACHED_BY_OTHERS.get(env)
            cells = (
                env if preset == chosen else "",
                preset.agent,
                f"{preset.num_steps:,}",
                f"{preset.minutes:.2f}",
                f"{_shown(preset.mean_return)} ({_shown(low)} to {_shown(high)})",
                *map(_shown, (middle[0], min(preset.returns), max(preset.returns))),
                "" if published is None else f"{published:g}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    (FOLDER / "presets.md").write_text("\n".join(lines) + "\n")


def _shown(value: float) -> str:
    """Four digits, without an exponent."""
    return f"{float(f'{value:.4g}'):g}"


def _cell(path: pathlib.Path) -> str:
    """Mean over seeds, with a bootstrap interval."""
    if not path.exists():
        return ""
    returns = greedy_returns(path)
    low, high = eqrl.bootstrap_interval(returns[None])
    return f"{returns.mean():.4g} ({low[0]:.4g} to {high[0]:.4g})"


def greedy_returns(path: pathlib.Path) -> Float[np.ndarray, " seeds"]:
    """The mean greedy return of each seed."""
    return np.asarray(
        [float(row["greedy_return"]) for row in _read(path) if row["greedy_return"]]
    )


def _draw(path: pathlib.Path, folder: pathlib.Path, *, title: str) -> bool:
    """Draws the learning curves of all existing agents."""
    runs = {
        agent: _curve(folder / f"{agent}.csv")
        for agent in AGENTS
        if (folder / f"{agent}.csv").exists()
    }
    if not runs:
        return False
    path.parent.mkdir(exist_ok=True)
    eqrl.draw_learning_curves(path, runs, smoothing=3, title=title)
    return True


def _curve(path: pathlib.Path) -> dict[str, np.ndarray]:
    """The metrics of five seeds, which are written one after another."""
    rows = _read(path)
    steps = sorted({int(row["step"]) for row in rows})
    returns = np.asarray([float(row["episode_return"] or "nan") for row in rows])
    return {
        "step": np.asarray(steps),
        "episode_return": returns.reshape(-1, len(steps)).T,
    }


def _read(path: pathlib.Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))
