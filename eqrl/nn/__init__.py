from .._types.custom_types import (
    ActionValueFunction as ActionValueFunction,
    CriticFunction as CriticFunction,
)
from ._critic import (
    ActionValues as ActionValues,
    Critic as Critic,
    DuelingHeads as DuelingHeads,
    MakeActionValues as MakeActionValues,
    MakeCritic as MakeCritic,
    MakeTrajectoryCritic as MakeTrajectoryCritic,
    MakeValue as MakeValue,
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
    MakeDiscriminator as MakeDiscriminator,
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
    Features as Features,
    ImageEncoder as ImageEncoder,
    MakeNetwork as MakeNetwork,
    NetworkFactory as NetworkFactory,
    VectorFunction as VectorFunction,
)
from ._mlp import (
    MLP as MLP,
    Linear as Linear,
    ResidualBlock as ResidualBlock,
    ResidualMLP as ResidualMLP,
    as_floats as as_floats,
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
    MakeActor as MakeActor,
    MakeChoice as MakeChoice,
    MakeLikelihoodPolicy as MakeLikelihoodPolicy,
    MakePolicy as MakePolicy,
    Normal as Normal,
    NormalPolicy as NormalPolicy,
    Policy as Policy,
    StochasticPolicy as StochasticPolicy,
)
from ._product import (
    Precision as Precision,
    product as product,
)
