from .history import PopulationSolution as PopulationSolution
from .pbt import PBT as PBT
from .prior import (
    AbstractPrior as AbstractPrior,
    LogUniform as LogUniform,
    OneMinus as OneMinus,
    Uniform as Uniform,
)
from .selection import Tournament as Tournament, Truncation as Truncation
from .stack import best as best, member as member
from .train import train_population as train_population
