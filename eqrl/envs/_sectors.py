import math

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._pytree.fields import check_integer, check_range
from ._point import PlanePoint, Wall


def _check(num_sectors: int, radius: float) -> None:
    check_integer("num_sectors", num_sectors, least=3)
    check_range("radius", radius, low=0, low_open=True)


def sectors(
    num_sectors: int = 4, *, radius: float = 0.5, length: float = 8.0
) -> tuple[Wall, ...]:
    """Walls for a [`eqrl.envs.Point`][]: a room and the sectors around it.

    The room is a regular polygon around the origin. Outside each of its sides lies a
    sector, separated from its neighbors by walls that go outwards from the corners.
    Sector j lies between the angles `2 * pi * j / num_sectors` and `2 * pi * (j + 1) /
    num_sectors`, counter-clockwise from the x axis: four of them are the quadrants. The
    sides come first, in the order of the sectors, so that
    `Point(walls=eqrl.envs.sectors(4), num_open=2)` can enter only sectors 0 and 1.

    With the defaults and steps of 0.1 a point can leave the room in four steps, but
    cannot walk around the end of a wall in 60.

    **Arguments:**

    - `num_sectors`: the number of sectors, at least 3.
    - `radius`: from the origin to the corners of the room, positive.
    - `length`: of the walls that go outwards, positive; long enough that no episode
        reaches their ends.

    **Returns:**

    `num_sectors` sides, then as many outward walls, which stay closed as long as
    `num_open` is at most `num_sectors`.
    """
    _check(num_sectors, radius)
    check_range("length", length, low=0, low_open=True)
    angles = [2 * math.pi * j / num_sectors for j in range(num_sectors)]
    corners = [_at(radius, angle) for angle in angles]
    ends = [_at(radius + length, angle) for angle in angles]
    # Walls that meet share a corner to the last bit, so there is no gap.
    sides = zip(corners, [*corners[1:], corners[0]], strict=True)
    return (*sides, *zip(corners, ends, strict=True))


def _at(radius: float, angle: float) -> PlanePoint:
    return radius * math.cos(angle), radius * math.sin(angle)


def sector_of(
    position: Float[Array, "*batch 2"], num_sectors: int = 4, *, radius: float = 0.5
) -> Int[Array, "*batch"]:
    """The sector of [`eqrl.envs.sectors`][] that a position lies in.

    **Arguments:**

    - `position`: x and y, with any leading axes.
    - `num_sectors`, `radius`: as given to `sectors`.

    **Returns:**

    The sector's number, or -1 within the room, including its sides. A position between
    two sectors belongs to the one of lower number. Sectors go on beyond the ends of
    their walls.
    """
    _check(num_sectors, radius)
    angles = [(2 * j + 1) * math.pi / num_sectors for j in range(num_sectors)]
    x, y = position[..., 0], position[..., 1]
    # How far each sector's direction leads to it: to the sector's side of the room,
    # `radius * cos(pi / num_sectors)`; and equally far on the line between two sectors.
    distances = jnp.stack([math.cos(a) * x + math.sin(a) * y for a in angles])
    within = jnp.max(distances, axis=0) <= radius * math.cos(math.pi / num_sectors)
    return jnp.where(within, -1, jnp.argmax(distances, axis=0))
