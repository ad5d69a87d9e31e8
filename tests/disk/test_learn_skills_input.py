"""What `learn_skills` and its companions refuse, and say about it."""

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import pytest

import eqrl
from eqrl._disk.library import init_library, with_past_capacity
from eqrl._interaction.fit import check_fits

from ..toy import Clock, Compass
from .heading import AGENT, ENV, TRAINER, Heading, learn


def beginning(
    agent: eqrl.AbstractAgent[Any, Any, Any] = AGENT,
    env: eqrl.envs.AbstractEnv[Any] = ENV,
    trainer: eqrl.Trainer = TRAINER,
) -> eqrl.Skills[Any]:
    """No skills yet, and room for one."""
    assert isinstance(agent, eqrl.Intrinsic)
    return init_library(agent, env, trainer, capacity=1, key=jr.key(0))


def test_agents_act_whatever_their_reward_has_room_for() -> None:
    agent: Any = eqrl.Intrinsic(eqrl.DQN(), eqrl.Incremental())
    spec = dataclasses.replace(ENV.spec, action=eqrl.spaces.Discrete(2))
    larger: Any = with_past_capacity(agent, 8)
    state = eqx.filter_eval_shape(larger.init, spec, key=jr.key(0))
    check_fits(agent, state, spec, hint="")
    spec = dataclasses.replace(spec, action=eqrl.spaces.Discrete(3))
    with pytest.raises(ValueError, match="is not that of a DQN"):
        check_fits(agent, state, spec, hint="")


@pytest.mark.parametrize(
    ("agent", "given"),
    [
        (Heading(), "a Heading;"),
        (
            eqrl.diayn(Heading(), 3),
            "an Intrinsic whose reward is a Discriminator;",
        ),
        (eqrl.Normalized(AGENT), "a Normalized;"),
    ],
    ids=["no reward", "diayn", "outside"],
)
def test_an_agent_must_have_the_reward(
    agent: eqrl.AbstractAgent[Any, Any, Any], given: str
) -> None:
    with pytest.raises(ValueError, match=f"`agent` is {given} skills are learned"):
        learn(agent)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_skills": 0}, "`num_skills=0` must be an integer, at least 1"),
        ({"num_steps": [26, 26]}, "`num_steps` has 2 numbers, but `num_skills=3`"),
        ({"num_steps": 27}, r"`num_steps=27` must be a whole number.*26 and 28"),
        ({"num_steps": (26, 5, 26)}, r"`num_steps=5`.*4 and 6"),
        ({"num_steps": 0}, "`num_steps=0` must be an integer, at least 1"),
        ({"max_skills": 2}, "`max_skills=2` leaves no room for `num_skills=3`"),
        ({"max_skills": 0}, "`max_skills=0` must be an integer, at least 1"),
        ({"num_collected_episodes": 0}, "`num_collected_episodes=0`"),
        ({"log_every": 0}, "`log_every=0` must be an integer, at least 1"),
        ({"env": Clock(has_limit=False)}, "no time limit .*`eqrl.envs.TimeLimit`"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_arguments_out_of_range_are_refused(
    options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        learn(**options)


def test_an_unknown_replay_is_refused() -> None:
    with pytest.raises(ValueError, match=r"`replay='all'`.*'keep', 'half', 'clear'"):
        eqrl.learn_skills(
            AGENT,
            ENV,
            TRAINER,
            num_skills=1,
            num_steps=TRAINER.steps_of_iteration,
            replay="all",  # pyright: ignore[reportArgumentType]
            key=jr.key(0),
        )


def test_a_random_half_is_refused_where_consecutive_steps_are_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Heading, "sequence_length", 2)
    with pytest.raises(ValueError, match=r"no consecutive steps.*length=2.*'half'"):
        learn(replay="random_half")


@pytest.mark.parametrize(
    ("agent", "env", "trainer"),
    [
        (eqrl.Intrinsic(Compass(), AGENT.reward), ENV, TRAINER),
        (eqrl.Intrinsic(Heading(), eqrl.Incremental(per_timestep=True)), ENV, TRAINER),
        (AGENT, Clock(), TRAINER),
        (AGENT, ENV, eqrl.Trainer(num_envs=2, batch_size=4, capacity=40)),
        (AGENT, ENV, eqrl.Trainer(num_envs=4, batch_size=4, capacity=48)),
    ],
    ids=["agent", "reward", "environment", "capacity", "num_envs"],
)
def test_skills_of_something_else_are_refused(
    agent: eqrl.AbstractAgent[Any, Any, Any],
    env: eqrl.envs.AbstractEnv[Any],
    trainer: eqrl.Trainer,
) -> None:
    trainer = eqrl.Trainer(
        num_envs=trainer.num_envs,
        batch_size=trainer.batch_size,
        capacity=trainer.capacity,
        warmup_steps=6,
    )
    with pytest.raises(ValueError, match=r"`initial` (does not fit|is of another)"):
        learn(initial=beginning(agent, env, trainer))


@pytest.mark.parametrize("index", [-1, 2, 5])
def test_a_skill_that_is_not_there_cannot_be_picked(index: int) -> None:
    skills = eqrl.Skills(
        states=jax.tree.map(lambda x: jnp.stack([x] * 5), {"weight": jnp.ones(3)}),
        count=jnp.asarray(2, int),
    )
    with pytest.raises(ValueError, match=f"Skill {index} does not exist; .* 0 to 1"):
        eqrl.pick_skill(AGENT, skills, index)
    _, state = eqrl.pick_skill(AGENT, skills, 1)
    assert jax.tree.map(jnp.shape, state) == {"weight": (3,)}


def test_of_no_skills_none_can_be_picked() -> None:
    with pytest.raises(ValueError, match="there are 0 skills yet"):
        eqrl.pick_skill(AGENT, beginning(), 0)


def test_skills_are_picked_with_the_agent_that_learnt_them() -> None:
    with pytest.raises(ValueError, match="`agent` is a Heading; it must be the"):
        eqrl.pick_skill(Heading(), beginning(), 0)  # pyright: ignore[reportArgumentType]


def test_a_callback_with_other_arguments_is_refused_before_the_first_step() -> None:
    with pytest.raises(ValueError, match=r"`callback\(step, metrics, solution\)`"):
        learn(callback=lambda step, metrics: None)
