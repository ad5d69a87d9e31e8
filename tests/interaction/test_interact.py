import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Bool, Int, PRNGKeyArray, PyTree

from eqrl import Actors, Mode, Transition, interact, start
from eqrl._interaction.actors import begin_where, step_keys
from eqrl._pytree.control_flow import filter_scan
from eqrl.envs import AbstractEnv
from tests.toy import Clock, Drift, GetKey, Learner, LearnerState, Scribe, equations


_NUM_ENVS = 3
_NUM_STEPS = 12
# Played in the mode "random", for all tests of it: each mode and each environment is a
# program to compile.
_OTHER_CLOCK = Clock(terminates=False, reward_size=2)


@eqx.filter_jit
def _play(
    env: AbstractEnv, key: PRNGKeyArray, mode: Mode = "sample"
) -> tuple[Actors, Transition]:
    """The actors before each step and the transitions, `(time, envs)`."""
    agent = Scribe()
    init_key, start_key, step_key = jr.split(key, 3)
    state = agent.init(env.spec, key=init_key)
    actors = start(agent, state, env, num_envs=_NUM_ENVS, key=start_key)

    def step(
        actors: Actors, index: Int[Array, ""]
    ) -> tuple[Actors, tuple[Actors, Transition]]:
        after, transitions = interact(
            agent, state, env, actors, mode=mode, key=jr.fold_in(step_key, index)
        )
        return after, (actors, transitions)

    return filter_scan(step, actors, jnp.arange(_NUM_STEPS))[1]


@eqx.filter_jit
def _start(env: AbstractEnv, key: PRNGKeyArray) -> Actors:
    agent = Scribe()
    init_key, start_key = jr.split(key)
    state = agent.init(env.spec, key=init_key)
    return start(agent, state, env, num_envs=4, key=start_key)


def _over(transitions: Transition) -> np.ndarray:
    return np.asarray(transitions.terminated | transitions.truncated)


def test_start_begins_every_environment_with_its_own_index(getkey: GetKey) -> None:
    actors = _start(Clock(), getkey())
    np.testing.assert_array_equal(actors.memory.index, [0, 1, 2, 3])
    np.testing.assert_array_equal(actors.timestep, np.zeros(4))
    np.testing.assert_array_equal(actors.episode_return, np.zeros(4))


def test_start_begins_every_environment_differently(getkey: GetKey) -> None:
    actors = _start(Drift(), getkey())
    assert len(np.unique(np.asarray(actors.observation)[:, 0])) == 4
    assert len(np.unique(actors.memory.skill)) == 4


def test_next_observation_is_the_successor_at_every_step() -> None:
    # With a key of the old kind.
    _, transitions = _play(Clock(), jr.PRNGKey(0))
    expected = np.asarray(transitions.observation) + np.array([1, 0])
    np.testing.assert_array_equal(transitions.next_observation, expected)


def test_a_reset_is_computed_only_in_steps_that_end_an_episode(getkey: GetKey) -> None:
    agent, env, key = Learner(), Clock(), getkey()
    state = LearnerState(jnp.zeros(2), jnp.zeros(()))
    actors = eqx.filter_eval_shape(
        lambda key: start(agent, state, env, num_envs=2, key=key), key
    )
    jaxpr, _, _ = eqx.filter_make_jaxpr(
        lambda actors, key: interact(agent, state, env, actors, mode="greedy", key=key)
    )(actors, key)
    draws = [
        [x.primitive.name for x in equations(part)].count("random_bits")
        for whole in equations(jaxpr)
        if whole.primitive.name == "cond"
        for part in whole.params["branches"]
    ]
    everywhere = [x.primitive.name for x in equations(jaxpr)].count("random_bits")
    # The reset draws the episode's length; Learner and the step draw nothing.
    assert min(draws) == 0
    assert max(draws) == everywhere > 0


@pytest.mark.checks_keys
def test_many_environments_begin_in_groups_what_they_would_begin_at_once(
    monkeypatch: pytest.MonkeyPatch, getkey: GetKey
) -> None:
    agent, env, num_envs = Scribe(), Drift(), 20
    state = agent.init(env.spec, key=getkey())
    actors = start(agent, state, env, num_envs=num_envs, key=getkey())
    actors = eqx.tree_at(lambda x: x.timestep, actors, actors.timestep + 5)
    keys = step_keys(getkey(), num_envs)[:, 1]
    # None, all, the last, and as many as do not fill two groups.
    overs = jnp.stack([jnp.arange(num_envs) >= begin for begin in (20, 0, 19, 17)])

    def begun(many: int) -> PyTree:
        monkeypatch.setattr("eqrl._interaction.actors._MANY", many)

        @jax.jit
        def begin(over: Bool[Array, " envs"], words: Array) -> Actors:
            keys = jr.wrap_key_data(words)
            return begin_where(over, agent, state, env, actors, keys)

        return [jax.device_get(begin(over, jr.key_data(keys))) for over in overs]

    at_once, in_groups = begun(100), begun(16)
    assert eqx.tree_equal(at_once, in_groups)
    assert [int(jnp.sum(x.timestep == 0)) for x in in_groups] == [0, 20, 1, 3]


def test_the_observation_after_an_end_is_that_of_a_reset(getkey: GetKey) -> None:
    _, transitions = _play(Clock(), getkey())
    over = _over(transitions)[:-1]
    assert over.any()
    following = np.asarray(transitions.observation)[1:]
    np.testing.assert_array_equal(following[over][:, 0], 0)
    reached = np.asarray(transitions.next_observation)[:-1]
    assert np.all(following[over][:, 0] != reached[over][:, 0])


def test_within_an_episode_the_next_observation_is_observed_next(
    getkey: GetKey,
) -> None:
    _, transitions = _play(Clock(), getkey())
    going_on = ~_over(transitions)[:-1]
    np.testing.assert_array_equal(
        np.asarray(transitions.observation)[1:][going_on],
        np.asarray(transitions.next_observation)[:-1][going_on],
    )


def test_episodes_begin_at_random_each_time(getkey: GetKey) -> None:
    _, transitions = _play(Drift(), getkey())
    begins = np.asarray(transitions.timestep) == 0
    positions = np.asarray(transitions.observation)[begins][:, 0]
    assert begins.sum() > _NUM_ENVS
    assert len(np.unique(positions)) == len(positions)


@pytest.mark.parametrize("terminates", [True, False])
def test_ends_are_recorded_as_the_environment_says(
    terminates: bool, getkey: GetKey
) -> None:
    if terminates:
        _, transitions = _play(Clock(), getkey())
    else:
        _, transitions = _play(_OTHER_CLOCK, getkey(), "random")
    time, length = np.moveaxis(np.asarray(transitions.next_observation), -1, 0)
    np.testing.assert_array_equal(_over(transitions), time == length)
    other = transitions.truncated if terminates else transitions.terminated
    assert not np.any(other)


def test_timestep_counts_from_the_beginning_of_the_episode(getkey: GetKey) -> None:
    _, transitions = _play(Clock(), getkey())
    np.testing.assert_array_equal(
        transitions.timestep, transitions.observation[..., 0].astype(int)
    )


def test_memory_lasts_for_an_episode_and_has_the_index_of_its_environment(
    getkey: GetKey,
) -> None:
    _, transitions = _play(Clock(), getkey())
    np.testing.assert_array_equal(transitions.extras.age, transitions.timestep)
    expected = np.broadcast_to(np.arange(_NUM_ENVS), (_NUM_STEPS, _NUM_ENVS))
    np.testing.assert_array_equal(transitions.extras.index, expected)
    # Drawn when an episode begins, and at no other time.
    changed = np.diff(np.asarray(transitions.extras.skill), axis=0) != 0
    np.testing.assert_array_equal(changed, _over(transitions)[:-1])


def test_descriptors_are_of_the_state_left_and_of_the_state_reached(
    getkey: GetKey,
) -> None:
    # Also at an end, where the environment has been reset since.
    _, transitions = _play(Clock(), getkey())
    np.testing.assert_array_equal(
        transitions.state_descriptor, 10 * transitions.observation[..., :1]
    )
    np.testing.assert_array_equal(
        transitions.next_state_descriptor, 10 * transitions.next_observation[..., :1]
    )
    # There are none where the environment gives none.
    _, transitions = _play(Drift(), getkey())
    assert transitions.state_descriptor is None
    assert transitions.next_state_descriptor is None


@pytest.mark.parametrize("reward_size", [None, 2])
def test_episode_return_sums_the_rewards_of_the_episode_so_far(
    reward_size: int | None, getkey: GetKey
) -> None:
    if reward_size is None:
        actors, transitions = _play(Clock(), getkey())
    else:
        actors, transitions = _play(_OTHER_CLOCK, getkey(), "random")
    time = np.asarray(transitions.timestep)
    first = time * (time + 1) / 2
    expected = first if reward_size is None else np.stack([first, -2.0 * time], axis=-1)
    np.testing.assert_array_equal(actors.episode_return, expected)


@pytest.mark.parametrize(("mode", "action"), [("random", 0.25), ("sample", 0.5)])
def test_the_mode_reaches_the_agent(mode: Mode, action: float, getkey: GetKey) -> None:
    # Sampling is the default of `_play`, whose program is compiled already.
    is_default = mode == "sample"
    env = Clock() if is_default else _OTHER_CLOCK
    _, transitions = _play(env, getkey()) if is_default else _play(env, getkey(), mode)
    np.testing.assert_array_equal(
        transitions.action, np.full((_NUM_STEPS, _NUM_ENVS, 1), action)
    )


def test_environments_are_stepped_with_noise_of_their_own(getkey: GetKey) -> None:
    _, transitions = _play(Drift(), getkey())
    reached, left = jax.device_get(
        (transitions.next_observation, transitions.observation)
    )
    moves = reached[..., 0] - left[..., 0]
    assert len(np.unique(np.round(moves, 4))) > 30


def test_agent_and_environment_draw_from_keys_of_their_own(getkey: GetKey) -> None:
    # Of no weight, the agent acts with its noise alone.
    agent, env, state = Learner(), Drift(), LearnerState(jnp.zeros(2), jnp.zeros(()))

    @jax.jit
    def play(key: PRNGKeyArray) -> Transition:
        start_key, step_key = jr.split(key)
        actors = start(agent, state, env, num_envs=16, key=start_key)
        return interact(agent, state, env, actors, mode="sample", key=step_key)[1]

    transitions = jax.device_get(play(getkey()))
    action, observation = transitions.action[:, 0], transitions.observation[:, 0]
    noise = transitions.next_observation[:, 0] - observation - 0.3 * action
    # Numbers that are drawn from one key have one order, however they are scaled.
    assert np.any(np.argsort(noise) != np.argsort(action))
