import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any

import equinox as eqx
import gymnax
import jax
import jax.core
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from gymnax.environments import spaces
from gymnax.environments.environment import Environment, EnvParams, EnvState
from jaxtyping import Array, ArrayLike, Float, PRNGKeyArray, PyTree, Shaped

from eqrl._pytree.tree import tree_where
from eqrl.envs import GymnaxEnv, Outcome
from eqrl.envs._base import lenient_promotion
from eqrl.envs._check import check_env
from eqrl.envs._gymnax import BINARY_IMAGES, make, names
from eqrl.spaces import Discrete

from ..toy import GetKey, check_types_of_states


NUM_STEPS = 12
# By name, what an action of 1 is in the environment.
SCALES = {
    "Pendulum-v1": 2.0,
    "MountainCarContinuous-v0": 1.0,
    "PointRobot-misc": 0.1,
    "Reacher-misc": 1.0,
}


@functools.cache
def _environment(name: str) -> Any:
    """Gymnax's, of which reset and step are compiled once, wherever they are called."""
    environment, _ = gymnax.make(name)
    reset, step = jax.jit(environment.reset_env), jax.jit(environment.step_env)

    def step_strongly(
        key: PRNGKeyArray, state: Any, action: Any, params: Any
    ) -> tuple[Any, ...]:
        # Gymnax's own states are weakly typed, which would be another program.
        if not isinstance(action, jax.core.Tracer):
            state = jax.tree.map(lambda leaf: jnp.asarray(np.asarray(leaf)), state)
        return step(key, state, action, params)

    vars(environment).update(reset_env=reset, step_env=step_strongly)
    return environment


def _env(name: str, max_steps: int = 10) -> GymnaxEnv:
    environment = _environment(name)
    params = environment.default_params
    return GymnaxEnv(environment, params.replace(max_steps_in_episode=max_steps))


def _actions(env: GymnaxEnv) -> Float[Array, "time act"]:
    return jr.uniform(jr.key(1), (NUM_STEPS, env.spec.action_size), minval=-1)


@functools.cache
def _by_adapter(name: str) -> tuple[Float[Array, " obs"], Outcome]:
    """The first observation, and the outcomes stacked over time."""
    env = _env(name)
    state, first = env.reset(key=jr.key(0))
    outcomes = []
    for action, key in zip(_actions(env), jr.split(jr.key(2), NUM_STEPS), strict=True):
        state, outcome = env.step(state, action, key=key)
        outcomes.append(outcome)
    return first, jax.tree.map(lambda *each: np.stack(each), *outcomes)


@functools.cache
def _by_hand(name: str) -> tuple[Any, list[tuple[Any, Any, Any]]]:
    """The environment's own first observation; observation, reward and end of steps."""
    environment = _environment(name)
    params = environment.default_params
    steps = []
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        first, state = environment.reset_env(jr.key(0), params)
        keys = jr.split(jr.key(2), NUM_STEPS)
        for action, key in zip(_actions(_env(name)), keys, strict=True):
            action = SCALES[name] * action
            observation, state, reward, end, _ = environment.step_env(
                key, state, action, params
            )
            steps.append((observation, reward, end))
    return first, steps


each = pytest.mark.parametrize("name", list(SCALES))


@each
def test_outcomes_are_those_of_gymnax_for_rescaled_actions(name: str) -> None:
    first, outcomes = _by_adapter(name)
    expected, steps = _by_hand(name)
    np.testing.assert_allclose(first, expected, rtol=1e-6)
    observations, rewards, _ = (np.stack(values) for values in zip(*steps, strict=True))
    np.testing.assert_allclose(outcomes.observation, observations, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(outcomes.reward, rewards, rtol=1e-5, atol=1e-6)
    # The time limit truncates, and does not terminate.
    np.testing.assert_array_equal(outcomes.truncated, np.arange(1, NUM_STEPS + 1) >= 10)
    assert not np.any(outcomes.terminated)


@each
def test_reset_and_step_give_states_of_the_same_strong_types(name: str) -> None:
    check_types_of_states(_env(name))


@functools.cache
def _driver() -> Callable[[int], Outcome]:
    """Compiled once, for any time limit."""
    env = GymnaxEnv(gymnax.make("MountainCarContinuous-v0")[0])

    @jax.jit
    def drive(max_steps: ArrayLike) -> Outcome:
        limited: Any = eqx.tree_at(
            lambda env: env.params.max_steps_in_episode, env, max_steps
        )

        def step(state: Any, _: None) -> tuple[EnvState, Outcome]:
            action = jnp.where(state.velocity >= 0, 1.0, -1.0)[None]
            return limited.step(state, action, key=jr.key(0))

        state, _ = limited.reset(key=jr.key(0))
        return lax.scan(step, state, length=300)[1]

    return drive


def _drive_to_the_goal(max_steps: int) -> Outcome:
    """Outcomes of pushing a car the way it goes, which takes it up the mountain."""
    return _driver()(max_steps)


def _steps_to_the_goal() -> int:
    terminated = np.asarray(_drive_to_the_goal(999).terminated)
    assert np.any(terminated)
    return int(np.argmax(terminated)) + 1


def test_reaching_the_goal_terminates() -> None:
    num_steps = _steps_to_the_goal()
    outcomes = _drive_to_the_goal(999)
    # The environment's reward for being there.
    assert outcomes.reward[num_steps - 1] > 99
    assert not np.any(outcomes.terminated[: num_steps - 1])


def test_reaching_the_goal_at_the_time_limit_is_not_truncated() -> None:
    num_steps = _steps_to_the_goal()
    outcomes = _drive_to_the_goal(num_steps)
    assert outcomes.terminated[num_steps - 1]
    assert not outcomes.truncated[num_steps - 1]


def test_not_yet_reaching_the_goal_at_the_time_limit_is_truncated() -> None:
    num_steps = _steps_to_the_goal()
    outcomes = _drive_to_the_goal(num_steps - 1)
    assert outcomes.truncated[num_steps - 2]


def test_spec_of_the_pendulum() -> None:
    environment, params = gymnax.make("Pendulum-v1")
    spec = GymnaxEnv(environment, params).spec
    assert (spec.observation_size, spec.action_size, spec.max_steps) == (3, 1, 200)
    assert (spec.reward_size, spec.state_descriptor_size) == (None, None)


def test_without_params_the_environments_own_are_taken() -> None:
    environment, params = gymnax.make("Pendulum-v1")
    assert GymnaxEnv(environment).params == params


def test_without_a_state_descriptor_there_is_none(getkey: GetKey) -> None:
    env = _env("Pendulum-v1")
    state, _ = env.reset(key=getkey())
    assert env.state_descriptor(state) is None


def _goal(state: Any) -> Shaped[Array, " descriptor"]:
    return state.goal_xy


def test_a_state_descriptor_may_be_given(getkey: GetKey) -> None:
    env = GymnaxEnv(_environment("Reacher-misc"), state_descriptor=_goal)
    state, observation = env.reset(key=getkey())
    np.testing.assert_array_equal(env.state_descriptor(state), observation[-2:])
    assert env.spec.state_descriptor_size == 2


def test_a_state_descriptor_that_is_no_vector_is_refused() -> None:
    environment, _ = gymnax.make("Reacher-misc")
    with pytest.raises(ValueError, match="`state_descriptor` of `Reacher-misc` gives"):
        GymnaxEnv(environment, state_descriptor=lambda state: state.time)


class Toy(Environment[EnvState, EnvParams]):
    """Observes what it is told to, and rewards with the first action it gets."""

    def __init__(self, observation: PyTree[ArrayLike], space: spaces.Space) -> None:
        self.observation = observation
        self.space = space

    def reset_env(self, key: PRNGKeyArray, params: EnvParams) -> tuple[Any, EnvState]:
        del key, params
        return self.observation, EnvState(time=0)

    def step_env(
        self, key: PRNGKeyArray, state: EnvState, action: Any, params: EnvParams
    ) -> tuple[Any, EnvState, Array, Array, dict[Any, Any]]:
        del key, params
        reward = action.reshape(-1)[0]
        state = EnvState(time=state.time + 1)
        return self.observation, state, reward, jnp.array(False), {}

    def action_space(self, params: EnvParams | None = None) -> spaces.Space:
        del params
        return self.space


UNIT_BOX = spaces.Box(-1.0, 1.0, (1,))


@pytest.mark.parametrize(
    "observation, expected",
    [
        (3, [3.0]),
        (jnp.array(3), [3.0]),
        (jnp.array([1, 2]), [1.0, 2.0]),
        (jnp.array([True, False]), [1.0, 0.0]),
    ],
    ids=["int", "scalar", "ints", "bools"],
)
def test_numbers_are_observed_as_vectors_of_floats(
    observation: ArrayLike, expected: list[float], getkey: GetKey
) -> None:
    env = GymnaxEnv(Toy(observation, UNIT_BOX))
    _, given = env.reset(key=getkey())
    assert (given.dtype, env.spec.observation_size) == (jnp.float32, len(expected))
    np.testing.assert_array_equal(given, expected)


def _first_reward(
    space: spaces.Space, action: list[float], key: PRNGKeyArray
) -> Float[Array, ""]:
    env = GymnaxEnv(Toy(jnp.zeros(1), space))
    state, _ = env.reset(key=jr.clone(key))
    return env.step(state, jnp.array(action, dtype=float), key=key)[1].reward


@pytest.mark.parametrize("action, expected", [(-1, 2.0), (0, 4.0), (1, 6.0)])
def test_actions_are_rescaled_to_scalar_bounds(
    action: int, expected: float, getkey: GetKey
) -> None:
    space = spaces.Box(2, 6, (1,))
    np.testing.assert_allclose(_first_reward(space, [action], getkey()), expected)


@pytest.mark.parametrize("action, expected", [(-1, 2.0), (0, 4.0), (1, 6.0)])
def test_actions_are_rescaled_to_bounds_of_their_own(
    action: int, expected: float, getkey: GetKey
) -> None:
    space = spaces.Box(jnp.array([2.0, -1.0]), jnp.array([6.0, 1.0]), (2,))
    np.testing.assert_allclose(_first_reward(space, [action, 0], getkey()), expected)


def test_a_reward_of_integers_becomes_a_float(getkey: GetKey) -> None:
    class IntegerReward(Toy):
        def step_env(
            self, key: PRNGKeyArray, state: EnvState, action: Any, params: EnvParams
        ) -> tuple[Any, EnvState, Any, Array, dict[Any, Any]]:
            del key, action, params
            return self.observation, state, 7, jnp.array(False), {}

    env = GymnaxEnv(IntegerReward(jnp.zeros(1), UNIT_BOX))
    state, _ = env.reset(key=getkey())
    reward = env.step(state, jnp.zeros(1), key=getkey())[1].reward
    assert (reward, reward.dtype, reward.weak_type) == (7.0, jnp.float32, False)


def test_a_step_to_a_state_of_python_numbers_gives_arrays(getkey: GetKey) -> None:
    class PythonState(Toy):
        def step_env(
            self, key: PRNGKeyArray, state: EnvState, action: Any, params: EnvParams
        ) -> tuple[Any, EnvState, Any, Array, dict[Any, Any]]:
            del key, state, action, params
            return self.observation, EnvState(time=5), 0.0, jnp.array(False), {}

    env = GymnaxEnv(PythonState(jnp.zeros(1), UNIT_BOX))
    state, _ = env.reset(key=getkey())
    state, _ = env.step(state, jnp.zeros(1), key=getkey())
    assert eqx.tree_equal(state, EnvState(time=jnp.array(5)))  # pyright: ignore[reportArgumentType]


def test_an_image_is_flattened(getkey: GetKey) -> None:
    image = jnp.asarray(np.arange(12, dtype=np.uint8).reshape(2, 2, 3))
    env = GymnaxEnv(Toy(image, UNIT_BOX))
    assert (env.spec.observation_size, env.spec.observation_shape) == (12, (2, 2, 3))
    _, observation = env.reset(key=getkey())
    np.testing.assert_array_equal(observation, np.arange(12, dtype=np.float32))


def test_observations_in_a_dictionary_are_refused() -> None:
    with pytest.raises(ValueError, match="`Toy` observes a dict"):
        GymnaxEnv(Toy({"a": jnp.zeros(1)}, UNIT_BOX))


def test_choices_are_passed_as_they_are(getkey: GetKey) -> None:
    environment, params = gymnax.make("CartPole-v1")
    env = GymnaxEnv(environment)
    assert env.spec.action == Discrete(2)
    state, _ = env.reset(key=getkey())
    for action in (0, 1):
        key = getkey()
        _, outcome = env.step(state, jnp.asarray(action), key=jr.clone(key))
        with jax.numpy_dtype_promotion("standard"):
            expected, *_ = environment.step_env(key, state, action, params)
        np.testing.assert_allclose(outcome.observation, expected, rtol=1e-6)


def test_a_space_of_another_kind_is_refused() -> None:
    space = spaces.Dict({"a": UNIT_BOX})
    with pytest.raises(ValueError, match="must be a `Box` or `Discrete`"):
        GymnaxEnv(Toy(jnp.zeros(1), space))


# One of them downloads what it needs where it is made.
NAMES = sorted({*names()} - {"MNISTBandit-bsuite"})
# A vector and choices, an image, a matrix, and one that is made leniently.
OF_EACH_KIND = ("CartPole-v1", "Breakout-MinAtar", "DeepSea-bsuite", "FourRooms-misc")


@pytest.mark.parametrize(
    "name",
    [
        name if name in OF_EACH_KIND else pytest.param(name, marks=pytest.mark.long)
        for name in NAMES
    ],
)
def test_every_environment_of_gymnax_does_what_its_spec_says(name: str) -> None:
    env = make(name, max_steps=3)
    check_env(env)
    assert env.spec.max_steps == 3


@pytest.mark.parametrize(
    "name",
    [
        name
        if name == "Breakout-MinAtar"
        else pytest.param(name, marks=pytest.mark.long)
        for name in sorted(BINARY_IMAGES)
    ],
)
def test_images_that_are_bools_have_no_other_values(name: str) -> None:
    env = make(name)
    assert env.spec.observation_dtype == "bool"

    @jax.jit
    def play(key: PRNGKeyArray) -> Array:
        """The elements of 1,000 steps, as gymnax gives them and as the adapter does."""

        def step(state: PyTree, key: PRNGKeyArray) -> tuple[PyTree, Array]:
            act_key, step_key, reset_key = jr.split(key, 3)
            action = env.spec.action.sample(key=act_key)
            after, outcome = env.step(state, action, key=step_key)
            with lenient_promotion():
                seen = env.environment.get_obs(after, params=env.params, key=step_key)
            fresh, _ = env.reset(key=reset_key)
            over = outcome.terminated | outcome.truncated
            same = jnp.ravel(seen) == outcome.observation.astype(float)
            return tree_where(over, fresh, after), jnp.all(same)

        state, _ = env.reset(key=key)
        return lax.scan(step, state, jr.split(jr.fold_in(key, 1), 1_000))[1]

    assert np.all(play(jr.key(0)))


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_every_environment_of_gymnax_is_played_to_its_limit(name: str) -> None:
    env = make(name, max_steps=3)

    @jax.jit
    def play(key: PRNGKeyArray) -> tuple[Array, Array]:
        state, _ = env.reset(key=key)
        flags = []
        for index in range(3):
            action = env.spec.action.sample(key=jr.fold_in(key, 2 * index))
            step_key = jr.fold_in(key, 2 * index + 1)
            state, outcome = env.step(state, action, key=step_key)
            flags.append((outcome.terminated, outcome.truncated))
        terminated, truncated = zip(*flags, strict=True)
        return jnp.stack(terminated), jnp.stack(truncated)

    terminated, truncated = play(jr.key(0))
    assert not np.any(terminated & truncated)
    # It ends by itself, or at the limit and not before.
    assert np.any(terminated) or truncated.tolist() == [False, False, True]


@pytest.mark.parametrize(
    "low, high",
    [(-np.inf, np.inf), (-1.0, np.inf), (np.array([-1.0, -np.inf]), np.ones(2))],
    ids=["both", "high", "one of two"],
)
def test_infinite_bounds_of_actions_are_refused(low: Any, high: Any) -> None:
    with pytest.raises(ValueError, match="must be finite"):
        GymnaxEnv(Toy(jnp.zeros(1), spaces.Box(low, high, (2,))))


def test_gymnax_before_1_is_refused_with_what_to_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    environment, _ = gymnax.make("Pendulum-v1")
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.9")
    with pytest.raises(ValueError, match=r'gymnax 0\.0\.9.*pip install "gymnax>=1\.0"'):
        GymnaxEnv(environment)


def test_bounds_may_be_traced(getkey: GetKey) -> None:
    environment, _ = gymnax.make("Pendulum-v1")
    params: Any = environment.default_params
    key = getkey()

    def reward(torque: Float[Array, ""]) -> Float[Array, ""]:
        env = GymnaxEnv(environment, params.replace(max_torque=torque))
        state, _ = env.reset(key=key)
        return env.step(state, jnp.ones(1), key=key)[1].reward

    torques = jnp.array([0.0, 10.0])
    rewards = eqx.filter_jit(eqx.filter_vmap(reward))(torques)
    # The pendulum pays 0.001 for the square of the torque.
    np.testing.assert_allclose(rewards[1] - rewards[0], -0.1, rtol=1e-4)
