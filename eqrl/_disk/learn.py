import dataclasses
from collections.abc import Sequence
from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import PRNGKeyArray

from .._agents import AbstractAgent, Intrinsic
from .._pytree.fields import check_choice, check_integer
from .._pytree.stack import empty_stack, enlarge_stack, stack_size
from .._pytree.tree import check_same_shapes
from .._rewards.incremental.feature_set import FeatureSet, enlarge
from .._rewards.incremental.mode import Replay
from .._training.interrupt import deferred_interrupt
from .._training.jit import jit_init
from .._training.trainer import Trainer
from ..envs import AbstractEnv
from .checks import check_max_skills, incremental_of, steps_of_skills
from .library import Skills, SkillTraining
from .loop import Course, SkillCallback, key_of_skill
from .world import World, changes_of


def learn_skills(
    agent: AbstractAgent[Any, Any, Any],
    env: World,
    trainer: Trainer,
    *,
    num_skills: int,
    num_steps: int | Sequence[int],
    key: PRNGKeyArray,
    num_collected_episodes: int = 100,
    max_skills: int | None = None,
    replay: Replay | None = None,
    initial: Skills[Any] | None = None,
    log_every: int = 1_000,
    callback: SkillCallback | None = None,
) -> Skills[Any]:
    """Learns skills one after another, as DISk does.

    Each skill is an agent of its own, which begins with nothing learnt. It is rewarded
    for doing what no skill before did, and for doing it again and again; the paper is
    named at `eqrl.Incremental`, which is that reward. Before it begins, all skills
    there are act greedily for some episodes, in the world as it is by then, to show
    what they do. Once it is learnt a skill never changes again.

    A skill ends with the first iteration in which an episode of the first environment
    ends after `num_steps`. What goes on in any environment is cut short then, and the
    last transition is marked as truncated. The next skill begins with
    `trainer.warmup_steps` random steps.

    All counts are of environment steps, summed over the environments.

    **Arguments:**

    - `agent`: an `eqrl.Intrinsic(agent, eqrl.Incremental())`, around any agent.
    - `env`: the environment; or, in a world that changes, a function from the number of
        a skill, from 0, to its environment, which is called once for each of them
        before anything is learnt, or a dictionary of environments by the
        step, 0 among them, from which each is in force. Steps are those of training of
        all skills; a change comes into force at the first iteration not before it, in
        mid-episode, and all earlier skills show at once what they do in the world
        after it. Only what is left of an episode after `num_steps` is played in the
        world as it was. The environments must have the same `spec` and states of the
        same shapes; where they differ in arrays only, nothing is compiled anew.
    - `trainer`: how each skill is trained.
    - `num_skills`: how many there are in the end, those of `initial` included.
    - `num_steps`: of each skill, random steps included; one number or one for each, a
        whole number of iterations.
    - `key`: of the whole training. To go on exactly as if there had been one call, pass
        the same key again.
    - `num_collected_episodes`: in which each skill shows what it does.
    - `max_skills`: how many there is room for; `None` takes `num_skills`. Up to this
        number later calls with `initial` compile nothing.
    - `replay`: what the replay of a skill leaves to the next: `"keep"`, all of it;
        `"half"`, the newest half of each environment; `"clear"`, nothing. `None` does
        as the mode of `Incremental` says.
    - `initial`: skills to which to add, or which were interrupted, also within a skill.
        They stay usable.
    - `log_every`: steps in a row of the metrics, rounded up to whole iterations. What
        is left of an episode after `num_steps` is a row of its own.
    - `callback`: called as `callback(step, metrics, skills)` after each row, with which
        training could go on from there. Copy what you keep (`eqrl.tree_copy`) or save
        it (`eqrl.save_skills`): it is donated to the next row. A skill that has just
        ended is not yet among them; save what is returned as well.

    **Returns:**

    The `Skills`.

    Raises a `ValueError` where the arguments do not fit each other, an
    `eqrl.NonFiniteError` where what the environment gives is not finite, and
    `eqrl.TrainingInterrupted` after Ctrl-C. The last two hold the skills as their
    `solution`, to go on with.
    """
    reward = incremental_of(agent)
    assert isinstance(agent, Intrinsic)
    check_integer("num_collected_episodes", num_collected_episodes, least=1)
    steps = steps_of_skills(num_steps, num_skills, trainer)
    replay = reward.preset.replay if replay is None else replay
    check_choice("replay", replay, get_args(Replay))
    max_skills = num_skills if max_skills is None else max_skills
    check_max_skills(max_skills, num_skills)
    changes = changes_of(env, num_skills)
    if initial is None:
        agent = _sized(
            agent,
            changes.envs[0],
            max_skills=max_skills,
            num_collected_episodes=num_collected_episodes,
        )
        skills = first_skills(
            agent,
            changes.envs[0],
            trainer,
            capacity=max_skills,
            key=jr.fold_in(key_of_skill(key, 0), 0),
        )
    else:
        agent, skills = _going_on(
            agent,
            changes.envs[0],
            trainer,
            initial,
            max_skills=max_skills,
            num_collected_episodes=num_collected_episodes,
        )
    course = Course(
        agent=agent,
        changes=changes,
        trainer=trainer,
        num_collected_episodes=num_collected_episodes,
        replay=replay,
        log_every=log_every,
        callback=callback,
        key=key,
    )
    with deferred_interrupt() as interrupted:
        while int(skills.count) < num_skills:
            skills = course.next_skill(skills, steps, interrupted)
    return skills


def _sized(
    agent: Intrinsic[Any, Any, Any, Any],
    env: AbstractEnv[Any],
    *,
    max_skills: int,
    num_collected_episodes: int,
) -> Intrinsic[Any, Any, Any, Any]:
    """The agent, with room for what so many skills will show."""
    reward = incremental_of(agent)
    episodes = max_skills * num_collected_episodes
    limit = env.spec.max_steps
    if limit is None:
        raise ValueError(
            "Skills show what they do in whole episodes, but the environment has no "
            "time limit (`spec.max_steps` is None), so one might never end; put an "
            "`eqrl.envs.TimeLimit` around it."
        )
    rows = episodes if reward.per_timestep else episodes * limit
    rows = max(rows, reward.past_capacity)
    return dataclasses.replace(
        agent, reward=dataclasses.replace(reward, past_capacity=rows)
    )


def first_skills(
    agent: Intrinsic[Any, Any, Any, Any],
    env: AbstractEnv[Any],
    trainer: Trainer,
    *,
    capacity: int,
    key: PRNGKeyArray,
) -> Skills[Any]:
    """No skills, and the beginning of the first."""
    state, counts = jit_init(trainer, agent, env, key=key)
    training = SkillTraining(
        trainer_state=state,
        counts=counts,
        skill=jnp.zeros((), int),
        earlier_steps=jnp.zeros((), int),
        collected_steps=jnp.zeros((), int),
        world=jnp.zeros((), int),
    )
    return Skills(
        states=empty_stack(state.agent.agent, capacity),
        count=jnp.zeros((), int),
        training=training,
    )


def _going_on(
    agent: Intrinsic[Any, Any, Any, Any],
    env: AbstractEnv[Any],
    trainer: Trainer,
    initial: Skills[Any],
    *,
    max_skills: int,
    num_collected_episodes: int,
) -> tuple[Intrinsic[Any, Any, Any, Any], Skills[Any]]:
    """A copy with room for more skills where that is needed."""
    if initial.training is None:
        raise ValueError(
            "`initial` holds skills to use only (its `training` is None), with which "
            "nothing can go on; load them with the trainer, as "
            "`eqrl.load_skills(directory, agent, env, trainer)`."
        )
    # Arrays may have been fetched from the device.
    training, states = jax.tree.map(
        lambda x: jnp.array(x) if eqx.is_array(x) else x,
        (initial.training, initial.states),
    )
    skills = Skills(
        states=states,
        count=jnp.array(initial.count),
        training=training,
        metrics=initial.metrics,
    )
    max_skills = max(max_skills, stack_size(skills.states))
    past = _past(skills)
    reward = dataclasses.replace(
        incremental_of(agent), past_capacity=past.features.shape[1]
    )
    agent = dataclasses.replace(agent, reward=reward)
    like = eqx.filter_eval_shape(
        first_skills,
        agent,
        env,
        trainer,
        capacity=stack_size(skills.states),
        key=jr.key(0),
    )
    check_same_shapes("initial", like, dataclasses.replace(skills, metrics={}))
    agent = _sized(
        agent,
        env,
        max_skills=max_skills,
        num_collected_episodes=num_collected_episodes,
    )
    return agent, eqx.tree_at(
        lambda skills: (skills.states, _past(skills)),
        skills,
        (
            enlarge_stack(skills.states, max_skills),
            enlarge(past, incremental_of(agent).past_capacity),
        ),
    )


def _past(skills: Skills[Any]) -> FeatureSet:
    assert skills.training is not None
    return skills.training.trainer_state.agent.reward.past
