from .agents import (
    AGENTS as AGENTS,
    NamedAgent as NamedAgent,
    SkillOptions as SkillOptions,
    find_agent as find_agent,
)
from .config import (
    Population as Population,
    Run as Run,
    Settings as Settings,
    SkillSchedule as SkillSchedule,
    Training as Training,
    read_config as read_config,
    write_config as write_config,
)
from .files import claim_folder as claim_folder, new_folder as new_folder
from .load import (
    best_policy as best_policy,
    count_policies as count_policies,
    load_run as load_run,
)
from .own_agent import (
    import_agent as import_agent,
    is_path as is_path,
    name_of as name_of,
)
from .priors import Prior as Prior
from .solutions import load_solution as load_solution, save_solution as save_solution
from .write import (
    states_of_seeds as states_of_seeds,
    write_evaluation as write_evaluation,
    write_skills as write_skills,
    write_solution as write_solution,
)
from .write_library import (
    write_library as write_library,
    write_trajectories as write_trajectories,
)
from .write_population import (
    write_population as write_population,
    write_skills_of_member as write_skills_of_member,
)
