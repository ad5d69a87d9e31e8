from .agents import AGENTS as AGENTS, SkillOptions as SkillOptions
from .config import (
    Population as Population,
    Run as Run,
    Settings as Settings,
    Training as Training,
    read_config as read_config,
    write_config as write_config,
)
from .files import claim_folder as claim_folder, new_folder as new_folder
from .load import best_policy as best_policy, load_run as load_run
from .priors import Prior as Prior
from .solutions import load_solution as load_solution, save_solution as save_solution
from .write import (
    states_of_seeds as states_of_seeds,
    write_evaluation as write_evaluation,
    write_skills as write_skills,
    write_solution as write_solution,
)
from .write_population import write_population as write_population
