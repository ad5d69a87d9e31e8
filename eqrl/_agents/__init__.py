from .base import (
    AbstractAgent as AbstractAgent,
    AbstractMarkovAgent as AbstractMarkovAgent,
)
from .diayn import diayn as diayn
from .fixed_skill import FixedSkill as FixedSkill, fix_skill as fix_skill
from .intrinsic import Intrinsic as Intrinsic, IntrinsicState as IntrinsicState
from .normalized import (
    Normalized as Normalized,
    NormalizedState as NormalizedState,
    RunningStatistics as RunningStatistics,
)
from .sac import SAC as SAC, SACState as SACState
from .skill_conditioned import (
    SkillConditioned as SkillConditioned,
    SkillMemory as SkillMemory,
)
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
