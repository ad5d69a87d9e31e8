"""Tuned hyperparameters of agents, by environment."""

from ._preset import PRESETS as PRESETS, Preset as Preset, find as find
