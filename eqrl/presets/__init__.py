"""Tuned hyperparameters of agents, by environment."""

from ._find import find as find
from ._preset import Preset as Preset
from ._table import PRESETS as PRESETS
