from typing import Any

import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float

from .._agents.base import AnyAgent
from .._agents.wrappers.fixed_skill import fix_skill
from .._interaction.export import export_policy
from .._reporting.render import render, render_suffix
from .._run.config import Run, SkillSchedule, read_config, read_title
from .._run.load import best_policy, load_run
from .._skills.prior import EvenOneHotSkills, OneHotSkills
from ..envs._base import AnyEnv
from .commands import Export, Render, import_given


def run_render(command: Render) -> int:
    """Writes a picture, an animation or a page of one episode."""
    name, (agent, state, env) = chosen_policy(command)
    path = command.output
    if path is None:
        words = name.replace(",", "").replace(" ", "_")
        path = command.folder / f"episode_of_{words}{render_suffix(env)}"
    title = f"{read_title(command.folder)}, {name}"
    render(agent, state, env, path, key=jr.key(0), title=title)
    print(path)
    return 0


def chosen_policy(
    command: Render | Export,
) -> tuple[str, tuple[AnyAgent, Any, AnyEnv]]:
    """The policy of a run that a command names: its name, agent, state, environment.

    The name is as in `seed 0, skill 3`.
    """
    agent_type = import_given(command.agent)
    run = read_config(command.folder, agent_type)
    index = best_policy(command.folder, run) if command.seed is None else command.seed
    skill = None
    if isinstance(run.schedule, SkillSchedule):
        if command.seed is not None:
            raise ValueError(
                f"`seed={command.seed}` is for seeds and members, but "
                f"`{command.folder}` holds skills; choose one by `--skill`."
            )
        index = 0 if command.skill is None else command.skill
    elif command.skill is not None:
        skill = _one_hot(run, command.skill)
    agent, state, env = load_run(command.folder, index, agent_type=agent_type)
    name = f"{run.schedule.kind} {index}"
    if skill is not None:
        agent, state = fix_skill(agent, state, skill)
        name = f"{name}, skill {command.skill}"
    return name, (agent, state, env)


def _one_hot(run: Run, skill: int) -> Float[Array, " skill"]:
    prior = None if run.skills is None else run.skills.make_prior()
    if not isinstance(prior, (OneHotSkills, EvenOneHotSkills)):
        raise ValueError(
            f"`skill={skill}` is for runs with discrete skills, as "
            "`eqrl train diayn --skills one-hot` does."
        )
    if not 0 <= skill < prior.size:
        raise ValueError(
            f"`skill={skill}` is not among the skills of the run, which are 0 to "
            f"{prior.size - 1}."
        )
    return jnp.eye(prior.size)[skill]


def run_export(command: Export) -> int:
    """Writes one policy of a run into one file."""
    _, (agent, state, env) = chosen_policy(command)
    export_policy(command.output, agent, state, env)
    print(command.output)
    return 0
