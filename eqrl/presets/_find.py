from ._preset import Preset
from ._table import PRESETS


def find(agent: str, env: str) -> Preset | None:
    """The preset of an agent, by its name on the command line, for an environment.

    `None` if there is none.
    """
    return PRESETS.get((agent, env))
