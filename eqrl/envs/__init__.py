from typing import TYPE_CHECKING

from .._types.installed import needed as _needed
from ._base import (
    AbstractEnv as AbstractEnv,
    AbstractEnvWrapper as AbstractEnvWrapper,
    Drawable as Drawable,
    Outcome as Outcome,
)
from ._broken_legs import ant_with_broken_legs as ant_with_broken_legs
from ._check import check as check
from ._make import make as make
from ._point import Point as Point, sector_of as sector_of, sectors as sectors
from ._wrappers import (
    ActionRepeat as ActionRepeat,
    DisabledActions as DisabledActions,
    FrameStack as FrameStack,
    PooledReset as PooledReset,
    TimeLimit as TimeLimit,
)


if TYPE_CHECKING:
    from ._brax import BraxEnv as BraxEnv
    from ._gymnax import GymnaxEnv as GymnaxEnv
else:
    # Brax and gymnax take seconds to import, so they are imported on first use.
    def __getattr__(name: str) -> type[AbstractEnv]:
        if name == "BraxEnv":
            with _needed("`eqrl.envs.BraxEnv`", "brax"):
                from ._brax import BraxEnv

            return BraxEnv
        if name == "GymnaxEnv":
            with _needed("`eqrl.envs.GymnaxEnv`", "gymnax"):
                from ._gymnax import GymnaxEnv

            return GymnaxEnv
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
