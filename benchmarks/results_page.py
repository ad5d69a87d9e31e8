"""The page of results, from the files that `results.py` writes."""

import csv
import pathlib

import numpy as np
from jaxtyping import Float


FOLDER = pathlib.Path(__file__).parent.parent / "docs" / "results"
DATA = FOLDER / "data"
COLUMNS = ("random", "PPO", "PQN", "DQN", "DiscreteSAC", "SAC", "TD3")

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
    """Writes the table of greedy returns."""
    heads = ["environment", *COLUMNS, "published"]
    lines = [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    folders = sorted(path for path in DATA.glob("*/*") if path.is_dir())
    for folder in folders:
        environment = f"{folder.parent.name}/{folder.name}"
        cells = [_cell(folder / f"{agent}.csv") for agent in COLUMNS]
        published = PUBLISHED.get(environment)
        last = "" if published is None else f"{published:g}"
        lines.append(f"| {' | '.join([environment, *cells, last])} |")
    (FOLDER / "table.md").write_text("\n".join(lines) + "\n")


def _cell(path: pathlib.Path) -> str:
    """Mean over seeds, with the range."""
    if not path.exists():
        return ""
    returns = greedy_returns(path)
    return f"{returns.mean():.4g} ({returns.min():.4g} to {returns.max():.4g})"


def greedy_returns(path: pathlib.Path) -> Float[np.ndarray, " seeds"]:
    with path.open() as file:
        values = [row["greedy_return"] for row in csv.DictReader(file)]
    return np.asarray([float(value) for value in values if value])
