"""A wrapper of a user's own, around the agents of the library."""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray

import eqrl
from eqrl.envs import Point

from ..agents_under_test import diayn, sac
from ..toy import Compass, GetKey, random_transitions


SPEC = Point().spec


class ShiftedState(eqx.Module):
    """What is taken off each observation, beside the agent's state."""

    shift: Float[Array, " obs"]
    inside: Any


class Shifted(eqrl.AbstractWrapper[ShiftedState, Any, Any]):
    """Takes a constant off each observation: at first 1, 2, 3 and so on."""

    within: eqrl.AbstractAgent[Any, Any, Any]

    @property
    def inner(self) -> eqrl.AbstractAgent[Any, Any, Any]:
        return self.within

    def inner_state(self, state: ShiftedState) -> Any:
        return state.inside

    def inner_transitions(
        self, state: ShiftedState, transitions: eqrl.Transition[Any]
    ) -> eqrl.Transition[Any]:
        return dataclasses.replace(
            transitions,
            observation=transitions.observation - self._shift(state, transitions),
            next_observation=transitions.next_observation
            - self._shift(state, transitions),
        )

    def _shift(
        self, state: ShiftedState, transitions: eqrl.Transition[Any]
    ) -> Float[Array, "..."]:
        return jnp.broadcast_to(state.shift, transitions.observation.shape)

    @property
    def sequence_length(self) -> int | None:
        return self.within.sequence_length

    def init(self, spec: eqrl.EnvSpec, *, key: PRNGKeyArray) -> ShiftedState:
        shift = jnp.arange(1.0, 1 + spec.observation_size)
        return ShiftedState(shift=shift, inside=self.within.init(spec, key=key))

    def begin(
        self,
        state: ShiftedState,
        spec: eqrl.EnvSpec,
        *,
        index: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Any:
        return self.within.begin(state.inside, spec, index=index, key=key)

    def act(
        self,
        state: ShiftedState,
        memory: Any,
        observation: Float[Array, " obs"],
        *,
        mode: eqrl.Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], Any, Any]:
        return self.within.act(
            state.inside, memory, observation - state.shift, mode=mode, key=key
        )

    def observe(
        self, state: ShiftedState, transitions: eqrl.Transition[Any]
    ) -> ShiftedState:
        raise NotImplementedError

    def update(
        self,
        state: ShiftedState,
        batch: eqrl.Transition[Any],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> tuple[ShiftedState, eqrl.Metrics]:
        raise NotImplementedError


def skilled(**options: Any) -> eqrl.AbstractAgent[Any, Any, Any]:
    """Goes where the skill says; the descriptor is the position."""
    make_network = eqrl.nn.VonMisesFisherDiscriminator((4,))
    options = {"make_network": make_network} | options
    return eqrl.diayn(Compass(), eqrl.SphereSkills(), **options)


@pytest.mark.parametrize(
    "wrap",
    [
        lambda agent: Shifted(agent),
        lambda agent: Shifted(eqrl.Normalized(agent)),
        lambda agent: eqrl.Normalized(Shifted(agent)),
    ],
)
def test_skills_inside_a_wrapper_are_evaluated_as_the_agent_inside_sees_them(
    wrap: Callable[..., eqrl.AbstractAgent[Any, Any, Any]], getkey: GetKey
) -> None:
    agent = wrap(skilled(descriptor=lambda observation: observation[:2]))
    env = Point(max_steps=2)
    # Before anything is seen, normalizing changes nothing.
    state = agent.init(env.spec, key=getkey())
    evaluation = eqrl.evaluate_skills(
        agent, state, env, num_episodes=1, key=getkey(), skills=jnp.array([[1.0, 0]])
    )
    expected = np.array([[0.1, 0], [0.2, 0]]) - [1, 2]
    np.testing.assert_allclose(evaluation.descriptors[0, 0], expected, rtol=1e-5)


def test_a_skill_inside_a_wrapper_is_fixed_and_the_wrapper_kept(
    getkey: GetKey,
) -> None:
    agent = eqrl.Normalized(Shifted(diayn(sac(), 3)))
    state = eqx.filter_jit(agent.init)(SPEC, key=getkey())
    skill, observation, key = jnp.eye(3)[1], jnp.arange(4.0), getkey()
    memory = eqrl.SkillMemory(skill=skill, agent=None)
    expected, _, _ = agent.act(state, memory, observation, mode="greedy", key=key)
    fixed, fixed_state = eqrl.fix_skill(agent, state, skill)
    assert isinstance(fixed, eqrl.Normalized)
    assert isinstance(fixed.agent, Shifted)
    assert isinstance(fixed.agent.inner, eqrl.FixedSkill)
    assert isinstance(fixed_state.agent.inside, eqrl.SACState)
    found, _, _ = fixed.act(fixed_state, None, observation, mode="greedy", key=key)
    np.testing.assert_array_equal(found, expected)


def test_a_skill_of_an_agent_without_arrays_is_fixed(getkey: GetKey) -> None:
    agent = Shifted(skilled())
    state = agent.init(SPEC, key=getkey())
    fixed, fixed_state = eqrl.fix_skill(agent, state, jnp.array([0.0, 1.0]))
    action, _, _ = fixed.act(
        fixed_state, None, jnp.zeros(4), mode="greedy", key=getkey()
    )
    np.testing.assert_array_equal(action, [0, 1])


def test_what_is_missing_is_named(getkey: GetKey) -> None:
    agent = Shifted(eqrl.SkillConditioned(sac(), 2))
    state = agent.init(SPEC, key=getkey())
    said = (
        "no `Discriminator` in this agent, a Shifted around a SkillConditioned around "
        "a SAC"
    )
    with pytest.raises(ValueError, match=said):
        eqrl.unwrap(agent, eqrl.Discriminator)
    with pytest.raises(ValueError, match="SAC has no skill"):
        eqrl.fix_skill(Shifted(sac()), state, jnp.ones(2))


def _wrappers() -> list[eqrl.AbstractWrapper[Any, Any, Any]]:
    weighted = eqrl.Intrinsic(
        Compass(), eqrl.Incremental(descriptor="observation"), environment_weight=0.5
    )
    return [
        eqrl.Normalized(Compass()),
        eqrl.SkillConditioned(Compass(), 2),
        eqrl.FixedSkill(Compass(), jnp.array([2.0, 3.0])),
        weighted,
    ]


@pytest.mark.parametrize("agent", _wrappers(), ids=lambda agent: type(agent).__name__)
def test_inner_transitions_are_what_the_agent_observes(
    agent: eqrl.AbstractWrapper[Any, Any, Any],
    getkey: GetKey,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    observed = []
    monkeypatch.setattr(
        Compass, "observe", lambda _, state, fresh: observed.append(fresh) or state
    )
    state = agent.init(SPEC, key=getkey())
    fresh: Any = random_transitions(getkey(), 3, observation_size=4, action_size=2)
    if isinstance(agent, eqrl.SkillConditioned):
        extras = eqrl.SkillExtras(skill=jnp.ones((3, 2)), agent=None)
        fresh = dataclasses.replace(fresh, extras=extras)
    after = agent.observe(state, fresh)
    (seen,) = observed
    # The statistics of a `Normalized` count what it sees.
    expected = agent.inner_transitions(after, fresh)
    jax.tree.map(np.testing.assert_array_equal, seen, expected)
    assert not np.array_equal(seen.observation, fresh.observation) or not (
        np.array_equal(seen.reward, fresh.reward)
    )
    inside: Any = agent
    assert agent.inner is inside.agent


def test_an_agent_is_unwrapped_through_wrappers_and_rewards() -> None:
    inside = diayn(sac(), 3)
    agent = eqrl.Normalized(Shifted(inside))
    assert isinstance(inside.agent, eqrl.SkillConditioned)
    assert eqrl.unwrap(agent, eqrl.SAC) is inside.agent.agent
    assert eqrl.unwrap(agent, eqrl.Normalized) is agent
    assert eqrl.unwrap(agent, eqrl.Discriminator) is inside.reward
    # Of two of one kind the outer one.
    twice = eqrl.Normalized(eqrl.Normalized(sac()), clip=5.0)
    assert eqrl.unwrap(twice, eqrl.Normalized) is twice
    with pytest.raises(ValueError, match="no `TD3` in this agent, a Normalized around"):
        eqrl.unwrap(agent, eqrl.TD3)
