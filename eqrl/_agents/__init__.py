from .base import (
    AbstractAgent as AbstractAgent,
    AbstractMarkovAgent as AbstractMarkovAgent,
    AbstractOnPolicyAgent as AbstractOnPolicyAgent,
)
from .discrete_sac import DiscreteSAC as DiscreteSAC
from .dqn import DQN as DQN, DQNState as DQNState
from .ppo import PPO as PPO, PPOState as PPOState
from .pqn import PQN as PQN, PQNState as PQNState
from .sac import SAC as SAC, SACState as SACState
from .taac.policy import TAACExtras as TAACExtras, TAACMemory as TAACMemory
from .taac.taac import TAAC as TAAC, TAACState as TAACState
from .taac.trajectory import (
    AbstractTrajectory as AbstractTrajectory,
    ConstantTrajectory as ConstantTrajectory,
    LinearTrajectory as LinearTrajectory,
    QuadraticTrajectory as QuadraticTrajectory,
    Trajectory as Trajectory,
)
from .td3 import TD3 as TD3, TD3State as TD3State
from .wrappers.base import AbstractWrapper as AbstractWrapper
from .wrappers.diayn import diayn as diayn
from .wrappers.fixed_skill import FixedSkill as FixedSkill, fix_skill as fix_skill
from .wrappers.intrinsic import Intrinsic as Intrinsic, IntrinsicState as IntrinsicState
from .wrappers.normalized import (
    Normalized as Normalized,
    NormalizedState as NormalizedState,
    RunningStatistics as RunningStatistics,
)
from .wrappers.normalized_reward import (
    NormalizedReward as NormalizedReward,
    NormalizedRewardState as NormalizedRewardState,
)
from .wrappers.skill_conditioned import (
    SkillConditioned as SkillConditioned,
    SkillMemory as SkillMemory,
)
from .wrappers.unwrap import unwrap as unwrap
