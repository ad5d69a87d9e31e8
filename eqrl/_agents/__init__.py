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
from .td3 import TD3 as TD3, TD3State as TD3State
