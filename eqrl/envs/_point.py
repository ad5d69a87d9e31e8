import math
from collections.abc import Sequence
from typing import Annotated

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._pytree.fields import (
    AtLeast,
    Count,
    Range,
    check_fields,
    checked,
    converted_field,
    hyperparameter,
    static_integer,
    whole_number,
)
from .._types.custom_types import FloatLike
from .._types.data import EnvSpec
from ._base import AbstractEnv, Outcome


PlanePoint = tuple[float, float]
Wall = tuple[PlanePoint, PlanePoint]

_NumSectors = Annotated[int, AtLeast(3)]
_Length = Annotated[float | int, Range(low=0, low_open=True)]


def _point(value: Sequence[float | int]) -> PlanePoint:
    x, y = value
    return float(x), float(y)


class PointState(eqx.Module):
    """Position and last action of the point, and the number of steps."""

    position: Float[Array, "2"]
    last_action: Float[Array, "2"]
    num_steps: Int[Array, ""]


class Point(AbstractEnv[PointState]):
    """A point that moves in a plane, for experiments with skills.

    It starts at the origin. An action, clipped to [-1, 1], moves it by `step_size`
    times the action; a move that would touch a wall does not happen. The observation
    is x, y and the last action, initially zero. The state descriptor is the position.
    An episode never terminates; its time limit is `max_steps`.

    The first `num_open` walls are open, as if they were not there. `num_open` is a
    leaf, so a world whose walls open one after another, such as that of
    `eqrl.envs.sectors`, compiles once.

    The reward is 0 or, if there is a `goal`, minus the remaining distance to it.
    """

    step_size: FloatLike = hyperparameter(0.1, low=0, low_open=True)
    max_steps: Count = static_integer(50, least=1)
    walls: tuple[Wall, ...] = converted_field(
        (),
        convert=lambda value: tuple((_point(a), _point(b)) for a, b in value),
        what="must be a tuple of walls `((x0, y0), (x1, y1))`.",
        static=True,
    )
    goal: PlanePoint | None = converted_field(
        None,
        convert=lambda value: None if value is None else _point(value),
        what="must be `(x, y)` or None.",
        static=True,
    )
    num_open: int | Int[Array, ""] = whole_number(0)

    def __check_init__(self) -> None:
        # Equinox runs this before that of the base class, which would check the fields.
        check_fields(self)
        Range(low=0, high=len(self.walls)).check("num_open", self.num_open)
        for (x0, y0), (x1, y1) in self.walls:
            if x0 * y1 == x1 * y0 and x0 * x1 + y0 * y1 <= 0:
                raise ValueError(
                    f"The wall `(({x0}, {y0}), ({x1}, {y1}))` of `walls` touches the "
                    "origin, where the point starts and from where it could not move."
                )

    @property
    def spec(self) -> EnvSpec:
        return EnvSpec(
            observation_size=4,
            action_size=2,
            state_descriptor_size=2,
            max_steps=self.max_steps,
        )

    def reset(self, *, key: PRNGKeyArray) -> tuple[PointState, Float[Array, "4"]]:
        del key
        state = PointState(
            position=jnp.zeros(2),
            last_action=jnp.zeros(2),
            num_steps=jnp.array(0, dtype=jnp.result_type(int)),
        )
        return state, _observe(state)

    def step(
        self, state: PointState, action: Float[Array, "2"], *, key: PRNGKeyArray
    ) -> tuple[PointState, Outcome]:
        del key
        action = jnp.clip(action, -1, 1)
        position = state.position + self.step_size * action
        if len(self.walls) > 0:
            walls = jnp.array(self.walls)
            blocked = jax.vmap(_touch, in_axes=(None, None, 0, 0))(
                state.position, position, walls[:, 0], walls[:, 1]
            )
            closed = jnp.arange(len(self.walls)) >= self.num_open
            position = jnp.where(jnp.any(blocked & closed), state.position, position)
        reward = jnp.zeros(())
        if self.goal is not None:
            reward = -jnp.linalg.norm(position - jnp.array(self.goal))
        state = PointState(
            position=position, last_action=action, num_steps=state.num_steps + 1
        )
        outcome = Outcome(
            observation=_observe(state),
            reward=reward,
            terminated=jnp.array(False),
            truncated=state.num_steps >= self.max_steps,
        )
        return state, outcome

    def state_descriptor(self, state: PointState) -> Float[Array, "2"]:
        return state.position


Point.__init__.__doc__ = """**Arguments:**

- `step_size`: the longest step along each axis; positive.
- `max_steps`: length of an episode, at least 1.
- `walls`: segments `((x0, y0), (x1, y1))`, none through the origin.
- `goal`: `(x, y)`, or `None` for no reward.
- `num_open`: how many of the walls, from the first, are open: 0 to all of them.
"""


def _observe(state: PointState) -> Float[Array, "4"]:
    return jnp.concatenate([state.position, state.last_action])


def _side(
    start: Float[Array, "2"],
    end: Float[Array, "2"],
    point: Float[Array, "2"],
    margin: Float[Array, ""],
) -> Float[Array, ""]:
    """The side of a line, 1 or -1; 0 within a distance of `margin` from it."""
    along, across = end - start, point - start
    # The distance from the line times the length of `along`.
    area = along[0] * across[1] - along[1] * across[0]
    near = jnp.abs(area) <= margin * jnp.hypot(along[0], along[1])
    return jnp.where(near, 0.0, jnp.sign(area))


def _touch(
    start: Float[Array, "2"],
    end: Float[Array, "2"],
    wall_start: Float[Array, "2"],
    wall_end: Float[Array, "2"],
) -> Bool[Array, ""]:
    """Whether two segments have a point in common.

    They do if each reaches both sides of the other's line and, which matters only for
    collinear segments, their bounding boxes meet.
    """
    # More than the rounding error of a distance: a move that ends where two walls meet
    # must not pass between them.
    largest = jnp.max(jnp.abs(jnp.stack([wall_start, wall_end])))
    margin = 16 * jnp.finfo(largest.dtype).eps * largest
    walls_line = _side(wall_start, wall_end, start, margin) * _side(
        wall_start, wall_end, end, margin
    )
    moves_line = _side(start, end, wall_start, margin) * _side(
        start, end, wall_end, margin
    )
    boxes_meet = jnp.all(
        (jnp.minimum(start, end) <= jnp.maximum(wall_start, wall_end) + margin)
        & (jnp.minimum(wall_start, wall_end) - margin <= jnp.maximum(start, end))
    )
    return (walls_line <= 0) & (moves_line <= 0) & boxes_meet


@checked
def sectors(
    num_sectors: _NumSectors = 4, *, radius: _Length = 0.5, length: _Length = 8.0
) -> tuple[Wall, ...]:
    """Walls for an `eqrl.envs.Point`: a room and the sectors around it.

    The room is a regular polygon around the origin. Outside each of its sides lies a
    sector, separated from its neighbors by walls that go outwards from the corners.
    Sector j lies between the angles `2 * pi * j / num_sectors` and `2 * pi * (j + 1) /
    num_sectors`, counter-clockwise from the x axis: four of them are the quadrants. The
    sides come first, in the order of the sectors, so that
    `Point(walls=eqrl.envs.sectors(4), num_open=2)` can enter only sectors 0 and 1.

    With the defaults and steps of 0.1 a point can leave the room in three steps, but
    cannot walk around the end of a wall in 60.

    **Arguments:**

    - `num_sectors`: the number of sectors, at least 3.
    - `radius`: distance from the origin to the corners of the room, positive.
    - `length`: length of the walls that go outwards, positive; long enough that no
        episode reaches their ends.

    **Returns:**

    `num_sectors` sides, then as many outward walls, which stay closed as long as
    `num_open` is at most `num_sectors`.
    """
    angles = [2 * math.pi * j / num_sectors for j in range(num_sectors)]
    corners = [_at(radius, angle) for angle in angles]
    ends = [_at(radius + length, angle) for angle in angles]
    # Walls that meet share a corner to the last bit, so that there is no gap.
    sides = zip(corners, [*corners[1:], corners[0]], strict=True)
    return (*sides, *zip(corners, ends, strict=True))


def _at(radius: float, angle: float) -> PlanePoint:
    return radius * math.cos(angle), radius * math.sin(angle)


@checked
def sector_of(
    position: Float[Array, "*batch 2"],
    num_sectors: _NumSectors = 4,
    *,
    radius: _Length = 0.5,
) -> Int[Array, "*batch"]:
    """The sector of `eqrl.envs.sectors` that a position lies in.

    **Arguments:**

    - `position`: x and y, with any leading axes.
    - `num_sectors`, `radius`: as given to `sectors`.

    **Returns:**

    The sector's number, or -1 within the room, including its sides. A position between
    two sectors belongs to the one of lower number. Sectors continue beyond the ends of
    their walls.
    """
    angles = [(2 * j + 1) * math.pi / num_sectors for j in range(num_sectors)]
    x, y = position[..., 0], position[..., 1]
    # The distance along the middle direction of each sector, largest in the sector that
    # the position lies in. The side of the room is at `radius * cos(pi / num_sectors)`.
    distances = jnp.stack([math.cos(a) * x + math.sin(a) * y for a in angles])
    within = jnp.max(distances, axis=0) <= radius * math.cos(math.pi / num_sectors)
    return jnp.where(within, -1, jnp.argmax(distances, axis=0))
