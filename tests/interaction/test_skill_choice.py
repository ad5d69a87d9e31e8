from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, Int, PRNGKeyArray

import eqrl
from eqrl import EnvSpec, Mode, SkillChoice, SkillChoiceState
from eqrl._pytree.fields import check_single
from eqrl.envs import AbstractEnv, Outcome, Point
from tests.toy import Clock, Compass, Drift, GetKey, Idle, Relay


class Fading(Idle):
    """Acts by what it has learnt, half as much at each step of its memory.

    It begins with the strength 1, and acts only greedily.
    """

    fading: float = eqx.field(default=0.5, static=True)

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> Float[Array, " act"]:
        del key
        return jnp.zeros(spec.action_size)

    def begin(
        self,
        state: Float[Array, " act"],
        spec: EnvSpec,
        *,
        index: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, ""]:
        del state, spec, index, key
        return jnp.ones(())

    def act(
        self,
        state: Float[Array, " act"],
        memory: Float[Array, ""],
        observation: Float[Array, " obs"],
        *,
        mode: Mode,
        key: PRNGKeyArray,
    ) -> tuple[Float[Array, " act"], Float[Array, ""], None]:
        del observation, key
        if mode != "greedy":
            raise NotImplementedError
        return memory * state, self.fading * memory, None


# Right, up and left.
DIRECTIONS = jnp.array([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])


def choice(
    num_skills: int = 3, num_steps: int = 3, max_steps: int = 50, **options: Any
) -> SkillChoice[Any, Any, Any, Any]:
    env = Point(max_steps=max_steps, **options)
    return SkillChoice(env, Fading(), DIRECTIONS, num_skills, num_steps)


def position(
    env: SkillChoice[Any, Any, Any, Any], state: SkillChoiceState[Any]
) -> Float[Array, "2"]:
    descriptor = env.state_descriptor(state)
    assert descriptor is not None
    return descriptor


class TestOnPoint:
    def test_a_skill_runs_for_some_steps_and_the_next_begins_afresh(
        self, getkey: GetKey
    ) -> None:
        env = choice()
        state, observation = env.reset(key=getkey())
        np.testing.assert_array_equal(observation, [0, 0, 0, 0])
        state, outcome = env.step(state, jnp.eye(3)[0], key=getkey())
        # Three steps of 0.1, 0.05 and 0.025.
        np.testing.assert_allclose(outcome.observation, [0.175, 0, 0.25, 0])
        state, outcome = env.step(state, jnp.eye(3)[1], key=getkey())
        np.testing.assert_allclose(outcome.observation, [0.175, 0.175, 0, 0.25])
        np.testing.assert_allclose(position(env, state), [0.175, 0.175])

    @pytest.mark.parametrize(
        "action, num_skills, expected",
        [
            ([0.2, -0.5, 0.1], 3, [0.175, 0]),
            ([-0.9, -0.5, -0.8], 3, [0, 0.175]),
            ([-1.0, -0.5, 1.0], 3, [-0.175, 0]),
            ([-1.0, -0.5, 1.0], 2, [0, 0.175]),
            ([-1.0, -0.5, 1.0], 1, [0.175, 0]),
            ([0.5, 0.5, 0.5], 3, [0.175, 0]),
        ],
    )
    def test_the_largest_of_the_skills_that_there_are_is_run(
        self,
        action: list[float],
        num_skills: int,
        expected: list[float],
        getkey: GetKey,
    ) -> None:
        env = choice(num_skills)
        state, _ = env.reset(key=getkey())
        state, _ = env.step(state, jnp.array(action), key=getkey())
        np.testing.assert_allclose(position(env, state), expected)

    def test_rewards_are_summed(self, getkey: GetKey) -> None:
        env = choice(goal=(1.0, 0.0))
        state, _ = env.reset(key=getkey())
        _, outcome = env.step(state, jnp.eye(3)[0], key=getkey())
        np.testing.assert_allclose(outcome.reward, -(0.9 + 0.85 + 0.825), rtol=1e-6)

    def test_the_time_limit_cuts_the_last_skill_short(self, getkey: GetKey) -> None:
        env = choice(max_steps=5)
        state, _ = env.reset(key=getkey())
        state, outcome = env.step(state, jnp.eye(3)[0], key=getkey())
        assert not outcome.truncated
        state, outcome = env.step(state, jnp.eye(3)[1], key=getkey())
        assert outcome.truncated
        # Two steps are left, of 0.1 and 0.05.
        np.testing.assert_allclose(outcome.observation, [0.175, 0.15, 0, 0.5])

    @pytest.mark.parametrize(
        "max_steps, num_steps, expected", [(50, 5, 10), (51, 5, 11), (3, 5, 1)]
    )
    def test_spec(self, max_steps: int, num_steps: int, expected: int) -> None:
        spec = choice(num_skills=2, num_steps=num_steps, max_steps=max_steps).spec
        assert spec == EnvSpec(
            observation_size=4,
            action_size=3,
            state_descriptor_size=2,
            max_steps=expected,
        )

    def test_another_skill_does_not_trace_again(self, getkey: GetKey) -> None:
        traces = []

        @eqx.filter_jit
        def x(env: SkillChoice[Any, Any, Any, Any], key: PRNGKeyArray) -> Array:
            traces.append(None)
            state, _ = env.reset(key=jr.key(0))
            action = jnp.array([-1.0, 0.0, 1.0])
            return env.step(state, action, key=key)[0].inner.position[0]

        positions = [x(choice(number), getkey()) for number in (1, 2, 3)]
        np.testing.assert_allclose(positions, [0.175, 0, -0.175])
        assert len(traces) == 1

    def test_the_number_of_skills_can_be_mapped_over(self) -> None:
        envs = eqx.filter_vmap(
            lambda number: SkillChoice(Point(), Fading(), DIRECTIONS, number, 3)
        )(jnp.arange(1, 4))
        np.testing.assert_array_equal(envs.num_skills, [1, 2, 3])


def by_hand(
    env: AbstractEnv[Any], state: Any, action: Float[Array, " act"], num_steps: int
) -> tuple[Any, Float[Array, "..."], Outcome]:
    """The state after so many steps of one action, the rewards' sum and the last."""
    state, outcome = env.step(state, action, key=jr.key(0))
    total = outcome.reward
    for _ in range(num_steps - 1):
        if not (outcome.terminated | outcome.truncated):
            state, outcome = env.step(state, action, key=jr.key(0))
            total = total + outcome.reward
    return state, total, outcome


class TestAtTheEndOfEpisodes:
    @pytest.mark.parametrize("terminates", [True, False])
    @pytest.mark.parametrize("reward_size", [None, 2])
    def test_nothing_happens_after_an_episodes_end(
        self, terminates: bool, reward_size: int | None, getkey: GetKey
    ) -> None:
        clock = Clock(longest=5, terminates=terminates, reward_size=reward_size)
        env = SkillChoice(clock, Fading(fading=1.0), jnp.ones((2, 1)), 2, num_steps=3)
        # Side by side, episodes that end after 1, 2, 3, 4 and 5 steps.
        state, _ = env.reset(key=getkey())
        states = jax.tree.map(lambda x: jnp.stack([x] * 5), state)
        states = eqx.tree_at(lambda s: s.inner.length, states, jnp.arange(1, 6))
        actions = jnp.ones((5, 2))
        step = eqx.filter_jit(
            eqx.filter_vmap(lambda state, action, key: env.step(state, action, key=key))
        )
        after, outcomes = step(states, actions, jr.split(getkey(), 5))
        for index in range(5):
            state, given, inner = jax.tree.map(
                lambda x, index=index: jnp.asarray(x[index]),
                jax.device_get((after, outcomes, states.inner)),
            )
            expected, total, outcome = by_hand(clock, inner, jnp.ones(1), 3)
            assert eqx.tree_equal(state.inner, expected)
            np.testing.assert_array_equal(state.observation, outcome.observation)
            np.testing.assert_array_equal(given.observation, outcome.observation)
            np.testing.assert_array_equal(given.reward, total)
            assert given.terminated == outcome.terminated
            assert given.truncated == outcome.truncated

    def test_without_a_time_limit_there_is_none(self) -> None:
        clock = Clock(has_limit=False, reward_size=2)
        spec = SkillChoice(clock, Fading(), jnp.ones((2, 1)), 2, 3).spec
        assert (spec.max_steps, spec.reward_size) == (None, 2)

    def test_every_step_has_a_key_of_its_own(self, getkey: GetKey) -> None:
        drift = Drift(max_steps=9)
        env = SkillChoice(drift, Fading(), jnp.zeros((1, 1)), 1, num_steps=2)
        once = SkillChoice(drift, Fading(), jnp.zeros((1, 1)), 1, num_steps=1)
        state, _ = env.reset(key=getkey())
        key = getkey()
        after_one, _ = once.step(state, jnp.ones(1), key=jr.clone(key))
        after_two, _ = env.step(state, jnp.ones(1), key=key)
        first = after_one.inner.position - state.inner.position
        second = after_two.inner.position - after_one.inner.position
        assert abs(float(first - second)) > 1e-3


class TestWithAgents:
    def test_an_agent_can_learn_to_choose(self, getkey: GetKey) -> None:
        agent = eqrl.SAC(
            make_actor=eqrl.nn.Gaussian((4,)), make_critic=eqrl.nn.Critic((4,))
        )
        trainer = eqrl.Trainer(num_envs=2, batch_size=4, capacity=40, warmup_steps=8)
        state, _ = eqx.filter_eval_shape(
            trainer.init, agent, choice(num_skills=2), key=getkey()
        )
        assert state.replay.data.action.shape == (2, 20, 3)

    def test_skills_are_what_agents_of_the_library_learn(self, getkey: GetKey) -> None:
        agent = eqrl.SAC(
            make_actor=eqrl.nn.Gaussian((32,)), make_critic=eqrl.nn.Critic((4,))
        )
        point = Point()
        init = eqx.filter_vmap(lambda key: agent.init(point.spec, key=key))
        random = np.random.default_rng(0)
        # Random numbers rather than `init`, which would take a second to compile.
        states = jax.tree.map(
            lambda x: jnp.asarray(np.asarray(random.uniform(-1, 1, x.shape), x.dtype)),
            eqx.filter_eval_shape(init, jr.split(getkey(), 3)),
        )
        env = SkillChoice(point, agent, states, 2, num_steps=2)
        start, observation = env.reset(key=getkey())
        step, action = eqx.filter_jit(env.step), jnp.array([0.0, 0.5, 1.0])
        after, _ = step(start, action, key=getkey())
        after, _ = step(after, action, key=getkey())
        arrays, static = eqx.partition(states, eqx.is_array)
        second = eqx.combine(
            jax.tree.map(lambda x: jnp.asarray(np.asarray(x)[1]), arrays), static
        )
        act = eqx.filter_jit(
            lambda observation: agent.policy(second)(observation).mode()
        )
        step_inside = eqx.filter_jit(point.step)
        inner, actions = start.inner, []
        for _ in range(4):
            actions.append(act(observation))
            inner, outcome = step_inside(inner, actions[-1], key=getkey())
            observation = outcome.observation
        np.testing.assert_allclose(after.inner.position, inner.position, rtol=1e-5)
        # What is done depends on what is seen.
        assert np.all(np.std(actions, axis=0) > 1e-3)


class TestWithSkillsOfDIAYN:
    """`Compass` goes where its skill tells it to."""

    def reached(
        self, agent: Any, states: Any, action: Array, num_skills: int | None = None
    ) -> Float[Array, "2"]:
        env = SkillChoice(Point(), agent, states, num_skills, num_steps=2)
        assert env.spec.action_size == action.shape[0]
        state, _ = env.reset(key=jr.key(0))
        return position(env, env.step(state, action, key=jr.key(1))[0])

    def conditioned(self, skills: Any) -> tuple[Any, Any]:
        agent = eqrl.Intrinsic(eqrl.SkillConditioned(Compass(), skills), Relay())
        return agent, eqrl.IntrinsicState(agent=jnp.zeros(()), reward=jnp.zeros(()))

    def test_an_action_chooses_among_fixed_skills(self) -> None:
        agent, state = self.conditioned(2)
        fix = eqx.filter_vmap(lambda z: eqrl.fix_skill(agent, state, z))
        agents, states = fix(jnp.eye(2))
        for chosen, expected in enumerate(0.2 * np.eye(2)):
            where = self.reached(agents, states, jnp.eye(2)[chosen], 2)
            np.testing.assert_allclose(where, expected, rtol=1e-6)
        # What holds a stack is none itself, and so it can be trained in.
        choice = SkillChoice(Point(), agents, states, 2, num_steps=2)
        rates = eqx.filter_vmap(lambda rate: eqrl.SAC(actor_lr=rate))(jnp.ones(2))
        check_single("env", eqx.tree_at(lambda x: x.agent, choice, rates))

    def test_an_action_chooses_a_one_hot_skill(self) -> None:
        agent, state = self.conditioned(2)
        for action, num_skills, expected in (
            ([0.3, -0.2], None, [0.2, 0]),
            ([-0.3, -0.2], 2, [0, 0.2]),
            ([-0.3, -0.2], 1, [0.2, 0]),
        ):
            where = self.reached(agent, state, jnp.array(action), num_skills)
            np.testing.assert_allclose(where, expected, rtol=1e-6)

    @pytest.mark.parametrize(
        "prior, expected, nowhere",
        [
            (eqrl.SphereSkills(), [0.12, -0.16], [0.2, 0]),
            (eqrl.NormalSkills(), [0.09, -0.12], [0, 0]),
            (eqrl.UniformSkills(2), [0.06, -0.08], [0, 0]),
            # The skills are (0.65, 0.3) and (0.5, 0.5).
            (eqrl.UniformSkills(2, low=0.0), [0.13, 0.06], [0.1, 0.1]),
        ],
    )
    def test_an_action_is_a_skill_where_skills_are_vectors(
        self, prior: Any, expected: list[float], nowhere: list[float]
    ) -> None:
        agent, state = self.conditioned(prior)
        where = self.reached(agent, state, jnp.array([0.3, -0.4]))
        np.testing.assert_allclose(where, expected, rtol=1e-5)
        where = self.reached(agent, state, jnp.zeros(2))
        np.testing.assert_allclose(where, nowhere, rtol=1e-6)

    def test_a_choice_without_a_meaning_is_refused(self) -> None:
        conditioned, state = self.conditioned(eqrl.SphereSkills())
        one, state_of_one = self.conditioned(eqrl.OneSkill(jnp.ones(2)))
        fixed = eqrl.FixedSkill(Compass(), jnp.ones(2))
        skilled = eqrl.SkillConditioned(Fading(), 3)
        cases: list[tuple[Any, Any, int | None, str]] = [
            (fixed, jnp.zeros(2), 2, "the same skill whatever is chosen"),
            (skilled, DIRECTIONS, 3, "its one state, not a stack"),
            (conditioned, state, 2, "give `num_skills=None`"),
            (one, state_of_one, None, "nothing to choose"),
        ]
        for agent, states, num_skills, said in cases:
            with pytest.raises(ValueError, match=said):
                SkillChoice(Point(), agent, states, num_skills, 3)


FIVE_WAYS = 2 * np.pi * np.arange(5) / 5
STAR = jnp.asarray(np.stack([np.cos(FIVE_WAYS), np.sin(FIVE_WAYS)], axis=1), float)


def _reach(
    env: SkillChoice[Any, Any, Any, Any],
    goal: Float[Array, "2"],
    num_choices: int,
    *,
    key: PRNGKeyArray,
) -> Float[Array, "2"]:
    """Where one ends who always chooses what leads nearest to a goal.

    What each skill leads to is simulated, from where one is.
    """
    reset_key, step_key = jr.split(key)
    choices = jnp.eye(env.spec.action_size)

    def choose(
        state: SkillChoiceState[Any], index: Int[Array, ""]
    ) -> tuple[SkillChoiceState[Any], None]:
        key = jr.fold_in(step_key, index)
        states, _ = jax.vmap(lambda action: env.step(state, action, key=key))(choices)
        reached = jax.vmap(lambda state: position(env, state))(states)
        nearest = jnp.argmin(jnp.linalg.norm(reached - goal[None], axis=1))
        return jax.tree.map(lambda x: x[nearest], states), None

    state, _ = env.reset(key=reset_key)
    state, _ = lax.scan(choose, state, jnp.arange(num_choices))
    return position(env, state)


def test_the_choice_that_leads_nearest_reaches_goals(getkey: GetKey) -> None:
    # Five directions, 0.4 at a time, and goals up to 2 away.
    env = SkillChoice(Point(max_steps=40), Fading(fading=1.0), STAR, 5, num_steps=4)
    angle, radius = jr.uniform(getkey(), (2, 50))
    angle = 2 * np.pi * angle
    goals = (1 + radius[None]) * jnp.stack([jnp.cos(angle), jnp.sin(angle)])
    keys = jr.split(getkey(), 50)

    @jax.jit
    @jax.vmap
    def reach(goal: Float[Array, "2"], key: PRNGKeyArray) -> Float[Array, "2"]:
        return _reach(env, goal, 10, key=key)

    distances = np.linalg.norm(reach(goals.T, keys) - goals.T, axis=1)
    assert np.max(distances) < 0.5
    # Who chooses at random goes 0.4 in ten random directions.
    choices = np.random.default_rng(0).integers(0, 5, (50, 10))
    wandered = 0.4 * np.asarray(STAR)[choices].sum(axis=1)
    distances = np.linalg.norm(wandered - goals.T, axis=1)
    assert np.mean(distances < 0.5) < 0.3


@pytest.mark.parametrize(
    "states, said",
    [
        ({"a": jnp.ones((3, 2)), "b": jnp.ones(2)}, r"\[\(2,\), \(3,\)\]"),
        (jnp.ones(()), r"leading axes here are \[\(\)\]"),
        (None, r"leading axes here are \[\]"),
    ],
)
def test_what_is_no_stack_is_refused(states: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        SkillChoice(Point(), Fading(), states, 1, 3)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"num_skills": 0}, r"num_skills=0.*\[1, 3\]"),
        ({"num_skills": 4}, r"num_skills=4.*\[1, 3\]"),
        ({"num_steps": 0}, "num_steps=0"),
    ],
)
def test_numbers_out_of_range_are_refused(options: dict[str, int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        choice(**options)


def test_an_agent_of_another_environment_is_refused() -> None:
    with pytest.raises(ValueError, match=r"shape \(3,\).*Box\(size=2\)"):
        SkillChoice(Point(), Fading(), jnp.ones((4, 3)), 4, 3)
