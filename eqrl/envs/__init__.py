from typing import TYPE_CHECKING

from .._types.installed import needed as _needed
from ._base import (
    LIBRARIES as _LIBRARIES,
    AbstractEnv as AbstractEnv,
    AbstractEnvWrapper as AbstractEnvWrapper,
    Drawable as Drawable,
    Outcome as Outcome,
)
from ._check import check as check
from ._functional import FunctionalEnv as FunctionalEnv
from ._make import ant_with_broken_legs as ant_with_broken_legs, make as make
from ._point import Point as Point, sector_of as sector_of, sectors as sectors
from ._wrappers import (
    AbstractStatelessWrapper as AbstractStatelessWrapper,
    ActionRepeat as ActionRepeat,
    DisabledActions as DisabledActions,
    FrameStack as FrameStack,
    Masked as Masked,
    PooledReset as PooledReset,
    TimeLimit as TimeLimit,
)


if TYPE_CHECKING:
    from ._brax import BraxEnv as BraxEnv
    from ._envpool import EnvPoolEnv as EnvPoolEnv
    from ._gymnasium import GymnasiumEnv as GymnasiumEnv
    from ._gymnasium_vector import GymnasiumVectorEnv as GymnasiumVectorEnv
    from ._gymnax import GymnaxEnv as GymnaxEnv
    from ._playground import PlaygroundEnv as PlaygroundEnv
else:
    # Libraries take seconds to import, so adapters are imported on first use.
    def __getattr__(name: str) -> type[AbstractEnv]:
        for library, each in _LIBRARIES.items():
            if name == each.adapter:
                with _needed(f"`eqrl.envs.{name}`", library):
                    return getattr(each.load(), name)
        if name == "GymnasiumVectorEnv":
            with _needed(f"`eqrl.envs.{name}`", "gymnasium"):
                from ._gymnasium_vector import GymnasiumVectorEnv
            return GymnasiumVectorEnv
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        adapters = [each.adapter for each in _LIBRARIES.values()]
        return sorted({*globals(), *adapters, "GymnasiumVectorEnv"})
