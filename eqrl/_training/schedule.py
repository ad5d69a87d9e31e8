"""When a trainer steps and when it updates, as integers that may be traced."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from .._pytree.fields import check_integer


IntLike = int | Int[Array, ""]


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The sizes of a `Trainer` that decide when it steps and when it updates.

    Methods return Python integers if all that they are given is one.
    """

    num_envs: int
    warmup_steps: int
    steps_per_iteration: int
    updates_per_iteration: int

    @property
    def steps_of_iteration(self) -> int:
        """Environment steps in an iteration, summed over the environments."""
        return self.num_envs * self.steps_per_iteration

    @property
    def warmup_iterations(self) -> int:
        """Iterations before the first update, rounded up."""
        return -(-self.warmup_steps // self.steps_of_iteration)

    def warmup_left(self, rows_written: IntLike) -> IntLike:
        """Iterations of the warm-up that remain after so many rows."""
        done = rows_written // self.steps_per_iteration
        return _positive_part(self.warmup_iterations - done)

    def updates_in(self, num_iterations: IntLike, *, rows_written: IntLike) -> IntLike:
        """Updates made in the iterations that follow so many rows."""
        updating = _positive_part(num_iterations - self.warmup_left(rows_written))
        return updating * self.updates_per_iteration

    def check_num_steps(self, num_steps: int) -> None:
        """Raises a `ValueError` unless this is a whole number of iterations."""
        size = self.steps_of_iteration
        check_integer("num_steps", num_steps, least=0)
        if num_steps % size != 0:
            raise ValueError(
                f"`num_steps={num_steps}` must be a whole number of iterations, each "
                f"of num_envs * steps_per_iteration = {self.num_envs} * "
                f"{self.steps_per_iteration} = {size} environment steps; the nearest "
                f"are {num_steps // size * size} and {(num_steps // size + 1) * size}."
            )


def _positive_part(number: IntLike) -> IntLike:
    if isinstance(number, jax.Array):
        return jnp.maximum(number, 0)
    return max(number, 0)
