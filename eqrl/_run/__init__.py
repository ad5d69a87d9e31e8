from .agents import (
    AGENTS as AGENTS,
    NamedAgent as NamedAgent,
    SkillOptions as SkillOptions,
    find_agent as find_agent,
)
from .checkpoints import Checkpoints as Checkpoints, Interval as Interval
from .config import (
    Population as Population,
    Run as Run,
    Settings as Settings,
    SkillSchedule as SkillSchedule,
    Training as Training,
    read_config as read_config,
    read_schedule as read_schedule,
    read_title as read_title,
    write_config as write_config,
)
from .files import (
    checkpoints_folder as checkpoints_folder,
    claim_folder as claim_folder,
    hold_folder as hold_folder,
    library_folder as library_folder,
    new_folder as new_folder,
)
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
from .read_metrics import read_metrics as read_metrics
from .saved import read_saved as read_saved, save_run as save_run
from .solutions import (
    load_solution as load_solution,
    save_solution as save_solution,
    step_of as step_of,
)
from .write import (
    GrowingMetrics as GrowingMetrics,
    draw_solution as draw_solution,
    states_of_seeds as states_of_seeds,
    write_evaluation as write_evaluation,
    write_policies as write_policies,
    write_skills as write_skills,
)
from .write_library import (
    write_library as write_library,
    write_rows as write_rows,
    write_trajectories as write_trajectories,
)
from .write_population import (
    draw_population as draw_population,
    write_generations as write_generations,
    write_members as write_members,
    write_skills_of_member as write_skills_of_member,
)
