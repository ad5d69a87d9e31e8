from .._types.custom_types import (
    ActionValueFunction as ActionValueFunction,
    CriticFunction as CriticFunction,
)
from ._action_values import ActionValues as ActionValues, DuelingHeads as DuelingHeads
from ._convolution import (
    Convolution as Convolution,
    Encoded as Encoded,
    ImageEncoder as ImageEncoder,
)
from ._critic import (
    Critic as Critic,
    StateActionValue as StateActionValue,
    StateActionValues as StateActionValues,
)
from ._discriminator import (
    CategoricalDiscriminator as CategoricalDiscriminator,
    CategoricalNetwork as CategoricalNetwork,
    NormalDiscriminator as NormalDiscriminator,
    NormalNetwork as NormalNetwork,
    SkillDiscriminator as SkillDiscriminator,
    VonMisesFisherDiscriminator as VonMisesFisherDiscriminator,
    VonMisesFisherNetwork as VonMisesFisherNetwork,
)
from ._distribution import (
    AbstractDensity as AbstractDensity,
    AbstractDistribution as AbstractDistribution,
    AbstractLikelihood as AbstractLikelihood,
    ClippedNormal as ClippedNormal,
    EpsilonGreedy as EpsilonGreedy,
    Softmax as Softmax,
    SquashedNormal as SquashedNormal,
    TanhNormal as TanhNormal,
)
from ._factory import NetworkFactory as NetworkFactory
from ._interface import (
    MakeActionValues as MakeActionValues,
    MakeActor as MakeActor,
    MakeChoice as MakeChoice,
    MakeCritic as MakeCritic,
    MakeDiscriminator as MakeDiscriminator,
    MakeLikelihoodPolicy as MakeLikelihoodPolicy,
    MakeNetwork as MakeNetwork,
    MakePolicy as MakePolicy,
    MakeTrajectoryCritic as MakeTrajectoryCritic,
    MakeValue as MakeValue,
)
from ._mlp import MLP as MLP, Linear as Linear
from ._policy import (
    AbstractPolicy as AbstractPolicy,
    Actor as Actor,
    Choice as Choice,
    ChoiceFunction as ChoiceFunction,
    ChoicePolicy as ChoicePolicy,
    Deterministic as Deterministic,
    DeterministicPolicy as DeterministicPolicy,
    ExploringPolicy as ExploringPolicy,
    Gaussian as Gaussian,
    GaussianPolicy as GaussianPolicy,
    LikelihoodPolicy as LikelihoodPolicy,
    Normal as Normal,
    NormalPolicy as NormalPolicy,
    Policy as Policy,
    StochasticPolicy as StochasticPolicy,
)
from ._residual import ResidualBlock as ResidualBlock, ResidualMLP as ResidualMLP
from ._skill_distribution import (
    AbstractSkillDistribution as AbstractSkillDistribution,
    Categorical as Categorical,
    DiagonalNormal as DiagonalNormal,
    VonMisesFisher as VonMisesFisher,
)
from ._value import (
    StateValue as StateValue,
    Value as Value,
    ValueFunction as ValueFunction,
)
