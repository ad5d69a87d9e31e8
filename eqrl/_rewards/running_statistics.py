"""Running means and squares of numbers."""

import equinox as eqx
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Float


# Added to the variance, which is 0 for an observation that never changes.
EPSILON = 1e-8
# The most batches, of the size of the last one, that count as seen. With this many a
# single batch still changes the last four binary digits of a sum in float32. With far
# more the count would no longer grow, but the squares would.
_MOST_BATCHES = 2**20


class RunningStatistics(eqx.Module):
    """Running mean and variance of all observations so far.

    After about a million batches they are moving averages over as many.

    **Attributes:**

    - `count`: the number of observations so far, at most a million batches of them.
    - `mean`: mean of each element.
    - `summed_squares`: of each element's differences from the mean; divided by `count`
        it is the variance.
    - `mean_remainder`: what the rounding of `mean` has left out so far. Without it,
        the mean of an element that is large compared with its standard deviation would
        soon stay where it is, since all later changes are below its last digit.
    """

    count: Float[Array, ""]
    mean: Float[Array, " obs"]
    summed_squares: Float[Array, " obs"]
    mean_remainder: Float[Array, " obs"]

    def __init__(
        self,
        count: Float[Array, ""],
        mean: Float[Array, " obs"],
        summed_squares: Float[Array, " obs"],
        mean_remainder: Float[Array, " obs"] | None = None,
    ) -> None:
        """**Arguments:** the attributes; `mean_remainder=None` stands for zeros."""
        self.count = count
        self.mean = mean
        self.summed_squares = summed_squares
        self.mean_remainder = (
            jnp.zeros_like(mean) if mean_remainder is None else mean_remainder
        )

    def normalize(
        self, observation: Float[Array, "*batch obs"]
    ) -> Float[Array, "*batch obs"]:
        """Shifts and scales `observation` to mean zero and standard deviation one."""
        shape = (1,) * (observation.ndim - 1) + self.mean.shape
        # XLA turns a division by the root into this product in some programs only, so
        # that the last bit would depend on the devices.
        inverse = lax.rsqrt(self.variance() + EPSILON)
        return (observation - self.mean.reshape(shape)) * inverse.reshape(shape)

    def variance(self) -> Float[Array, " obs"]:
        """Variance of each element; one before the first observation."""
        weight = 1 / jnp.maximum(self.count, 1)
        return jnp.where(self.count > 0, self.summed_squares * weight, 1)

    def update(self, observation: Float[Array, "batch obs"]) -> "RunningStatistics":
        """The statistics with a batch of fresh observations added."""
        # Chan et al.'s combination of two samples, which does not cancel if the mean
        # is large compared with the standard deviation.
        size = float(observation.shape[0])
        # The differences are exactly 0 for an element that never changes. The mean of
        # equal numbers is rounded, and its error divided by a deviation that consists
        # of nothing else would be anything up to 1.
        first = observation[0]
        batch_mean = first + jnp.mean(observation - first[None], axis=0)
        batch_squares = jnp.sum((observation - batch_mean[None]) ** 2, axis=0)
        most = size * _MOST_BATCHES
        seen = jnp.minimum(self.count, most)
        count = seen + size
        shift = batch_mean - self.mean
        # The factor is 1 unless larger batches were seen before.
        squares = self.summed_squares * (seen / jnp.maximum(self.count, 1))
        between = shift**2 * (seen * size / count)
        # Forgotten and added squares nearly cancel, so they are summed first.
        moved = squares + (batch_squares + between - squares / _MOST_BATCHES)
        # Kahan's summation.
        step = self.mean_remainder + shift * (size / count)
        mean = self.mean + step
        return RunningStatistics(
            count=jnp.minimum(count, most),
            mean=mean,
            summed_squares=jnp.where(
                seen < most, squares + batch_squares + between, moved
            ),
            mean_remainder=step - (mean - self.mean),
        )


def no_statistics(size: int) -> RunningStatistics:
    return RunningStatistics(
        count=jnp.zeros(()), mean=jnp.zeros(size), summed_squares=jnp.zeros(size)
    )


def mean_size(statistics: RunningStatistics) -> Float[Array, ""]:
    """The mean of the nonnegative numbers so far; 1 while all were 0."""
    return jnp.where(statistics.mean[0] == 0, 1, statistics.mean[0])


def root_mean_square(statistics: RunningStatistics) -> Float[Array, ""]:
    """The root mean square of the numbers so far; 1 while all were 0."""
    square = statistics.variance()[0] + statistics.mean[0] ** 2
    return jnp.sqrt(jnp.where(square == 0, 1, square))
