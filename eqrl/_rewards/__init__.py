from .base import AbstractReward as AbstractReward
from .discriminator import (
    Discriminator as Discriminator,
    DiscriminatorState as DiscriminatorState,
)
from .incremental import Incremental as Incremental
from .incremental_state import IncrementalState as IncrementalState
