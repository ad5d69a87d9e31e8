from .._types.custom_types import (
    ActionValueFunction as ActionValueFunction,
    CriticFunction as CriticFunction,
)
from ._critic import (
    ActionValues as ActionValues,
    Critic as Critic,
    DuelingHeads as DuelingHeads,
    StateActionValue as StateActionValue,
    StateActionValues as StateActionValues,
    StateValue as StateValue,
    Value as Value,
    ValueFunction as ValueFunction,
)
from ._discriminator import (
    AbstractSkillDistribution as AbstractSkillDistribution,
    Categorical as Categorical,
    CategoricalDiscriminator as CategoricalDiscriminator,
    CategoricalNetwork as CategoricalNetwork,
    DiagonalNormal as DiagonalNormal,
    NormalDiscriminator as NormalDiscriminator,
    NormalNetwork as NormalNetwork,
    SkillDiscriminator as SkillDiscriminator,
    VonMisesFisher as VonMisesFisher,
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
from ._factory import (
    Convolution as Convolution,
    Encoded as Encoded,
    ImageEncoder as ImageEncoder,
    NetworkFactory as NetworkFactory,
)
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
from ._mlp import (
    MLP as MLP,
    Linear as Linear,
    ResidualBlock as ResidualBlock,
    ResidualMLP as ResidualMLP,
)
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
