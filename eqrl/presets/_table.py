from collections.abc import Mapping

from ._preset import Preset


_ALL: tuple[Preset, ...] = ()

PRESETS: Mapping[tuple[str, str], Preset] = {
    (preset.agent, preset.env): preset for preset in _ALL
}
"""All presets, by the agent's name on the command line and the environment."""
