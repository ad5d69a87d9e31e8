import equinox as eqx

from .feature_set import FeatureSet
from .scale import Scale


class IncrementalState(eqx.Module):
    """What `Incremental` knows of the skills before and of the one that is learnt."""

    past: FeatureSet
    recent: FeatureSet
    scale: Scale


IncrementalState.__init__.__doc__ = """**Arguments:**

- `past`: features of the skills before.
- `recent`: features of the last transitions.
- `scale`: how large distances are.
"""
