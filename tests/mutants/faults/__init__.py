"""All faults, by room."""

from ..fault import Fault
from . import (
    agents,
    arrays,
    disk,
    envs,
    interaction,
    losses,
    numpy_policy,
    population,
    programs,
    rewards,
    training,
)


FAULTS: tuple[Fault, ...] = (
    *arrays.FAULTS,
    *losses.FAULTS,
    *envs.FAULTS,
    *rewards.FAULTS,
    *agents.FAULTS,
    *interaction.FAULTS,
    *numpy_policy.FAULTS,
    *training.FAULTS,
    *population.FAULTS,
    *disk.FAULTS,
    *programs.FAULTS,
)
