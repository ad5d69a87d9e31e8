"""The papers by name."""

import importlib

from .paper import Paper


PAPERS = (
    "ppo",
    "sac",
    "td3",
    "taac",
    "pbt",
    "disk",
    "diayn",
    "dads",
    "metra",
    "smerl",
    "exploration",
    "minatar",
)


def load(name: str) -> Paper:
    """The paper of a module of this package."""
    paper: Paper = importlib.import_module(f"benchmarks.papers.{name}").PAPER
    return paper
