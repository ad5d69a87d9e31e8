from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class Trajectory(eqx.Module):
    """Where an action is, and how it goes on where nothing is decided."""

    action: Float[Array, "*batch act"]
    velocity: Float[Array, "*batch act"] | None = None
    acceleration: Float[Array, "*batch act"] | None = None


Trajectory.__init__.__doc__ = """**Arguments:**

- `action`: what is done at present, in [-1, 1].
- `velocity`: half of the action's change a step, in [-1, 1]; `None` in a
    `ConstantTrajectory`.
- `acceleration`: half of the velocity's change a step, in [-1, 1]; `None` but in a
    `QuadraticTrajectory`.
"""


class AbstractTrajectory(eqx.Module):
    """A family of trajectories: how one goes on, and how an actor's output begins one.

    Both maps are deterministic and elementwise, so a trajectory may have any leading
    axes. What they give lies in [-1, 1] wherever what they are given does: the bounds
    of all actions, and the only ones in which an action, its velocity and its
    acceleration can have the same range.
    """

    @property
    @abstractmethod
    def num_parts(self) -> int:
        """How many of action, velocity and acceleration a trajectory has."""

    @abstractmethod
    def begin(self, action_size: int) -> Trajectory:
        """The trajectory before the first step of an episode: all zeros."""

    @abstractmethod
    def keep(self, trajectory: Trajectory) -> Trajectory:
        """One step along a trajectory."""

    @abstractmethod
    def new(
        self, trajectory: Trajectory, output: Float[Array, "*batch act"]
    ) -> Trajectory:
        """The first step of a trajectory which leaves another.

        **Arguments:**

        - `trajectory`: the one that is left.
        - `output`: of the actor, in [-1, 1].
        """


def _clip(x: Float[Array, "*batch act"]) -> Float[Array, "*batch act"]:
    # The gradient at a bound is 1, where those of `jnp.clip` and `lax.clamp` are less.
    return jnp.where(jnp.abs(x) <= 1, x, jnp.sign(x))


def _given(
    part: Float[Array, "*batch act"] | None, name: str
) -> Float[Array, "*batch act"]:
    if part is None:
        raise ValueError(
            f"`{name}=None`: this family of trajectories needs one. Start from its "
            "`begin`, and do not mix families."
        )
    return part


class ConstantTrajectory(AbstractTrajectory):
    """Repeats an action. An actor's output is the next action."""

    @property
    def num_parts(self) -> int:
        return 1

    def begin(self, action_size: int) -> Trajectory:
        return Trajectory(action=jnp.zeros(action_size))

    def keep(self, trajectory: Trajectory) -> Trajectory:
        return Trajectory(action=trajectory.action)

    def new(
        self, trajectory: Trajectory, output: Float[Array, "*batch act"]
    ) -> Trajectory:
        del trajectory
        return Trajectory(action=output)


class LinearTrajectory(AbstractTrajectory):
    """Changes an action by as much at each step, up to its bounds."""

    inverse: bool = eqx.field(default=True, static=True)

    @property
    def num_parts(self) -> int:
        return 2

    def begin(self, action_size: int) -> Trajectory:
        return Trajectory(
            action=jnp.zeros(action_size), velocity=jnp.zeros(action_size)
        )

    def keep(self, trajectory: Trajectory) -> Trajectory:
        velocity = _given(trajectory.velocity, "velocity")
        # At a bound the velocity stays, and so does the action.
        return Trajectory(
            action=_clip(trajectory.action + 2 * velocity), velocity=velocity
        )

    def new(
        self, trajectory: Trajectory, output: Float[Array, "*batch act"]
    ) -> Trajectory:
        if self.inverse:
            return Trajectory(action=output, velocity=(output - trajectory.action) / 2)
        return Trajectory(action=_clip(trajectory.action + 2 * output), velocity=output)


LinearTrajectory.__init__.__doc__ = """**Arguments:**

- `inverse`: whether an actor's output is the next action, from which the velocity
    follows, rather than the velocity, from which the next action follows.
"""


class QuadraticTrajectory(AbstractTrajectory):
    """Changes an action's velocity by as much at each step, each up to its bounds."""

    inverse: bool = eqx.field(default=True, static=True)

    @property
    def num_parts(self) -> int:
        return 3

    def begin(self, action_size: int) -> Trajectory:
        return Trajectory(
            action=jnp.zeros(action_size),
            velocity=jnp.zeros(action_size),
            acceleration=jnp.zeros(action_size),
        )

    def keep(self, trajectory: Trajectory) -> Trajectory:
        acceleration = _given(trajectory.acceleration, "acceleration")
        velocity = _given(trajectory.velocity, "velocity")
        return _accelerate(trajectory.action, velocity, acceleration)

    def new(
        self, trajectory: Trajectory, output: Float[Array, "*batch act"]
    ) -> Trajectory:
        if self.inverse:
            velocity = (output - trajectory.action) / 2
            return Trajectory(
                action=output, velocity=velocity, acceleration=velocity / 2
            )
        # From a standstill: the velocity that is left plays no part.
        return _accelerate(trajectory.action, jnp.zeros_like(output), output)


QuadraticTrajectory.__init__.__doc__ = """**Arguments:**

- `inverse`: whether an actor's output is the next action, from which velocity and
    acceleration follow, rather than the acceleration, from which the others follow.
"""


def _accelerate(
    action: Float[Array, "*batch act"],
    velocity: Float[Array, "*batch act"],
    acceleration: Float[Array, "*batch act"],
) -> Trajectory:
    velocity = _clip(velocity + 2 * acceleration)
    return Trajectory(
        action=_clip(action + 2 * velocity),
        velocity=velocity,
        acceleration=acceleration,
    )
