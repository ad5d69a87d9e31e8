"""Typed reinforcement learning agents on JAX and Equinox."""

import gc as _gc


# Imports allocate many long-lived objects, so collections would free little.
_threshold = _gc.get_threshold()
_gc.set_threshold(100_000)

from ._types.typecheck import (
    check_own_types as _check_own_types,
    typecheck as typecheck,
)


# Must run before anything else in the package is imported.
_check_own_types()

from . import (
    envs as envs,
    losses as losses,
    nn as nn,
    numpy_policy as numpy_policy,
    presets as presets,
    spaces as spaces,
)
from ._agents.actor_critic import SACState as SACState
from ._agents.base import (
    AbstractAgent as AbstractAgent,
    AbstractMarkovAgent as AbstractMarkovAgent,
    AbstractOnPolicyAgent as AbstractOnPolicyAgent,
    AbstractWrapper as AbstractWrapper,
)
from ._agents.csf import CSF as CSF, CSFState as CSFState
from ._agents.discrete_sac import DiscreteSAC as DiscreteSAC
from ._agents.dqn import DQN as DQN, DQNState as DQNState
from ._agents.ppo import PPO as PPO, PPOState as PPOState
from ._agents.pqn import PQN as PQN, PQNState as PQNState
from ._agents.sac import SAC as SAC
from ._agents.taac.policy import TAACExtras as TAACExtras, TAACMemory as TAACMemory
from ._agents.taac.taac import TAAC as TAAC, TAACState as TAACState
from ._agents.taac.trajectory import (
    AbstractTrajectory as AbstractTrajectory,
    ConstantTrajectory as ConstantTrajectory,
    LinearTrajectory as LinearTrajectory,
    QuadraticTrajectory as QuadraticTrajectory,
    Trajectory as Trajectory,
)
from ._agents.td3 import TD3 as TD3, TD3State as TD3State
from ._agents.wrappers.fixed_skill import (
    FixedSkill as FixedSkill,
    GoalSkill as GoalSkill,
    fix_skill as fix_skill,
    seek_goal as seek_goal,
)
from ._agents.wrappers.intrinsic import (
    Intrinsic as Intrinsic,
    IntrinsicState as IntrinsicState,
    diayn as diayn,
    unwrap as unwrap,
)
from ._agents.wrappers.normalized import (
    Normalized as Normalized,
    NormalizedReward as NormalizedReward,
    NormalizedRewardState as NormalizedRewardState,
    NormalizedState as NormalizedState,
)
from ._agents.wrappers.skills import (
    SkillConditioned as SkillConditioned,
    SkillMemory as SkillMemory,
)
from ._disk.learn import learn_skills as learn_skills
from ._disk.library import (
    Skills as Skills,
    SkillTraining as SkillTraining,
    load_skill as load_skill,
    load_skills as load_skills,
    pick_skill as pick_skill,
    play_skills as play_skills,
    save_skills as save_skills,
)
from ._interaction.actors import Actors as Actors, interact as interact, start as start
from ._interaction.evaluate import (
    Evaluation as Evaluation,
    evaluate as evaluate,
    rollout as rollout,
)
from ._interaction.evaluate_skills import (
    SkillEvaluation as SkillEvaluation,
    diversity_return as diversity_return,
    evaluate_skills as evaluate_skills,
    skill_confusion as skill_confusion,
    weighted_return as weighted_return,
)
from ._interaction.export import export_policy as export_policy
from ._interaction.exported_policy import (
    ExportedPolicy as ExportedPolicy,
    load_policy as load_policy,
)
from ._interaction.select_skill import select_skill as select_skill
from ._interaction.skill_choice import (
    SkillChoice as SkillChoice,
    SkillChoiceState as SkillChoiceState,
)
from ._population.pbt import (
    PBT as PBT,
    Tournament as Tournament,
    Truncation as Truncation,
)
from ._population.prior import (
    AbstractPrior as AbstractPrior,
    LogUniform as LogUniform,
    OneMinus as OneMinus,
    Uniform as Uniform,
)
from ._population.solution import (
    PopulationSolution as PopulationSolution,
    best as best,
    member as member,
    stored_transitions as stored_transitions,
)
from ._population.train import train_population as train_population
from ._pytree.fields import (
    check_fields as check_fields,
    hyperparameter as hyperparameter,
)
from ._pytree.tree import (
    gradient_step as gradient_step,
    incremental_update as incremental_update,
    tree_copy as tree_copy,
)
from ._reporting.episodes import (
    draw_repeats as draw_repeats,
    draw_skills as draw_skills,
    render as render,
)
from ._reporting.learning_curve import draw_learning_curves as draw_learning_curves
from ._reporting.population import (
    draw_family_tree as draw_family_tree,
    draw_schedules as draw_schedules,
)
from ._reporting.progress import (
    Logger as Logger,
    PopulationProgressBar as PopulationProgressBar,
    ProgressBar as ProgressBar,
    TensorBoard as TensorBoard,
)
from ._reporting.statistics import (
    bootstrap_interval as bootstrap_interval,
    interquartile_mean as interquartile_mean,
)
from ._reporting.sweep import SweepSolution as SweepSolution, draw_sweep as draw_sweep
from ._rewards.base import (
    AbstractReward as AbstractReward,
    AbstractSkillReward as AbstractSkillReward,
    Sum as Sum,
    SumState as SumState,
)
from ._rewards.cic import CIC as CIC, CICState as CICState
from ._rewards.dads import DADS as DADS, DADSState as DADSState
from ._rewards.disagreement import (
    Disagreement as Disagreement,
    DisagreementState as DisagreementState,
)
from ._rewards.discriminator import (
    Discriminator as Discriminator,
    DiscriminatorState as DiscriminatorState,
)
from ._rewards.icm import ICM as ICM, ICMState as ICMState
from ._rewards.incremental import (
    Incremental as Incremental,
    IncrementalState as IncrementalState,
)
from ._rewards.metra import (
    LSD as LSD,
    METRA as METRA,
    METRAState as METRAState,
)
from ._rewards.particle_entropy import (
    ParticleEntropy as ParticleEntropy,
    ParticleEntropyState as ParticleEntropyState,
)
from ._rewards.rnd import RND as RND, RNDState as RNDState
from ._rewards.running_statistics import RunningStatistics as RunningStatistics
from ._rewards.scaled import Scaled as Scaled, ScaledState as ScaledState
from ._rewards.smerl import SMERL as SMERL, SMERLState as SMERLState
from ._run.load import load_run as load_run, save_run as save_run
from ._run.solutions import (
    Checkpoints as Checkpoints,
    load_solution as load_solution,
    save_solution as save_solution,
)
from ._run.sweep import sweep as sweep
from ._skills.distances import (
    SkillTrajectories as SkillTrajectories,
    coverage as coverage,
    hausdorff_distance as hausdorff_distance,
    nearest_distance as nearest_distance,
    pairwise_hausdorff as pairwise_hausdorff,
    terminal_descriptors as terminal_descriptors,
    union_hausdorff as union_hausdorff,
    visited_cells as visited_cells,
)
from ._skills.prior import (
    AbstractSkillPrior as AbstractSkillPrior,
    EvenOneHotSkills as EvenOneHotSkills,
    NormalSkills as NormalSkills,
    OneHotSkills as OneHotSkills,
    OneSkill as OneSkill,
    SkillExtras as SkillExtras,
    SphereSkills as SphereSkills,
    UniformSkills as UniformSkills,
)
from ._storage.checkpoint import restore as restore, save as save
from ._storage.files import __version__ as __version__
from ._training.evaluations import BestPolicy as BestPolicy, Evaluations as Evaluations
from ._training.host_loop import (
    NonFiniteError as NonFiniteError,
    TrainingInterrupted as TrainingInterrupted,
)
from ._training.mesh import use_all_cores as use_all_cores
from ._training.offline import (
    fill_replay as fill_replay,
    train_offline as train_offline,
    transitions_from_arrays as transitions_from_arrays,
)
from ._training.replay import (
    AbstractPrioritizedReplay as AbstractPrioritizedReplay,
    AbstractReplay as AbstractReplay,
    LatestRows as LatestRows,
    ReplayBuffer as ReplayBuffer,
    ReplayState as ReplayState,
)
from ._training.rows import OfflineSolution as OfflineSolution, Solution as Solution
from ._training.schedule import Counts as Counts
from ._training.train import (
    jit_init as jit_init,
    jit_run as jit_run,
    train as train,
    train_seeds as train_seeds,
)
from ._training.trainer import (
    Trainer as Trainer,
    TrainerState as TrainerState,
)
from ._types.custom_types import (
    FloatLike as FloatLike,
    MakeOptimizer as MakeOptimizer,
    Metrics as Metrics,
    Mode as Mode,
    Observation as Observation,
    ObservationDtype as ObservationDtype,
)
from ._types.data import EnvSpec as EnvSpec, Transition as Transition
from ._types.stacked import Stacked as Stacked
from .envs._host import SimulatorError as SimulatorError


_gc.set_threshold(*_threshold)
