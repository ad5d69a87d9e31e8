from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

from eqrl.envs import Outcome, Point
from eqrl.envs._point import PointState

from ..toy import GetKey


def _walk(
    env: Point, actions: list[list[float]], key: PRNGKeyArray
) -> tuple[Outcome, Float[Array, "time 2"]]:
    """Outcomes and positions, stacked over time."""

    def step(
        state: PointState, action: Float[Array, "2"]
    ) -> tuple[PointState, tuple[Outcome, Float[Array, "2"]]]:
        state, outcome = env.step(state, action, key=key)
        return state, (outcome, env.state_descriptor(state))

    state, _ = env.reset(key=key)
    return lax.scan(step, state, jnp.array(actions, dtype=float))[1]


def test_starts_at_the_origin_with_no_last_action(getkey: GetKey) -> None:
    _, observation = Point().reset(key=getkey())
    np.testing.assert_array_equal(observation, np.zeros(4))


def test_moves_by_step_size_times_action(getkey: GetKey) -> None:
    _, positions = _walk(Point(step_size=0.5), [[1, -0.5], [0.2, 0]], getkey())
    np.testing.assert_allclose(positions, [[0.5, -0.25], [0.6, -0.25]], rtol=1e-6)


def test_actions_beyond_one_are_clipped(getkey: GetKey) -> None:
    _, positions = _walk(Point(step_size=0.5), [[3, -7]], getkey())
    np.testing.assert_allclose(positions, [[0.5, -0.5]])


def test_observes_position_then_last_action(getkey: GetKey) -> None:
    outcomes, _ = _walk(Point(step_size=0.5), [[1, 0], [-0.5, 0.25]], getkey())
    expected = [[0.5, 0, 1, 0], [0.25, 0.125, -0.5, 0.25]]
    np.testing.assert_allclose(outcomes.observation, expected)


def test_reward_is_zero_without_a_goal(getkey: GetKey) -> None:
    outcomes, _ = _walk(Point(), [[1, 0], [0, 1]], getkey())
    np.testing.assert_array_equal(outcomes.reward, [0, 0])


def test_reward_is_minus_the_distance_left_to_the_goal(getkey: GetKey) -> None:
    env = Point(step_size=1.0, goal=(4, 4))
    outcomes, _ = _walk(env, [[0, 1], [1, 0]], getkey())
    np.testing.assert_allclose(outcomes.reward, [-5, -np.sqrt(18)], rtol=1e-6)


def test_truncates_at_max_steps_and_not_before(getkey: GetKey) -> None:
    outcomes, _ = _walk(Point(max_steps=3), [[1, 0]] * 3, getkey())
    np.testing.assert_array_equal(outcomes.truncated, [False, False, True])


def test_never_terminates(getkey: GetKey) -> None:
    outcomes, _ = _walk(Point(max_steps=3), [[1, 0]] * 5, getkey())
    assert not np.any(outcomes.terminated)


WALL = (((0.25, -1.0), (0.25, 1.0)),)
TWO_WALLS = (*WALL, ((-0.25, -1.0), (-0.25, 1.0)))
ALONG = (((0.25, 0.0), (1.0, 0.0)),)


@pytest.mark.parametrize(
    "walls, step_size, actions, expected",
    [
        pytest.param(WALL, 0.5, [[1, 0.5]], [[0, 0]], id="through"),
        pytest.param(WALL, 0.25, [[1, 0]], [[0, 0]], id="ends on it"),
        pytest.param(
            (((0.25, 0.25), (0.25, 1.0)),), 0.5, [[1, 1]], [[0, 0]], id="its end"
        ),
        pytest.param(ALONG, 0.5, [[1, 0]], [[0, 0]], id="along it and into it"),
        pytest.param(ALONG, 0.5, [[-1, 0]], [[-0.5, 0]], id="along it and away"),
        pytest.param(
            (((0.25, 0.3), (0.25, 1.0)),), 0.5, [[1, 1]], [[0.5, 0.5]], id="beside it"
        ),
        pytest.param(WALL, 0.2, [[1, 0]], [[0.2, 0]], id="before it"),
        pytest.param(
            (((0.0, 1.0), (1.0, 0.0)),), 0.25, [[1, 1]], [[0.25, 0.25]], id="slanting"
        ),
        pytest.param(TWO_WALLS, 0.5, [[1, 0], [-1, 0]], [[0, 0], [0, 0]], id="each"),
    ],
)
def test_a_move_that_touches_a_wall_does_not_happen(
    walls: tuple[Any, ...],
    step_size: float,
    actions: list[list[float]],
    expected: list[list[float]],
    getkey: GetKey,
) -> None:
    _, positions = _walk(Point(step_size=step_size, walls=walls), actions, getkey())
    np.testing.assert_allclose(positions, expected, rtol=1e-7)


def test_a_random_walk_never_leaves_a_closed_room(getkey: GetKey) -> None:
    corners = [(-0.3, -0.3), (0.35, -0.25), (0.3, 0.3), (-0.2, 0.4)]
    walls = tuple(zip(corners, corners[1:] + corners[:1], strict=True))
    env = Point(step_size=0.1, walls=walls)
    actions = jax.random.uniform(getkey(), (20_000, 2), minval=-1, maxval=1)
    _, positions = _walk(env, actions.tolist(), getkey())
    assert np.all(np.abs(positions) < 0.4)


def test_step_size_can_be_mapped_over(getkey: GetKey) -> None:
    envs = eqx.filter_vmap(lambda size: Point(step_size=size))(jnp.array([0.1, 0.2]))
    key = getkey()

    def first_position(env: Point) -> Float[Array, "2"]:
        state, _ = env.reset(key=key)
        return env.step(state, jnp.ones(2), key=key)[0].position

    positions = eqx.filter_vmap(first_position)(envs)
    np.testing.assert_allclose(positions, [[0.1, 0.1], [0.2, 0.2]])


def test_a_changed_step_size_does_not_trace_again() -> None:
    traces = []

    @eqx.filter_jit
    def position(env: Point) -> Float[Array, "2"]:
        traces.append(None)
        key = jax.random.key(0)
        state, _ = env.reset(key=key)
        return env.step(state, jnp.ones(2), key=key)[0].position

    position(Point(step_size=0.1))
    position(Point(step_size=0.2))
    assert len(traces) == 1


def test_spec_gives_the_sizes_and_the_time_limit() -> None:
    spec = Point(max_steps=7).spec
    sizes = (spec.observation_size, spec.action_size, spec.state_descriptor_size)
    assert sizes == (4, 2, 2)
    assert (spec.reward_size, spec.max_steps) == (None, 7)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"step_size": 0.0}, "step_size"),
        ({"max_steps": 0}, "max_steps=0"),
        ({"walls": (((-1.0, -1.0), (1.0, 1.0)),)}, "origin"),
        ({"walls": TWO_WALLS, "num_open": -1}, r"`num_open=-1`.*\[0, 2\]"),
        ({"walls": TWO_WALLS, "num_open": 3}, r"`num_open=3`.*\[0, 2\]"),
        ({"walls": TWO_WALLS, "num_open": 0.5}, r"`num_open=0\.5`.*whole number"),
    ],
)
def test_what_a_point_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Point(**options)


def test_a_wall_on_a_line_through_the_origin_but_away_from_it_is_allowed() -> None:
    Point(walls=(((1.0, 1.0), (2.0, 2.0)),))


@pytest.mark.parametrize(
    "num_open, right, left", [(0, 0.0, 0.0), (1, 0.5, 0.0), (2, 0.5, -0.5)]
)
def test_the_first_walls_are_open(
    num_open: int, right: float, left: float, getkey: GetKey
) -> None:
    env = Point(step_size=0.5, walls=TWO_WALLS, num_open=num_open)
    _, to_the_right = _walk(env, [[1, 0]], getkey())
    _, to_the_left = _walk(env, [[-1, 0]], getkey())
    np.testing.assert_array_equal(to_the_right, [[right, 0]])
    np.testing.assert_array_equal(to_the_left, [[left, 0]])


def test_walls_that_open_do_not_trace_again() -> None:
    traces = []

    @eqx.filter_jit
    def x(env: Point) -> Float[Array, ""]:
        traces.append(None)
        key = jax.random.key(0)
        state, _ = env.reset(key=key)
        return env.step(state, jnp.array([1.0, 0.0]), key=key)[0].position[0]

    assert x(Point(step_size=0.5, walls=TWO_WALLS)) == 0
    assert x(Point(step_size=0.5, walls=TWO_WALLS, num_open=1)) == 0.5
    assert x(Point(step_size=0.5, walls=TWO_WALLS, num_open=jnp.array(2))) == 0.5
    assert len(traces) == 1


def test_the_number_of_open_walls_can_be_mapped_over(getkey: GetKey) -> None:
    envs = eqx.filter_vmap(lambda n: Point(walls=WALL, num_open=n))(jnp.arange(2))
    state, _ = Point().reset(key=getkey())
    key = getkey()

    def position(env: Point) -> Float[Array, "2"]:
        env = eqx.tree_at(lambda env: env.step_size, env, jnp.array(0.5))
        return env.step(state, jnp.array([1.0, 0.0]), key=key)[0].position

    positions = eqx.filter_jit(eqx.filter_vmap(position))(envs)
    np.testing.assert_array_equal(positions, [[0, 0], [0.5, 0]])
