import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import pytest
from jaxtyping import Array, Float, PRNGKeyArray

from eqrl.envs import Point, sector_of, sectors
from eqrl.envs._point import PointState

from ..toy import GetKey


def test_four_sectors_are_the_quadrants() -> None:
    walls = sectors(4, radius=1.0, length=2.0)
    sides = [
        ((1, 0), (0, 1)),
        ((0, 1), (-1, 0)),
        ((-1, 0), (0, -1)),
        ((0, -1), (1, 0)),
    ]
    outwards = [
        ((1, 0), (3, 0)),
        ((0, 1), (0, 3)),
        ((-1, 0), (-3, 0)),
        ((0, -1), (0, -3)),
    ]
    np.testing.assert_allclose(walls, [*sides, *outwards], atol=1e-12)


@pytest.mark.parametrize("num_sectors", [3, 4, 5, 8])
def test_the_middle_of_a_side_is_in_its_sectors_direction(num_sectors: int) -> None:
    walls = np.array(sectors(num_sectors))
    assert len(walls) == 2 * num_sectors
    middles = walls[:num_sectors].mean(axis=1)
    angles = np.arctan2(middles[:, 1], middles[:, 0]) % (2 * np.pi)
    expected = 2 * np.pi * (np.arange(num_sectors) + 0.5) / num_sectors
    np.testing.assert_allclose(np.cos(angles - expected), 1)


@pytest.mark.parametrize("num_sectors", [3, 4, 5, 8])
def test_walls_meet_to_the_last_bit(num_sectors: int) -> None:
    walls = sectors(num_sectors)
    sides, outwards = walls[:num_sectors], walls[num_sectors:]
    for side, after in zip(sides, [*sides[1:], sides[0]], strict=True):
        assert side[1] == after[0]
    assert {side[0] for side in sides} == {wall[0] for wall in outwards}


def test_the_radius_and_the_length_are_those_of_the_walls() -> None:
    walls = np.array(sectors(5, radius=0.7, length=2.0))
    distances = np.linalg.norm(walls, axis=-1)
    np.testing.assert_allclose(distances[:5], 0.7)
    np.testing.assert_allclose(distances[5:, 1], 2.7)


@pytest.mark.parametrize("num_sectors", [1, 2, 0])
def test_fewer_than_three_sectors_are_refused(num_sectors: int) -> None:
    with pytest.raises(ValueError, match=f"num_sectors={num_sectors}"):
        sectors(num_sectors)
    with pytest.raises(ValueError, match=f"num_sectors={num_sectors}"):
        sector_of(jnp.zeros(2), num_sectors)


def test_a_room_without_extent_is_refused() -> None:
    with pytest.raises(ValueError, match="radius=0"):
        sectors(radius=0.0)
    with pytest.raises(ValueError, match="length=0"):
        sectors(length=0.0)
    with pytest.raises(ValueError, match="radius=-1"):
        sector_of(jnp.zeros(2), radius=-1.0)


@pytest.mark.parametrize(
    "position, expected",
    [
        ((0, 0), -1),
        ((0.49, 0.49), -1),
        ((0.51, 0.51), 0),
        ((-0.51, 0.51), 1),
        ((-0.51, -0.51), 2),
        ((0.51, -0.51), 3),
        ((5, 0.1), 0),
        ((0.1, 5), 0),
        ((-0.1, 5), 1),
        ((5, -0.1), 3),
        ((100, 100), 0),
    ],
)
def test_the_sector_of_a_position(position: tuple[float, float], expected: int) -> None:
    # The room is the square with corners at 1 on both axes.
    assert sector_of(jnp.array(position, float), radius=1.0) == expected


def test_the_sides_of_the_room_belong_to_it() -> None:
    sides = jnp.array([[0.5, 0.5], [-0.5, 0.5], [-0.25, -0.75]])
    np.testing.assert_array_equal(sector_of(sides, radius=1.0), [-1] * 3)


def test_the_line_between_two_sectors_belongs_to_the_lower() -> None:
    assert sector_of(jnp.array([0.0, 2.0])) == 0


@pytest.mark.parametrize("num_sectors", [3, 4, 7])
def test_sectors_are_told_by_the_angle(num_sectors: int, getkey: GetKey) -> None:
    angle_key, radius_key = jr.split(getkey())
    angles = np.asarray(jr.uniform(angle_key, (6, 50), maxval=2 * np.pi))
    distances = np.asarray(jr.uniform(radius_key, (6, 50), maxval=2.0))
    positions = distances[..., None] * np.stack([np.cos(angles), np.sin(angles)], -1)
    width = 2 * np.pi / num_sectors
    expected = np.floor(angles / width)
    from_center = angles - (expected + 0.5) * width
    inside = distances * np.cos(from_center) <= 0.5 * np.cos(width / 2)
    given = sector_of(jnp.asarray(positions), num_sectors)
    np.testing.assert_array_equal(given, np.where(inside, -1, expected))
    assert len(np.unique(given)) == num_sectors + 1


@eqx.filter_jit
def _walks(
    env: Point, start: Float[Array, "2"], actions: Float[Array, "time walks 2"]
) -> Float[Array, "time walks 2"]:
    """Where points come by that all begin at one place."""
    begin, _ = env.reset(key=jr.key(0))
    begin = eqx.tree_at(lambda state: state.position, begin, start)

    def step(
        states: PointState, actions: Float[Array, "walks 2"]
    ) -> tuple[PointState, Float[Array, "walks 2"]]:
        states, _ = jax.vmap(lambda x, a: env.step(x, a, key=jr.key(0)))(
            states, actions
        )
        return states, states.position

    num_walks = actions.shape[1]
    states = jax.tree.map(lambda x: jnp.stack([x] * num_walks), begin)
    return lax.scan(step, states, actions)[1]


def _random_actions(key: PRNGKeyArray) -> Float[Array, "300 300 2"]:
    """Of 300 walks; half of the steps are as long as they can be."""
    random = np.random.default_rng(int(jr.randint(key, (), 0, 2**30)))
    actions = random.uniform(-1, 1, (300, 300, 2))
    far = random.random((300, 300, 1)) < 0.5
    return jnp.asarray(np.where(far, np.sign(actions), actions), dtype=float)


def test_a_move_that_ends_at_a_corner_does_not_happen() -> None:
    # The corner of the room at (-0.2, 0), as far as floats tell. Fused arithmetic
    # rounds otherwise than that of single operations.
    env = Point(walls=sectors(5, radius=0.2), num_open=2)
    walk = jnp.array([[-1.0, -1.0], [-1.0, 1.0]])[:, None]
    positions = _walks(env, jnp.zeros(2), walk)
    np.testing.assert_allclose(positions[-1], [[-0.1, -0.1]], rtol=1e-6)


@pytest.mark.parametrize("num_sectors", [4, 5])
def test_a_random_walk_enters_open_sectors_only(
    num_sectors: int, getkey: GetKey
) -> None:
    env = Point(walls=sectors(num_sectors, radius=0.2), num_open=2)
    positions = _walks(env, jnp.zeros(2), _random_actions(getkey()))
    visited = np.unique(sector_of(positions, num_sectors, radius=0.2))
    np.testing.assert_array_equal(visited, [-1, 0, 1])


def test_a_walk_within_a_closed_sector_stays_there(getkey: GetKey) -> None:
    env = Point(walls=sectors(4, radius=0.2), num_open=2)
    start = jnp.array([-0.15, -0.15])
    assert sector_of(start, radius=0.2) == 2
    positions = _walks(env, start, _random_actions(getkey()))
    np.testing.assert_array_equal(sector_of(positions, radius=0.2), 2)


@pytest.mark.parametrize("num_sectors", [4, 5])
def test_nothing_slips_through_at_a_corner(num_sectors: int, getkey: GetKey) -> None:
    # Every move goes by a corner, at distances from where floats can be told apart.
    env = Point(walls=sectors(num_sectors), num_open=1)
    corners = np.array(env.walls)[:num_sectors, 0]
    random = np.random.default_rng(int(jr.randint(getkey(), (), 0, 2**30)))
    shape = (num_sectors, 20_000)
    angle = random.uniform(0, 2 * np.pi, shape)
    along = np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    across = np.stack([-np.sin(angle), np.cos(angle)], axis=-1)
    back = 0.1 * random.random(shape)
    aside = random.choice([-1, 1], shape) * 10 ** random.uniform(-9, -1, shape)
    starts = corners[:, None] - back[..., None] * along + aside[..., None] * across
    starts = jnp.asarray(starts.reshape(-1, 2), dtype=float)
    state, _ = env.reset(key=jr.key(0))

    @jax.jit
    @jax.vmap
    def move(start: Float[Array, "2"], action: Float[Array, "2"]) -> Float[Array, "2"]:
        from_start = eqx.tree_at(lambda state: state.position, state, start)
        return env.step(from_start, action, key=jr.key(0))[0].position

    ends = move(starts, jnp.asarray(along.reshape(-1, 2), dtype=float))
    left, reached = (np.asarray(sector_of(x, num_sectors)) for x in (starts, ends))
    moved = left != reached
    # Only the open side of the room is crossed, and it is.
    assert set(left[moved]) == set(reached[moved]) == {-1, 0}
