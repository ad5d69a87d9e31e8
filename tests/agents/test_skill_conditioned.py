import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import jaxtyping
import numpy as np
import pytest

import eqrl

from ..agents_under_test import diayn, sac
from ..population.pusher import Pusher
from ..skilled import skill_transitions, specs_of_begin
from ..toy import Clock, Compass, GetKey, Scribe, random_transitions


SPEC = eqrl.EnvSpec(observation_size=4, action_size=2)


def test_the_agent_is_made_for_longer_observations(getkey: GetKey) -> None:
    agent = eqrl.SkillConditioned(sac(), 3)
    state: Any = eqx.filter_eval_shape(agent.init, SPEC, key=getkey())
    assert state.actor.network.layers[0].weight.shape[0] == 4 + 3


def test_the_agent_acts_on_the_observation_and_the_skill(getkey: GetKey) -> None:
    agent = eqrl.SkillConditioned(Compass(), eqrl.SphereSkills())
    memory = agent.begin(jnp.zeros(()), SPEC, index=jnp.asarray(0), key=getkey())
    action, after, extras = agent.act(
        jnp.zeros(()), memory, jnp.arange(4.0), mode="greedy", key=getkey()
    )
    np.testing.assert_array_equal(action, memory.skill)
    np.testing.assert_array_equal(after.skill, memory.skill)
    np.testing.assert_array_equal(extras.skill, memory.skill)


def test_the_agent_learns_from_both_observations_with_the_skill(
    getkey: GetKey,
) -> None:
    skill = jnp.array([[10.0, 0.0], [0.0, 100.0]])
    batch = skill_transitions(getkey(), skill=skill)
    agent = eqrl.SkillConditioned(Compass(), eqrl.SphereSkills())
    _, metrics = agent.update(jnp.zeros(()), batch, step=jnp.asarray(0), key=getkey())
    assert metrics["observation_size"] == 6
    for name in ("observation", "next_observation"):
        expected = jnp.sum(getattr(batch, name)) + 110
        np.testing.assert_allclose(metrics[name], expected, rtol=1e-6)
    before, after = batch.observation[:, :1], batch.next_observation[:, :1]
    batch = dataclasses.replace(
        batch, critic_observation=before, next_critic_observation=after
    )
    inner: Any = agent.inner_transitions(jnp.zeros(()), batch)
    assert jnp.array_equal(inner.critic_observation, jnp.hstack([before, skill]))
    assert jnp.array_equal(inner.next_critic_observation, jnp.hstack([after, skill]))


@pytest.mark.parametrize("fixed", [False, True])
def test_the_agent_is_told_of_longer_observations_as_it_begins(
    fixed: bool, getkey: GetKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    specs = specs_of_begin(monkeypatch)
    agent: eqrl.AbstractAgent = eqrl.SkillConditioned(Compass(), 3)
    if fixed:
        agent = eqrl.FixedSkill(Compass(), jnp.ones(3))
    spec = dataclasses.replace(SPEC, critic_observation_size=2)
    agent.begin(jnp.zeros(()), spec, index=jnp.asarray(0), key=getkey())
    assert [spec.observation_size for spec in specs] == [4 + 3]
    assert [spec.critic_observation_size for spec in specs] == [2 + 3]


def test_the_agent_takes_note_of_observations_with_the_skill(getkey: GetKey) -> None:
    agent = eqrl.SkillConditioned(eqrl.Normalized(Compass()), eqrl.SphereSkills())
    state = agent.init(SPEC, key=getkey())
    skill = jnp.array([[1.0, 0.0], [0.0, 3.0]])
    state = agent.observe(state, skill_transitions(getkey(), skill=skill))
    np.testing.assert_allclose(state.statistics.mean[4:], [0.5, 1.5], rtol=1e-6)


def test_the_agent_is_told_the_step(getkey: GetKey) -> None:
    agent = eqrl.SkillConditioned(Scribe(), 2)
    batch: Any = skill_transitions(getkey(), skill=jnp.eye(2))
    state = agent.init(SPEC, key=getkey())
    state, _ = agent.update(state, batch, step=jnp.asarray(7), key=getkey())
    assert state.last_step == 7


def test_the_agents_own_memory_and_extras_go_through(getkey: GetKey) -> None:
    agent = eqrl.SkillConditioned(Scribe(), 2)
    state = agent.init(SPEC, key=getkey())
    memory = agent.begin(state, SPEC, index=jnp.asarray(5), key=getkey())
    _, after, extras = agent.act(
        state, memory, jnp.zeros(4), mode="sample", key=getkey()
    )
    assert extras.agent.index == 5
    assert extras.agent.age == 0
    assert after.agent.age == 1


def test_skill_and_memory_are_drawn_with_keys_of_their_own(
    getkey: GetKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys: list[tuple[int, ...]] = []

    def draw(*args: Any, key: Any, **options: Any) -> Any:
        del args, options
        keys.append(tuple(jr.key_data(key).tolist()))
        return jnp.ones(2)

    monkeypatch.setattr(eqrl.SphereSkills, "sample", draw)
    monkeypatch.setattr(Scribe, "begin", draw)
    monkeypatch.setattr(Scribe, "act", lambda *x, key, **_: (draw(key=key),) * 3)
    agent = eqrl.SkillConditioned(Scribe(), eqrl.SphereSkills(), resample_every=1)
    state = agent.init(SPEC, key=getkey())
    memory = agent.begin(state, SPEC, index=jnp.asarray(0), key=getkey())
    agent.act(state, memory, jnp.arange(4.0), mode="sample", key=getkey())
    assert len(set(keys)) == len(keys) == 4


def test_the_agent_learns_from_extras_of_its_own(
    getkey: GetKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def update(self: Compass, state: Any, batch: Any, **options: Any) -> Any:
        del self, options
        seen.append(batch.extras)
        return state, {}

    monkeypatch.setattr(Compass, "update", update)
    skill = jnp.eye(2)
    batch = dataclasses.replace(
        skill_transitions(getkey(), skill=skill),
        extras=eqrl.SkillExtras(skill=skill, agent=jnp.array([3, 4])),
    )
    eqrl.SkillConditioned(Compass(), 2).update(
        jnp.zeros(()), batch, step=jnp.zeros((), int), key=getkey()
    )
    (extras,) = seen
    assert extras.tolist() == [3, 4]


def test_a_skill_is_kept_through_an_episode_and_drawn_anew_for_the_next(
    getkey: GetKey,
) -> None:
    agent = eqrl.SkillConditioned(Scribe(), eqrl.SphereSkills())
    env = Clock(longest=3)
    state = agent.init(env.spec, key=getkey())
    step = eqx.filter_jit(eqrl.interact)
    start = eqx.filter_jit(eqrl.start)
    actors = start(agent, state, env, num_envs=8, key=getkey())
    before = None
    num_kept = num_drawn = 0
    for _ in range(8):
        actors, transitions = step(
            agent, state, env, actors, mode="sample", key=getkey()
        )
        skill, timestep = jax.device_get(
            (transitions.extras.skill, transitions.timestep)
        )
        if before is not None:
            same = np.all(skill == before, axis=1)
            np.testing.assert_array_equal(same, timestep > 0)
            num_kept += int(same.sum())
            num_drawn += int((~same).sum())
        before = skill
    assert num_kept > 0
    assert num_drawn > 0


def test_the_replay_holds_observations_without_the_skill(getkey: GetKey) -> None:
    trainer = eqrl.Trainer(batch_size=4, capacity=20, warmup_steps=4)
    state, _ = eqx.filter_eval_shape(
        trainer.init,
        eqrl.SkillConditioned(sac(), 3),
        eqrl.envs.Point(),
        key=getkey(),
    )
    data = state.replay.data
    assert data.observation.shape == (1, 20, 4)
    assert data.extras.skill.shape == (1, 20, 3)


def _arrays(tree: object) -> list[int]:
    """Which arrays a tree holds, as Python's identities."""
    return [id(x) for x in jax.tree.leaves(tree) if eqx.is_array(x)]


@pytest.fixture(scope="module")
def skilled() -> tuple[eqrl.AbstractAgent, object]:
    """A SAC with three skills, and its state: random, as `init` compiles for long."""
    agent = diayn(sac(), 3)
    random = np.random.default_rng(0)
    state = jax.tree.map(
        lambda x: jnp.asarray(np.asarray(random.uniform(-1, 1, x.shape), x.dtype)),
        eqx.filter_eval_shape(agent.init, eqrl.envs.Point().spec, key=jr.key(0)),
    )
    return agent, state


@eqx.filter_jit
def act_greedily(
    agent: eqrl.AbstractAgent, state: Any, memory: Any, observation: jax.Array
) -> Any:
    return agent.act(state, memory, observation, mode="greedy", key=jr.key(1))


class TestFixSkill:
    def test_it_acts_as_with_that_skill(
        self, skilled: tuple[eqrl.Intrinsic, eqrl.IntrinsicState]
    ) -> None:
        agent, state = skilled
        skill = jnp.eye(3)[1]
        memory = eqrl.SkillMemory(skill=skill, agent=None)
        observation = jnp.arange(4.0)
        expected, _, _ = act_greedily(agent, state, memory, observation)
        # Integers are cast.
        fixed, fixed_state = eqrl.fix_skill(agent, state, skill.astype(int))
        found, memory, extras = act_greedily(fixed, fixed_state, None, observation)
        np.testing.assert_array_equal(found, expected)
        assert memory is None
        assert extras is None

    def test_another_skill_acts_otherwise(
        self, skilled: tuple[eqrl.Intrinsic, eqrl.IntrinsicState]
    ) -> None:
        agent, state = skilled
        actions = [
            act_greedily(fixed, fixed_state, None, jnp.ones(4))[0]
            for fixed, fixed_state in (
                eqrl.fix_skill(agent, state, jnp.eye(3)[index]) for index in range(2)
            )
        ]
        assert not np.allclose(actions[0], actions[1])

    def test_it_learns_from_observations_with_that_skill(self, getkey: GetKey) -> None:
        fixed = eqrl.FixedSkill(eqrl.Normalized(Compass()), jnp.array([10.0, -3.0]))
        state = fixed.init(SPEC, key=getkey())
        batch = random_transitions(getkey(), 2, observation_size=4, action_size=2)
        observed = fixed.observe(state, batch)
        np.testing.assert_allclose(observed.statistics.mean[4:], [10, -3], rtol=1e-6)
        # Nothing has been seen, so nothing is shifted.
        _, metrics = fixed.update(state, batch, step=jnp.asarray(0), key=getkey())
        for name in ("observation", "next_observation"):
            expected = jnp.sum(getattr(batch, name)) + 2 * 7
            np.testing.assert_allclose(metrics[name], expected, rtol=1e-5)
        np.testing.assert_allclose(metrics["reward"], jnp.sum(batch.reward), rtol=1e-5)

    def test_a_normalization_around_it_is_kept(
        self, skilled: tuple[eqrl.Intrinsic, eqrl.IntrinsicState], getkey: GetKey
    ) -> None:
        agent = eqrl.Normalized(skilled[0])
        statistics = eqrl.Normalized(Compass()).init(SPEC, key=getkey()).statistics
        state = eqrl.NormalizedState(agent=skilled[1], statistics=statistics)
        fixed, fixed_state = eqrl.fix_skill(agent, state, jnp.eye(3)[0])
        assert isinstance(fixed, eqrl.Normalized)
        assert isinstance(fixed.agent, eqrl.FixedSkill)
        assert _arrays(fixed_state.statistics) == _arrays(state.statistics)
        assert _arrays(fixed_state.agent) == _arrays(state.agent.agent)

    def test_its_training_begins_where_the_skill_is(self, getkey: GetKey) -> None:
        trainer = eqrl.Trainer(batch_size=4, capacity=20, warmup_steps=4)
        env = eqrl.envs.Point(goal=(1.0, 1.0))
        agent = diayn(Pusher(), 3)
        state = eqx.filter_jit(agent.init)(env.spec, key=getkey())
        fixed, fixed_state = eqrl.fix_skill(agent, state, jnp.eye(3)[2])
        state, _ = trainer.init(fixed, env, key=getkey(), agent_state=fixed_state)
        assert eqx.tree_equal(state.agent, fixed_state)
        # Training donates its state.
        assert not set(_arrays(state.agent)) & set(_arrays(fixed_state))

    def test_a_skill_of_another_size_is_refused(
        self, skilled: tuple[eqrl.Intrinsic, eqrl.IntrinsicState]
    ) -> None:
        with pytest.raises(ValueError, match=r"shape \(4,\).*\(3,\)"):
            eqrl.fix_skill(*skilled, jnp.ones(4))

    @pytest.mark.parametrize(
        ("wrap", "expected"),
        [
            (lambda agent: agent, "IntrinsicState"),
            (eqrl.Normalized, "NormalizedState"),
        ],
    )
    def test_a_state_of_another_agent_is_refused(
        self,
        skilled: tuple[eqrl.Intrinsic, eqrl.IntrinsicState],
        wrap: Callable[[eqrl.AbstractAgent], eqrl.AbstractAgent],
        expected: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        # Without the tests' checks of types, as users have it.
        monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
        agent, state = skilled
        with pytest.raises(ValueError, match=rf"is a SACState.*{expected}"):
            eqrl.fix_skill(wrap(agent), state.agent, jnp.eye(3)[0])

    def test_an_agent_without_skills_is_refused(self, getkey: GetKey) -> None:
        with pytest.raises(ValueError, match="SAC has no skill"):
            eqrl.fix_skill(sac(), None, jnp.ones(2))  # pyright: ignore[reportArgumentType, reportCallIssue]


def test_a_state_of_another_agent_is_refused(getkey: GetKey) -> None:
    trainer = eqrl.Trainer(batch_size=4, capacity=20, warmup_steps=4)
    env = eqrl.envs.Point()
    # Of a larger observation.
    other = Pusher().init(eqrl.EnvSpec(observation_size=5, action_size=2), key=getkey())
    with pytest.raises(ValueError, match="`agent_state` does not fit"):
        eqrl.train(Pusher(), env, trainer, num_steps=8, key=getkey(), agent_state=other)


def test_what_is_learnt_is_said_once(getkey: GetKey) -> None:
    trainer = eqrl.Trainer(batch_size=4, capacity=20, warmup_steps=4)
    env = eqrl.envs.Point()
    state, counts = eqx.filter_eval_shape(trainer.init, Pusher(), env, key=getkey())
    solution = eqrl.Solution(trainer_state=state, counts=counts, metrics={})
    with pytest.raises(ValueError, match="give one"):
        eqrl.train(
            Pusher(),
            env,
            trainer,
            num_steps=8,
            key=getkey(),
            initial=solution,
            agent_state=solution.state,
        )


def test_a_skill_is_drawn_anew_after_some_steps(getkey: GetKey) -> None:
    agent = eqrl.SkillConditioned(Compass(), eqrl.SphereSkills(), resample_every=3)
    state, index = jnp.zeros(()), jnp.asarray(0)
    memory = agent.begin(state, SPEC, index=index, key=getkey())
    shown = []
    for _ in range(9):
        action, memory, extras = agent.act(
            state, memory, jnp.arange(4.0), mode="sample", key=getkey()
        )
        # The transition keeps the skill with which its action was chosen.
        np.testing.assert_array_equal(action, extras.skill)
        shown.append(tuple(np.asarray(extras.skill).tolist()))
    assert shown[0] == shown[1] == shown[2] != shown[3]
    assert shown[3] == shown[4] == shown[5] != shown[6]
    assert len(set(shown)) == 3
    agent = eqrl.SkillConditioned(Compass(), eqrl.EvenOneHotSkills(3), resample_every=1)
    memory = agent.begin(state, SPEC, index=jnp.asarray(2), key=getkey())
    for _ in range(3):
        _, memory, extras = agent.act(
            state, memory, jnp.arange(4.0), mode="sample", key=getkey()
        )
        # That of this environment.
        np.testing.assert_array_equal(extras.skill, [0, 0, 1])


def test_a_return_ends_where_another_skill_begins(
    getkey: GetKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []
    record = lambda self, state, batch, **_: (seen.append(batch), (state, {}))[1]
    monkeypatch.setattr(Compass, "update", record)
    skill = jnp.eye(2)[jnp.array([0, 1, 1, 0, 0, 0, 1, 1])]
    rows = skill_transitions(getkey(), skill=skill)
    ends = {"terminated": [3, 5], "truncated": [4]}
    flags = {
        name: jnp.zeros(8, bool).at[jnp.array(x)].set(True) for name, x in ends.items()
    }
    batch = jax.tree.map(
        lambda x: x.reshape(2, 4, *x.shape[1:]), dataclasses.replace(rows, **flags)
    )
    for resample_every in (None, 2):
        agent = eqrl.SkillConditioned(Compass(), 2, resample_every)
        agent.update(jnp.zeros(()), batch, step=jnp.zeros((), int), key=getkey())
    lasting, resampled = (x.truncated.astype(int).tolist() for x in seen)
    assert lasting == [[0, 0, 0, 0], [1, 0, 0, 0]]
    # Skills change after rows 0 and 2, and after row 1 of the other, a termination.
    assert resampled == [[1, 0, 1, 0], [1, 0, 0, 0]]
