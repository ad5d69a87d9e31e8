"""Typed reinforcement learning agents on JAX and Equinox."""

from ._types.typecheck import (
    check_own_types as _check_own_types,
    typecheck as typecheck,
)


# Before anything else of the package is imported.
_check_own_types()

from . import (
    envs as envs,
    losses as losses,
    nn as nn,
    presets as presets,
    spaces as spaces,
)
from ._agents import (
    DQN as DQN,
    PPO as PPO,
    PQN as PQN,
    SAC as SAC,
    TAAC as TAAC,
    TD3 as TD3,
    AbstractAgent as AbstractAgent,
    AbstractMarkovAgent as AbstractMarkovAgent,
    AbstractOnPolicyAgent as AbstractOnPolicyAgent,
    AbstractTrajectory as AbstractTrajectory,
    AbstractWrapper as AbstractWrapper,
    ConstantTrajectory as ConstantTrajectory,
    DiscreteSAC as DiscreteSAC,
    DQNState as DQNState,
    FixedSkill as FixedSkill,
    Intrinsic as Intrinsic,
    IntrinsicState as IntrinsicState,
    LinearTrajectory as LinearTrajectory,
    Normalized as Normalized,
    NormalizedReward as NormalizedReward,
    NormalizedRewardState as NormalizedRewardState,
    NormalizedState as NormalizedState,
    PPOState as PPOState,
    PQNState as PQNState,
    QuadraticTrajectory as QuadraticTrajectory,
    RunningStatistics as RunningStatistics,
    SACState as SACState,
    SkillConditioned as SkillConditioned,
    SkillMemory as SkillMemory,
    TAACExtras as TAACExtras,
    TAACMemory as TAACMemory,
    TAACState as TAACState,
    TD3State as TD3State,
    Trajectory as Trajectory,
    diayn as diayn,
    fix_skill as fix_skill,
    unwrap as unwrap,
)
from ._disk import (
    Skills as Skills,
    SkillTraining as SkillTraining,
    learn_skills as learn_skills,
    load_skill as load_skill,
    load_skills as load_skills,
    pick_skill as pick_skill,
    play_skills as play_skills,
    save_skills as save_skills,
)
from ._interaction.actors import Actors as Actors, interact as interact, start as start
from ._interaction.evaluate import Evaluation as Evaluation, evaluate as evaluate
from ._interaction.evaluate_skills import (
    SkillEvaluation as SkillEvaluation,
    evaluate_skills as evaluate_skills,
)
from ._interaction.export import export_policy as export_policy
from ._interaction.exported_policy import (
    ExportedPolicy as ExportedPolicy,
    load_policy as load_policy,
)
from ._interaction.rollout import rollout as rollout
from ._interaction.scores import (
    diversity_return as diversity_return,
    weighted_return as weighted_return,
)
from ._interaction.skill_choice import (
    SkillChoice as SkillChoice,
    SkillChoiceState as SkillChoiceState,
)
from ._population import (
    PBT as PBT,
    AbstractPrior as AbstractPrior,
    LogUniform as LogUniform,
    OneMinus as OneMinus,
    PopulationSolution as PopulationSolution,
    Tournament as Tournament,
    Truncation as Truncation,
    Uniform as Uniform,
    best as best,
    member as member,
    train_population as train_population,
)
from ._pytree.fields import (
    check_fields as check_fields,
    hyperparameter as hyperparameter,
)
from ._pytree.tree import (
    gradient_step as gradient_step,
    incremental_update as incremental_update,
    tree_copy as tree_copy,
)
from ._reporting.learning_curve import draw_learning_curves as draw_learning_curves
from ._reporting.logger import Logger as Logger
from ._reporting.population import (
    draw_family_tree as draw_family_tree,
    draw_schedules as draw_schedules,
)
from ._reporting.progress import (
    PopulationProgressBar as PopulationProgressBar,
    ProgressBar as ProgressBar,
)
from ._reporting.render import render as render
from ._reporting.repeats import draw_repeats as draw_repeats
from ._reporting.skills import draw_skills as draw_skills
from ._reporting.statistics import (
    bootstrap_interval as bootstrap_interval,
    interquartile_mean as interquartile_mean,
)
from ._reporting.tensorboard import TensorBoard as TensorBoard
from ._rewards import (
    AbstractReward as AbstractReward,
    Discriminator as Discriminator,
    DiscriminatorState as DiscriminatorState,
    Incremental as Incremental,
    IncrementalState as IncrementalState,
    Sum as Sum,
    SumState as SumState,
)
from ._run import (
    Checkpoints as Checkpoints,
    load_run as load_run,
    load_solution as load_solution,
    save_run as save_run,
    save_solution as save_solution,
)
from ._skills.distances import (
    coverage as coverage,
    hausdorff_distance as hausdorff_distance,
    nearest_distance as nearest_distance,
    pairwise_hausdorff as pairwise_hausdorff,
    terminal_descriptors as terminal_descriptors,
    union_hausdorff as union_hausdorff,
)
from ._skills.prior import (
    AbstractSkillPrior as AbstractSkillPrior,
    EvenOneHotSkills as EvenOneHotSkills,
    NormalSkills as NormalSkills,
    OneHotSkills as OneHotSkills,
    OneSkill as OneSkill,
    SkillExtras as SkillExtras,
    SphereSkills as SphereSkills,
)
from ._skills.trajectories import SkillTrajectories as SkillTrajectories
from ._storage.checkpoint import restore as restore, save as save
from ._storage.version import __version__ as __version__
from ._training.cores import use_all_cores as use_all_cores
from ._training.counts import Counts as Counts
from ._training.data_set import (
    fill_replay as fill_replay,
    transitions_from_arrays as transitions_from_arrays,
)
from ._training.evaluations import (
    BestPolicy as BestPolicy,
    Evaluations as Evaluations,
)
from ._training.jit import jit_init as jit_init, jit_run as jit_run
from ._training.latest_rows import LatestRows as LatestRows
from ._training.offline import train_offline as train_offline
from ._training.replay import (
    AbstractPrioritizedReplay as AbstractPrioritizedReplay,
    AbstractReplay as AbstractReplay,
    ReplayBuffer as ReplayBuffer,
    ReplayState as ReplayState,
)
from ._training.solution import (
    NonFiniteError as NonFiniteError,
    OfflineSolution as OfflineSolution,
    Solution as Solution,
    TrainingInterrupted as TrainingInterrupted,
)
from ._training.train import train as train, train_seeds as train_seeds
from ._training.trainer import (
    Trainer as Trainer,
    TrainerState as TrainerState,
)
from ._types.custom_types import (
    FloatLike as FloatLike,
    MakeOptimizer as MakeOptimizer,
    Metrics as Metrics,
    Mode as Mode,
)
from ._types.data import EnvSpec as EnvSpec, Transition as Transition
from ._types.stacked import Stacked as Stacked
