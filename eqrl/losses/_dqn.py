import jax
import jax.lax as lax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, Int

from .._types.custom_types import ActionValueFunction, FloatLike, Observation
from ._critic import (
    check_flags,
    check_one_axis,
    check_same_rows,
    check_same_shape,
    in_one_type,
)


def multi_step_return(
    reward: Float[Array, " time"],
    terminated: Bool[Array, " time"],
    truncated: Bool[Array, " time"],
    discount: FloatLike,
) -> tuple[Float[Array, ""], Int[Array, ""], Float[Array, ""]]:
    """Discounted rewards of consecutive steps, up to the end of the episode.

    Steps after a termination or truncation belong to another episode and are left out.

    **Arguments:**

    - `reward`, `terminated`, `truncated`: one value for each step.
    - `discount`: in [0, 1].

    **Returns:**

    The sum of the rewards; the index of the last step that counts; and the discount of
    the value of the state that it reached, `discount` to the power of the number of
    such steps.
    """
    check_one_axis("reward", reward)
    check_same_shape(reward=reward, terminated=terminated, truncated=truncated)
    check_flags(terminated=terminated, truncated=truncated)
    over = terminated | truncated
    # Whether no earlier step ended the episode.
    counts = jnp.cumprod(1 - jnp.roll(over, 1).astype(int).at[0].set(0)) == 1
    num_steps = jnp.sum(counts.astype(int))
    reward, factor = in_one_type(reward, discount)
    weight = factor ** jnp.arange(reward.shape[0]).astype(reward.dtype)
    total = jnp.sum(jnp.where(counts, weight * reward, 0))
    return total, num_steps - 1, factor ** num_steps.astype(reward.dtype)


def dqn_next_value(
    network: ActionValueFunction,
    target_network: ActionValueFunction,
    observation: Observation[Array, "batch obs"],
    *,
    double: bool,
) -> Float[Array, " batch"]:
    """Value of states under the greedy policy. No gradient flows through it.

    **Arguments:**

    - `network`: from one observation to the value of each action.
    - `target_network`: a slowly moving copy of `network`, which provides the values.
    - `observation`: observations of the next states.
    - `double`: whether `network` chooses the action. Choices by `target_network` itself
        lead to overestimates ([van Hasselt et al.,
        2016](https://arxiv.org/abs/1509.06461)).

    **Returns:**

    The target network's value of the chosen action.
    """
    # With `double` one network chooses and the other values: they rarely overestimate
    # the same action, so the maximum is less biased.
    values = jax.vmap(target_network)(observation)
    choosing = jax.vmap(network)(observation) if double else values
    return lax.stop_gradient(values_of(values, jnp.argmax(choosing, axis=-1)))


def dqn_loss(
    network: ActionValueFunction,
    observation: Observation[Array, "batch obs"],
    action: Int[Array, " batch"],
    target: Float[Array, " batch"],
    *,
    huber: bool,
) -> tuple[Float[Array, ""], Float[Array, ""]]:
    """Loss of DQN, and the mean value of the actions taken.

    From [Mnih et al., 2015](https://doi.org/10.1038/nature14236).

    **Arguments:**

    - `network`: from one observation to the value of each action.
    - `observation`: observations of the states before the step.
    - `action`: actions taken in these states.
    - `target`: targets for the values of these actions.
    - `huber`: whether the loss is linear in errors beyond 1.

    **Returns:**

    The mean of `(value - target)**2 / 2`, or of the Huber loss; and the mean value.
    """
    check_same_shape(action=action, target=target)
    check_same_rows(observation=observation, action=action)
    value = values_of(jax.vmap(network)(observation), action)
    if huber:
        losses = optax.huber_loss(value, target)
    else:
        losses = 0.5 * (value - target) ** 2
    return jnp.mean(losses), jnp.mean(value)


def values_of(
    values: Float[Array, "*batch actions"], action: Int[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """The value of the action taken."""
    return jnp.take_along_axis(values, action[..., None], axis=-1)[..., 0]
