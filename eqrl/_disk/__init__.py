from .learn import learn_skills as learn_skills
from .library import (
    Skills as Skills,
    SkillTraining as SkillTraining,
    pick_skill as pick_skill,
)
from .play import play_skills as play_skills
from .store import (
    load_skill as load_skill,
    load_skills as load_skills,
    save_skills as save_skills,
)
