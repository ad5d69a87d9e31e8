from .base import (
    AbstractAgent as AbstractAgent,
    AbstractMarkovAgent as AbstractMarkovAgent,
)
from .normalized import (
    Normalized as Normalized,
    NormalizedState as NormalizedState,
    RunningStatistics as RunningStatistics,
)
from .sac import SAC as SAC, SACState as SACState
from .taac import TAAC as TAAC, TAACState as TAACState
from .taac_policy import TAACExtras as TAACExtras, TAACMemory as TAACMemory
from .td3 import TD3 as TD3, TD3State as TD3State
from .trajectory import (
    AbstractTrajectory as AbstractTrajectory,
    ConstantTrajectory as ConstantTrajectory,
    LinearTrajectory as LinearTrajectory,
    QuadraticTrajectory as QuadraticTrajectory,
    Trajectory as Trajectory,
)
