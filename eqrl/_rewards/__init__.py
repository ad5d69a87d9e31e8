from .base import AbstractReward as AbstractReward
from .discriminator import (
    Discriminator as Discriminator,
    DiscriminatorState as DiscriminatorState,
)
from .incremental.reward import (
    Incremental as Incremental,
    IncrementalState as IncrementalState,
)
from .sum import Sum as Sum, SumState as SumState
