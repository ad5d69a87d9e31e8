from typing import Annotated

import equinox as eqx
import jax.core
import jax.lax as lax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from .._pytree.fields import PositiveInt, Range, checked
from .._types.custom_types import FloatLike


_Size = Annotated[float | int, Range(low=0, low_open=True)]


class SkillTrajectories(eqx.Module):
    """Descriptors along episodes of several skills."""

    descriptors: Float[Array, "skills episodes time descriptor"]
    mask: Bool[Array, "skills episodes time"]
    first_descriptors: Float[Array, "skills episodes descriptor"] | None = None


SkillTrajectories.__init__.__doc__ = """**Arguments:**

- `descriptors`: descriptor of the state reached by each step, such as the transitions'
    `next_state_descriptor`.
- `mask`: which steps are within the episode; all other values are meaningless.
- `first_descriptors`: that of the state before the first step of each episode; `None`
    if unknown.
"""


def terminal_descriptors(
    descriptors: Float[Array, "*episodes time descriptor"],
    mask: Bool[Array, "*episodes time"],
) -> Float[Array, "*episodes descriptor"]:
    """The last descriptor within each episode.

    **Arguments:**

    - `descriptors`: those of the states reached, as in `SkillEvaluation`, with any
        leading axes, such as skills and episodes.
    - `mask`: which steps are within the episode.

    **Returns:**

    One descriptor for each episode, `nan` for an episode without steps.
    """
    # `argmax` finds the first true value, so of the reversed mask the last one.
    last = mask.shape[-1] - 1 - jnp.argmax(jnp.flip(mask, axis=-1), axis=-1)
    ends = jnp.take_along_axis(descriptors, last[..., None, None], axis=-2)[..., 0, :]
    return jnp.where(jnp.any(mask, axis=-1, keepdims=True), ends, jnp.nan)


def hausdorff_distance(
    first: Float[Array, "first descriptor"], second: Float[Array, "second descriptor"]
) -> Float[Array, ""]:
    """Hausdorff distance between two sets of points.

    It is the largest Euclidean distance from a point of either set to the nearest point
    of the other: 0 if and only if the sets are equal.

    **Arguments:**

    - `first`, `second`: sets of at least one point each, with one point in each row.

    ??? cite "Reference"

        ```bibtex
        @article{belogay1997calculating,
            title={Calculating the Hausdorff Distance Between Curves},
            author={Belogay, E. and Cabrelli, C. and Molter, U. and Shonkwiler, R.},
            journal={Information Processing Letters},
            volume={64},
            number={1},
            pages={17--22},
            year={1997},
        }
        ```
    """
    if not first.ndim == second.ndim == 2 or first.shape[1] != second.shape[1]:
        raise ValueError(
            f"`first` and `second` have the shapes {first.shape} and {second.shape}; "
            "both must have a point in each row, all of the same size."
        )
    if first.shape[0] == 0 or second.shape[0] == 0:
        raise ValueError(
            f"There are {first.shape[0]} and {second.shape[0]} points; a Hausdorff "
            "distance is between sets of at least one point each."
        )
    distances = _distances(first, second)
    return jnp.maximum(
        jnp.max(jnp.min(distances, axis=1)), jnp.max(jnp.min(distances, axis=0))
    )


def pairwise_hausdorff(
    points: Float[Array, "skills episodes descriptor"],
) -> Float[Array, ""]:
    """Mean Hausdorff distance between pairs of skills.

    Two skills that behave alike lower the mean, no matter how many others differ; see
    `union_hausdorff` for another mean.

    **Arguments:**

    - `points`: at least one for each of at least 2 skills, such as
        `terminal_descriptors`.

    **Returns:**

    The mean over all pairs, in units of the descriptor.
    """
    _check_points(points)
    # From the furthest point of one skill to another skill, for all pairs.
    directed = jnp.max(_nearest(points), axis=1)
    distances = jnp.maximum(directed, directed.T)
    # Each pair once, and no skill with itself.
    return jnp.mean(distances[np.triu_indices(points.shape[0], k=1)])


def union_hausdorff(
    points: Float[Array, "skills episodes descriptor"],
) -> Float[Array, ""]:
    """Mean Hausdorff distance between a skill and all others together.

    The mean over skills of the Hausdorff distance between a skill's points and the
    points of all other skills together. It is mostly decided by the point of another
    skill that is furthest from those of this one.

    **Arguments:**

    - `points`: at least one for each of at least 2 skills, such as
        `terminal_descriptors`.

    **Returns:**

    The mean, in units of the descriptor.
    """
    _check_points(points)
    nearest = _nearest(points)
    own = jnp.eye(points.shape[0], dtype=bool)
    # From each point of a skill to the nearest of all others, then the furthest.
    to_others = jnp.min(jnp.where(own[:, None, :], jnp.inf, nearest), axis=2)
    outwards = jnp.max(to_others, axis=1)
    # From each point of the others to the nearest of this skill, on the last axis.
    inwards = jnp.max(jnp.where(own, -jnp.inf, jnp.max(nearest, axis=1)), axis=0)
    return jnp.mean(jnp.maximum(outwards, inwards))


def nearest_distance(
    points: Float[Array, "skills episodes descriptor"],
) -> Float[Array, ""]:
    """Mean distance between a skill and its nearest neighbor.

    The distance is between the means of their points. It is small if skills form
    groups, which `pairwise_hausdorff` and `union_hausdorff` do not show.

    **Arguments:**

    - `points`: at least one for each of at least 2 skills, such as
        `terminal_descriptors`.

    **Returns:**

    The mean, in units of the descriptor.
    """
    _check_points(points)
    centers = jnp.mean(points, axis=1)
    own = jnp.eye(points.shape[0], dtype=bool)
    distances = jnp.where(own, jnp.inf, _distances(centers, centers))
    return jnp.mean(jnp.min(distances, axis=1))


@checked
def coverage(
    descriptors: Float[Array, "*steps descriptor"],
    mask: Bool[Array, "*steps"],
    *,
    low: FloatLike | Float[Array, " descriptor"],
    high: FloatLike | Float[Array, " descriptor"],
    num_bins: PositiveInt,
) -> Float[Array, ""]:
    """Share of a region that was visited, in cells of a regular grid.

    **Arguments:**

    - `descriptors`: those of the states reached, with any leading axes.
    - `mask`: which of them count, such as those within an episode.
    - `low`, `high`: bounds of the region, inclusive, for all elements of the descriptor
        or for each. Descriptors outside are ignored.
    - `num_bins`: number of cells along each side of the region.

    **Returns:**

    The number of cells visited divided by the number of cells, which is `num_bins` to
    the power of the length of a descriptor: in [0, 1].
    """
    size = descriptors.shape[-1]
    num_cells = num_bins**size
    if num_cells >= 2**31:
        raise ValueError(
            f"`num_bins={num_bins}` makes a grid of {num_cells} cells in the {size} "
            "dimensions of a descriptor, too many to count; take fewer."
        )
    rows = descriptors.reshape(-1, size)
    low, high = _region(low, high, rows)
    within = jnp.all((rows >= low) & (rows <= high), axis=1) & mask.reshape(-1)
    share = jnp.where(within[:, None], (rows - low) / (high - low), 0.0)
    # The upper bound belongs to the last cell.
    parts = jnp.minimum((share * num_bins).astype(jnp.int32), num_bins - 1)
    weights = np.array([[num_bins**power for power in range(size)]], dtype=np.int32)
    cells = jnp.where(within, jnp.sum(parts * weights, axis=1), num_cells)
    visited = jnp.zeros(num_cells, bool).at[cells].set(True, mode="drop")
    return jnp.sum(visited).astype(descriptors.dtype) / num_cells


@checked
def visited_cells(
    descriptors: Float[Array, "*steps descriptor"],
    mask: Bool[Array, "*steps"],
    *,
    first: Float[Array, "*episodes descriptor"] | None = None,
    size: _Size = 1.0,
) -> tuple[Int[np.ndarray, "cells descriptor"], Int[np.ndarray, " cells"]]:
    """Cells of a grid without bounds that were visited, and how often.

    A cell begins at each multiple of `size`, also below 0. With the defaults the number
    of cells that 48 episodes visit is the state coverage of METRA and its successors.

    **Arguments:**

    - `descriptors`: those of the states reached, with any leading axes.
    - `mask`: which of them count, such as those within an episode.
    - `first`: those of the states in which episodes began, which count as visited; such
        as `first_descriptors` of a `SkillEvaluation`.
    - `size`: length of a cell along each axis, positive.

    **Returns:**

    The cells as integers, -1 where a descriptor is in [-`size`, 0), each once and in
    order; and the number of states in each.
    """
    axes = descriptors.shape[-1]
    reached = np.asarray(descriptors)[np.asarray(mask)]
    began = np.asarray(first).reshape(-1, axes) if first is not None else reached[:0]
    positions = np.concatenate([began, reached])
    cells = np.floor(positions / size).astype(np.int64)
    return np.unique(cells, axis=0, return_counts=True)


def _region(
    low: FloatLike | Float[Array, "..."],
    high: FloatLike | Float[Array, "..."],
    rows: Float[Array, "rows descriptor"],
) -> tuple[Float[Array, "1 descriptor"], Float[Array, "1 descriptor"]]:
    """The bounds of each element of the descriptors in `rows`, in their type."""
    size = rows.shape[1]
    for name, value in (("low", low), ("high", high)):
        if np.shape(value) not in ((), (size,)):
            raise ValueError(
                f"`{name}` has shape {np.shape(value)}; give one number, or one for "
                f"each of the {size} elements of a descriptor."
            )
    # Traced bounds have no values to compare.
    if not isinstance(low, jax.core.Tracer) and not isinstance(high, jax.core.Tracer):
        ends = np.asarray(low, float), np.asarray(high, float)
        if not (np.all(np.isfinite(ends[1] - ends[0])) and np.all(ends[0] < ends[1])):
            raise ValueError(
                f"`low={ends[0].tolist()}` must be below `high={ends[1].tolist()}` in "
                "every element, and both finite."
            )
    low, high = (jnp.asarray(x, dtype=rows.dtype) for x in (low, high))
    return jnp.broadcast_to(low, (1, size)), jnp.broadcast_to(high, (1, size))


def _check_points(points: Float[Array, "skills episodes descriptor"]) -> None:
    if points.ndim != 3 or points.shape[0] < 2 or points.shape[1] < 1:
        raise ValueError(
            f"`points` has shape {points.shape}; it must be of shape (skills, episodes,"
            " descriptor), with at least 2 skills to compare and 1 episode of each."
        )


def _distances(
    first: Float[Array, "first descriptor"], second: Float[Array, "second descriptor"]
) -> Float[Array, "first second"]:
    # |a|^2 + |b|^2 - 2ab would be mostly rounding error far from the origin.
    return jnp.linalg.norm(first[:, None] - second[None], axis=-1)


def _nearest(
    points: Float[Array, "skills episodes descriptor"],
) -> Float[Array, "skills episodes skills"]:
    """Distance from each point to the nearest point of each skill."""
    num_skills, num_episodes, size = points.shape
    everything = points.reshape(-1, size)

    def of_skill(own: Float[Array, "episodes descriptor"]) -> Float[Array, "..."]:
        distances = _distances(own, everything)
        return jnp.min(distances.reshape(-1, num_skills, num_episodes), axis=2)

    # One skill at a time: the distances of all points to all would need as many times
    # the memory as there are skills.
    return lax.map(of_skill, points)
