"""When a trainer steps and when it updates, as integers that may be traced."""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from .._pytree.fields import check_integer


IntLike = int | Int[Array, ""]


class Counts(eqx.Module):
    """Progress counters, shared by a population and so never batched.

    They are kept beside the state of a trainer, not in it: under `vmap` a batched
    position would turn every write to the replay into a copy of the replay.

    With 32-bit integers they count to 2^31 - 1. A training that would exceed that is
    refused before its first step.
    """

    updates: Int[Array, ""]
    rows_written: Int[Array, ""]
    rows_kept: Int[Array, ""]

    def after_rows(self, num_rows: IntLike) -> "Counts":
        """These counts after more rows, without an update."""
        return dataclasses.replace(self, rows_written=self.rows_written + num_rows)


Counts.__init__.__doc__ = """**Arguments:**

- `updates`: updates of the agent so far.
- `rows_written`: rows written to the replay since it was last reset; a row is one
    transition of every environment.
- `rows_kept`: rows that were kept when the replay was last reset.
"""


def rows_so_far(counts: Counts) -> Int[Array, ""]:
    """The rows that a replay was ever given, which is the number of its next row."""
    return counts.rows_kept + counts.rows_written


def first_counts(rows_kept: IntLike = 0) -> Counts:
    """The counts at the beginning of a training, whose replay may hold rows already."""
    # Separate arrays, since a state that holds one array twice cannot be donated.
    return Counts(
        updates=jnp.zeros((), int),
        rows_written=jnp.zeros((), int),
        rows_kept=jnp.asarray(rows_kept, int),
    )


@dataclasses.dataclass(frozen=True)
class Schedule:
    """The sizes of a `Trainer` that decide when it steps and when it updates.

    Methods return Python integers if all of their arguments are Python integers.
    """

    num_envs: int
    capacity: int
    warmup_steps: int
    steps_per_iteration: int
    updates_per_iteration: int

    @property
    def rows(self) -> int:
        """Rows that the replay holds, each with one transition per environment."""
        return self.capacity // self.num_envs

    @property
    def steps_of_iteration(self) -> int:
        """Environment steps in an iteration, summed over the environments."""
        return self.num_envs * self.steps_per_iteration

    @property
    def warmup_iterations(self) -> int:
        """Iterations before the first update, rounded up."""
        return -(-self.warmup_steps // self.steps_of_iteration)

    def warmup_left(self, rows_written: IntLike) -> IntLike:
        """Iterations of the warm-up that remain after a number of rows."""
        done = rows_written // self.steps_per_iteration
        return _positive_part(self.warmup_iterations - done)

    def updates_in(self, num_iterations: IntLike, *, rows_written: IntLike) -> IntLike:
        """Updates made in the iterations that follow a number of rows."""
        updating = _positive_part(num_iterations - self.warmup_left(rows_written))
        return updating * self.updates_per_iteration

    def counts_after(self, counts: Counts, num_iterations: IntLike) -> Counts:
        """The counts after a number of iterations."""
        updates = self.updates_in(num_iterations, rows_written=counts.rows_written)
        after = counts.after_rows(num_iterations * self.steps_per_iteration)
        return dataclasses.replace(after, updates=counts.updates + updates)

    def check_counters(self, name: str, num_steps: int, counts: Counts) -> None:
        """Checks that the counters can hold a training.

        `name` is the argument that asks for `num_steps` steps beyond `counts`.
        """
        most = int(jnp.iinfo(jnp.result_type(int)).max)
        rows, updates = int(counts.rows_written), int(counts.updates)
        waiting = int(self.warmup_left(rows))
        left = (most - rows - int(counts.rows_kept)) // self.steps_per_iteration
        if self.updates_per_iteration > 0:
            updating = (most - updates) // self.updates_per_iteration
            left = min(left, waiting + updating)
        size = self.steps_of_iteration
        if num_steps > left * size:
            raise ValueError(
                f"`{name}={num_steps}` is too much after {rows} rows and {updates} "
                f"updates: integers of 32 bits count to {most}. It can be at most "
                f"{left * size}; `jax.config.update('jax_enable_x64', True)`, before "
                "anything else uses JAX, gives counters of 64 bits."
            )

    def check_call(self, name: str, num_steps: int) -> None:
        """Checks that one compiled call can count its own steps."""
        most = jnp.iinfo(jnp.result_type(int)).max
        updates = num_steps // self.steps_of_iteration * self.updates_per_iteration
        if max(num_steps, updates) > most:
            raise ValueError(
                f"`{name}={num_steps}` asks for {num_steps} environment steps and up "
                f"to {updates} updates at once, which can be at most {most} of each; "
                "lower it. How a training is cut makes no difference to its result."
            )

    def check_sequences(self, sequence_length: int, batch_size: int) -> None:
        """Checks that batches of sequences can be drawn from the first update on."""
        num_envs, capacity = self.num_envs, self.capacity
        warmup_steps, held = self.warmup_steps, self.rows * num_envs
        if self.rows < sequence_length:
            raise ValueError(
                f"`capacity={capacity}` gives each of `num_envs={num_envs}` "
                f"environments {self.rows} transitions, but the agent learns from "
                f"`sequence_length={sequence_length}` in a row; make it at least "
                f"{sequence_length * num_envs}."
            )
        if held < batch_size * sequence_length:
            raise ValueError(
                f"`capacity={capacity}` holds {held} transitions, less than one batch "
                f"of batch_size * sequence_length = {batch_size} * {sequence_length}; "
                "raise `capacity` or lower `batch_size`."
            )
        if warmup_steps < sequence_length * num_envs:
            raise ValueError(
                f"`warmup_steps={warmup_steps}` must be at least "
                f"sequence_length * num_envs = {sequence_length} * {num_envs}, so that "
                "there is something to sample at the first update."
            )
        if warmup_steps > held:
            raise ValueError(
                f"`warmup_steps={warmup_steps}` is more than the {held} transitions "
                f"that `capacity={capacity}` holds, so some are overwritten before the "
                "first update. Raise `capacity` or lower `warmup_steps`."
            )

    def check_num_steps(self, num_steps: int, name: str = "num_steps") -> None:
        """Checks that this is a whole number of iterations; `name` is for the error."""
        size = self.steps_of_iteration
        check_integer(name, num_steps, least=0)
        if num_steps % size != 0:
            raise ValueError(
                f"`{name}={num_steps}` must be a whole number of iterations, each "
                f"of num_envs * steps_per_iteration = {self.num_envs} * "
                f"{self.steps_per_iteration} = {size} environment steps; the nearest "
                f"are {num_steps // size * size} and {(num_steps // size + 1) * size}."
            )


def _positive_part(number: IntLike) -> IntLike:
    if isinstance(number, jax.Array):
        return jnp.maximum(number, 0)
    return max(number, 0)
