from collections.abc import Sequence
from typing import get_args

import jax.random as jr
import numpy as np
from jaxtyping import PRNGKeyArray

from .._agents.base import AnyAgent
from .._interaction.arguments import check_is_agent
from .._interaction.fit import check_numbers
from .._pytree.fields import (
    check_arity,
    check_choice,
    check_instance,
    check_integer,
    check_key,
)
from .._pytree.stack import stack_size
from .._rewards.incremental.mode import Replay
from .._training.interrupt import deferred_interrupt
from .._training.replay import ReplayBuffer
from .._training.trainer import Trainer
from .._types.custom_types import Extras, Memory, State
from .library import (
    Learner,
    Skills,
    enlarge_library,
    enlarge_past,
    find_task,
    init_library,
    resume,
)
from .loop import SkillCallback, SkillLoop, key_of_skill
from .world import World, make_schedule


def learn_skills(
    agent: Learner[State, Memory, Extras],
    env: World,
    trainer: Trainer,
    *,
    num_skills: int,
    num_steps: int | Sequence[int],
    key: PRNGKeyArray,
    num_collected_episodes: int = 100,
    max_skills: int | None = None,
    replay: Replay | None = None,
    initial: Skills[State] | None = None,
    log_every: int = 1_000,
    callback: SkillCallback[State] | None = None,
) -> Skills[State]:
    """Learns skills one after another, as DISk does.

    Each skill is an agent of its own that starts afresh. `eqrl.Incremental`, which
    cites the paper, rewards it for behaving consistently and unlike all earlier skills.
    To that end all learned skills are rolled out before it begins, greedily and in the
    environment of the moment. Once it is learned, a skill never changes.

    A skill ends with the first iteration in which an episode of the first environment
    ends after `num_steps`. The episodes of the other environments are cut short there,
    and their last transitions are marked as truncated. The next skill begins with
    `trainer.warmup_steps` random steps.

    All counts are environment steps, summed over the environments.

    **Arguments:**

    - `agent`: an `eqrl.Intrinsic(agent, eqrl.Incremental())` around any agent.
    - `env`: the environment. For one that changes: a function from the index of a
        skill, from 0, to its environment, called once for each skill before training
        begins; or a dictionary of environments by the step at which each becomes
        active, 0 among them. These steps count the training of all skills. A change
        takes effect at the first iteration at or after its step, in mid-episode, and
        all earlier skills are rolled out again at once; only the rest of an episode
        after `num_steps` is played in the old environment. All environments must have
        the same `spec` and states of the same shapes. If they differ in arrays only,
        nothing is compiled again.
    - `trainer`: how each skill is trained.
    - `num_skills`: number of skills in the end, those of `initial` included.
    - `num_steps`: steps of each skill, random ones included: one number, or one for
        each skill; whole numbers of iterations.
    - `key`: of the whole training. To resume exactly as if there had been one call,
        pass the same key again.
    - `num_collected_episodes`: number of episodes in which each skill is rolled out.
    - `max_skills`: capacity of the library; `None` takes `num_skills`. Later calls with
        `initial` compile nothing up to this number of skills.
    - `replay`: what a skill inherits of the replay of the previous one: `"keep"`, all
        of it; `"half"`, the newest half of each environment, so with skills of equal
        length hardly anything of any skill but the last; `"random_half"`, half of
        each environment, drawn at random, so some of all earlier skills, for agents of
        single transitions only; `"clear"`, nothing. `None` takes the default of the
        mode of `Incremental`.
    - `initial`: skills to add to, or of an interrupted call, also within a skill. They
        stay usable.
    - `log_every`: steps in a row of the metrics, rounded up to whole iterations. The
        rest of an episode after `num_steps` is a row of its own.
    - `callback`: called as `callback(step, metrics, skills)` after each row. Training
        ends there if it returns true, and can resume from `skills`. Copy what you keep
        (`eqrl.tree_copy`) or save it (`eqrl.save_skills`): it is donated to the next
        row. A skill that has just ended is not yet among them, so save the returned
        skills as well.

    **Returns:**

    The `Skills`.

    Raises a `ValueError` if the arguments do not fit each other, an
    `eqrl.NonFiniteError` if what the environment gives is not finite, and
    `eqrl.TrainingInterrupted` after Ctrl-C, SIGTERM or SIGHUP. The `solution` of the
    last two are the skills, from which to resume.
    """
    check_is_agent(agent)
    check_key(key)
    check_instance("trainer", trainer, Trainer, such_as="`eqrl.Trainer()`")
    check_integer("log_every", log_every, least=1)
    if callback is not None:
        check_arity("callback", callback, "step", "metrics", "skills")
    task = find_task(agent)
    check_integer("num_collected_episodes", num_collected_episodes, least=1)
    steps = _steps_of_skills(num_steps, num_skills, trainer)
    replay = task.reward.preset.replay if replay is None else replay
    check_replay(replay, agent)
    if trainer.make_replay is not ReplayBuffer:
        raise ValueError(
            "`learn_skills` hands a part of a replay on to the next skill; it needs "
            "a trainer with the default `make_replay=eqrl.ReplayBuffer`."
        )
    capacity = _check_max_skills(max_skills, num_skills)
    schedule = make_schedule(env, num_skills)
    first = schedule.envs[0]
    check_numbers(agent, first.spec)
    if initial is None:
        num_episodes = capacity * num_collected_episodes
        task = enlarge_past(task, first, num_episodes=num_episodes)
        init_key = jr.fold_in(key_of_skill(key, 0), 0)
        progress = init_library(
            task.agent, first, trainer, capacity=capacity, key=init_key
        )
    else:
        task, progress = resume(task, first, trainer, initial)
        capacity = max(capacity, stack_size(progress.states))
        num_episodes = capacity * num_collected_episodes
        task = enlarge_past(task, first, num_episodes=num_episodes)
        progress = enlarge_library(progress, task, capacity=capacity)
    with deferred_interrupt() as interrupted:
        loop = SkillLoop(
            task=task,
            schedule=schedule,
            trainer=trainer,
            num_steps=steps,
            num_collected_episodes=num_collected_episodes,
            replay=replay,
            log_every=log_every,
            callback=callback,
            key=key,
            interrupted=interrupted,
        )
        return loop.learn(progress).to_skills()


def check_replay(replay: str, agent: AnyAgent) -> None:
    """Raises a `ValueError` unless an agent can learn from what is kept."""
    check_choice("replay", replay, get_args(Replay))
    if agent.sequence_length is None:
        raise ValueError(
            "The agent learns on-policy, from each step once; skills are learned one "
            "after another from a replay of what earlier ones did. Use an agent with a "
            "replay, such as `eqrl.SAC`."
        )
    if replay == "random_half" and agent.sequence_length != 1:
        raise ValueError(
            "`replay='random_half'` leaves no consecutive steps, but `agent.sequence_"
            f"length={agent.sequence_length}`; take `'half'`, the newest."
        )


def _steps_of_skills(
    num_steps: int | Sequence[int], num_skills: int, trainer: Trainer
) -> list[int]:
    """The number of steps of each skill."""
    check_integer("num_skills", num_skills, least=1)
    if isinstance(num_steps, np.ndarray) and num_steps.ndim == 1:
        num_steps = num_steps.tolist()
    steps = (
        list(num_steps) if isinstance(num_steps, Sequence) else [num_steps] * num_skills
    )
    if len(steps) != num_skills:
        raise ValueError(
            f"`num_steps` has {len(steps)} numbers, but `num_skills={num_skills}`; "
            "give one for each skill, those already learned included, or one for all."
        )
    for each in steps:
        trainer.check_num_steps(each)
        check_integer("num_steps", each, least=1)
    return steps


def _check_max_skills(max_skills: int | None, num_skills: int) -> int:
    """The capacity of the library; a `ValueError` unless all skills fit."""
    if max_skills is None:
        return num_skills
    check_integer("max_skills", max_skills, least=1)
    if max_skills < num_skills:
        raise ValueError(
            f"`max_skills={max_skills}` leaves no room for `num_skills={num_skills}`."
        )
    return max_skills
