from abc import abstractmethod

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float


class Trajectory(eqx.Module):
    """An action and its rates of change, which continue it without a new decision."""

    action: Float[Array, "*batch act"]
    velocity: Float[Array, "*batch act"] | None = None
    acceleration: Float[Array, "*batch act"] | None = None


Trajectory.__init__.__doc__ = """**Arguments:**

- `action`: the current action, in [-1, 1].
- `velocity`: half of the action's change per step, in [-1, 1]; `None` in a
    `ConstantTrajectory`.
- `acceleration`: half of the velocity's change per step, in [-1, 1]; `None` except in a
    `QuadraticTrajectory`.
"""


class AbstractTrajectory(eqx.Module):
    """A family of trajectories: how one continues, and how an output begins one.

    Both maps are deterministic and elementwise, so a trajectory may have any leading
    axes. They map [-1, 1] to [-1, 1], the range of all actions. It is also the only
    range that an action, its velocity and its acceleration can share.
    """

    @property
    @abstractmethod
    def num_parts(self) -> int:
        """Number of parts of a trajectory: action, velocity, acceleration."""

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
        """The first step of a new trajectory.

        **Arguments:**

        - `trajectory`: the trajectory that it replaces.
        - `output`: the actor's output, in [-1, 1].
        """


def _clip(x: Float[Array, "*batch act"]) -> Float[Array, "*batch act"]:
    # The gradient at a bound is 1, as in the reference; that of `jnp.clip` and
    # `lax.clamp` is less.
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
    """Repeats an action. The actor's output is the next action."""

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
    """Changes an action by the same amount at each step, up to its bounds."""

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
        # A velocity is half of the change in a step, so that it too fits in [-1, 1]. It
        # is unchanged where the action is clipped, so the action stays at its bound.
        return Trajectory(
            action=_clip(trajectory.action + 2 * velocity), velocity=velocity
        )

    def new(
        self, trajectory: Trajectory, output: Float[Array, "*batch act"]
    ) -> Trajectory:
        if self.inverse:
            # Half the difference of two actions in [-1, 1] is in [-1, 1], too.
            return Trajectory(action=output, velocity=(output - trajectory.action) / 2)
        return Trajectory(action=_clip(trajectory.action + 2 * output), velocity=output)


LinearTrajectory.__init__.__doc__ = """**Arguments:**

- `inverse`: whether the actor's output is the next action, which determines the
    velocity, or the velocity, which determines the next action.
"""


class QuadraticTrajectory(AbstractTrajectory):
    """Changes an action's velocity by the same amount at each step, up to bounds."""

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
            # As if the action had been at rest: the whole velocity is the change of one
            # step, and the acceleration half of that.
            velocity = (output - trajectory.action) / 2
            return Trajectory(
                action=output, velocity=velocity, acceleration=velocity / 2
            )
        # The velocity of the replaced trajectory is dropped, as in the reference.
        return _accelerate(trajectory.action, jnp.zeros_like(output), output)


QuadraticTrajectory.__init__.__doc__ = """**Arguments:**

- `inverse`: whether the actor's output is the next action, which determines velocity
    and acceleration, or the acceleration, which determines the other two.
"""


def _accelerate(
    action: Float[Array, "*batch act"],
    velocity: Float[Array, "*batch act"],
    acceleration: Float[Array, "*batch act"],
) -> Trajectory:
    # The action moves by the updated velocity.
    velocity = _clip(velocity + 2 * acceleration)
    return Trajectory(
        action=_clip(action + 2 * velocity),
        velocity=velocity,
        acceleration=acceleration,
    )
