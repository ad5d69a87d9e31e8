from .learn import learn_skills as learn_skills
from .library import (
    Skills as Skills,
    SkillTraining as SkillTraining,
    pick_skill as pick_skill,
)
