from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from eqrl import (
    AbstractTrajectory,
    ConstantTrajectory,
    LinearTrajectory,
    QuadraticTrajectory,
    Trajectory,
)

from . import taac_restated as restated


FAMILIES: dict[str, AbstractTrajectory] = {
    "constant": ConstantTrajectory(),
    "linear": LinearTrajectory(),
    "linear, not inverse": LinearTrajectory(inverse=False),
    "quadratic": QuadraticTrajectory(),
    "quadratic, not inverse": QuadraticTrajectory(inverse=False),
}


def numbers() -> np.ndarray:
    """An output and the parts of a trajectory, as rows `(4, rows, 2)`.

    Bounds and their halves in every combination, where sums land on bounds, and rows
    drawn at random.
    """
    special = [-1.0, -0.5, 0.0, 0.5, 1.0]
    grid = np.stack(np.meshgrid(*[special] * 4), axis=0).reshape(4, -1)
    rows = np.stack([grid, grid[:, ::-1]], axis=-1)
    random = np.random.default_rng(0).uniform(-1, 1, (4, 1000, 2))
    return np.concatenate([rows, random], axis=1).astype(np.float32)


def from_parts(parts: Any) -> Trajectory:
    return Trajectory(*(jnp.asarray(part, jnp.float32) for part in parts))


def check(actual: Trajectory, expected: Any) -> None:
    parts = restated.parts_of(actual)
    assert len(parts) == len(expected)
    for part, other in zip(parts, expected, strict=True):
        np.testing.assert_allclose(part, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", list(FAMILIES))
def test_maps_and_their_derivatives_are_as_restated_in_numpy(name: str) -> None:
    family = FAMILIES[name]
    x, *values = numbers()
    parts = tuple(values[: family.num_parts])
    trajectory = from_parts(parts)
    check(family.keep(trajectory), restated.keep(family, parts))
    # At a bound the derivative is that of the inside.
    new, derivative = jax.jvp(
        lambda output: family.new(trajectory, output),
        (jnp.asarray(x),),
        (jnp.ones_like(x),),
    )
    check(new, restated.new(family, x, parts))
    check(derivative, restated.chain(family, x, parts))


@pytest.mark.parametrize("name", list(FAMILIES))
def test_an_episode_begins_on_zeros(name: str) -> None:
    family = FAMILIES[name]
    check(family.begin(3), (np.zeros(3),) * family.num_parts)


def test_a_line_goes_on_to_its_bound_and_stays() -> None:
    family = LinearTrajectory()
    trajectory = family.new(family.begin(1), jnp.array([0.4]))
    actions = [0.4]
    for _ in range(3):
        trajectory = family.keep(trajectory)
        actions.append(float(trajectory.action[0]))
    np.testing.assert_allclose(actions, [0.4, 0.8, 1.0, 1.0], rtol=1e-6)
    check(trajectory, ([1.0], [0.2]))


def test_a_parabola_accelerates() -> None:
    # u = 0.05: v = 0.1, 0.2, 0.3 and a = 0.2, 0.6, 1.2 (clipped).
    family = QuadraticTrajectory()
    trajectory = family.new(family.begin(1), jnp.array([0.2]))
    actions = [float(trajectory.action[0])]
    for _ in range(2):
        trajectory = family.keep(trajectory)
        actions.append(float(trajectory.action[0]))
    np.testing.assert_allclose(actions, [0.2, 0.6, 1.0], rtol=1e-6)
    check(trajectory, ([1.0], [0.3], [0.05]))


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_trajectory_may_have_leading_axes(name: str) -> None:
    family = FAMILIES[name]
    values = np.linspace(-1, 1, 24).reshape(4, 3, 2).astype(np.float32)
    parts = values[1 : 1 + family.num_parts]
    kept = family.keep(from_parts(parts))
    for row in range(3):
        one = family.keep(from_parts(parts[:, row]))
        check(one, [part[row] for part in restated.parts_of(kept)])


@pytest.mark.parametrize("family", [LinearTrajectory(), QuadraticTrajectory()])
def test_a_trajectory_of_another_family_is_refused(family: AbstractTrajectory) -> None:
    with pytest.raises(ValueError, match="=None`: this family"):
        family.keep(Trajectory(action=jnp.zeros(1)))
