import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
from jax.typing import ArrayLike
from jaxtyping import Array, Bool, Float

from .._pytree.tree import check_stack, described, stack_size
from .._types.custom_types import CriticFunction, FloatLike, Observation
from ..nn import VectorFunction


def check_same_shape(**arrays: ArrayLike) -> None:
    """Checks that all arrays have the shape of the first.

    Otherwise they would broadcast: `(batch, 1)` minus `(batch,)` is `(batch, batch)`.
    """
    (first, reference), *others = arrays.items()
    for name, array in others:
        if jnp.shape(array) != jnp.shape(reference):
            raise ValueError(
                f"`{name}` has the shape {jnp.shape(array)}, but `{first}` has "
                f"{jnp.shape(reference)}; they must be the same."
            )


def check_same_rows(**arrays: ArrayLike) -> None:
    """Checks that the first axes of all arrays are equally long."""
    (first, reference), *others = arrays.items()
    for name, array in others:
        if jnp.shape(array)[:1] != jnp.shape(reference)[:1]:
            raise ValueError(
                f"`{name}` has the shape {jnp.shape(array)}, but `{first}` has "
                f"{jnp.shape(reference)}; the first axis of both is the batch."
            )


def check_one_axis(name: str, array: ArrayLike) -> None:
    """Checks that the only axis of an array is time: a scan would take the first."""
    if jnp.ndim(array) != 1:
        raise ValueError(
            f"`{name}` has the shape {jnp.shape(array)}; it must be `(time,)`, the "
            "steps of one environment. Map over several by `jax.vmap`."
        )


def check_flags(**flags: ArrayLike) -> None:
    """Checks that all flags are booleans."""
    for name, flag in flags.items():
        if jnp.result_type(flag) != jnp.bool_:
            raise ValueError(
                f"`{name}` is of {described(flag)}; it must be of type bool: whether, "
                "not how much."
            )


def in_one_type(*values: ArrayLike) -> tuple[Array, ...]:
    """The values, cast to the type that arithmetic on all of them has.

    A scan's carry must keep its type, but rewards, discounts and values may differ.
    """
    with jax.numpy_dtype_promotion("standard"):
        dtype = jnp.result_type(*values)
    return tuple(jnp.asarray(x, dtype) for x in values)


Critic = CriticFunction


def bootstrapped_target(
    reward: Float[Array, " batch"],
    terminated: Bool[Array, " batch"],
    next_value: Float[Array, " batch"],
    discount: FloatLike | Float[Array, " batch"],
) -> Float[Array, " batch"]:
    """Target for a critic, of one step or more, through which no gradient flows.

    **Arguments:**

    - `reward`: reward of each transition, or the sum over several steps.
    - `terminated`: whether the next state has no value. Never pass `truncated`: a state
        at the time limit has a value.
    - `next_value`: estimate at `next_observation`. It is ignored where `terminated` is
        true, even if it is not finite.
    - `discount`: in [0, 1]; one for all transitions, or one for each.

    **Returns:**

    `reward + discount * next_value`, without the second term where `terminated`.
    """
    check_same_shape(reward=reward, terminated=terminated, next_value=next_value)
    check_flags(terminated=terminated)
    if jnp.ndim(discount) > 0:
        check_same_shape(reward=reward, discount=discount)
    # Selected rather than multiplied by a flag: 0 * inf is nan.
    future = jnp.where(terminated, 0, discount * next_value)
    return lax.stop_gradient(reward + future)


def critic_values(
    critics: CriticFunction,
    observation: Observation[Array, "batch obs"],
    action: Float[Array, "batch act"],
) -> Float[Array, "critics batch *reward"]:
    """Values of a batch according to each critic of a stack.

    **Arguments:**

    - `critics`: a stack, as made by `equinox.filter_vmap` over a factory: a critic
        whose arrays have one more leading axis. A critic takes one observation and one
        action and returns a scalar, or a vector if rewards are vectors.
    - `observation`: observations of the states.
    - `action`: actions to value in these states, in [-1, 1].

    **Returns:**

    The values, one row for each critic.
    """

    def values(
        critic: CriticFunction,
        observation: Observation[Array, "batch obs"],
        action: Float[Array, "batch act"],
    ) -> Float[Array, "batch *reward"]:
        return jax.vmap(critic)(observation, action)

    check_stack("critics", critics)
    check_same_rows(observation=observation, action=action)
    # Each critic gets a copy of the batch, so that its first layer is a batched product
    # like the others. Without it an update of two critics was 4% slower on a CPU.
    num_critics = stack_size(critics)
    observations, actions = (
        jnp.broadcast_to(x, (num_critics, *x.shape)) for x in (observation, action)
    )
    return eqx.filter_vmap(values)(critics, observations, actions)


def critic_loss(
    critics: CriticFunction,
    observation: Observation[Array, "batch obs"],
    action: Float[Array, "batch act"],
    target: Float[Array, " batch"],
) -> Float[Array, ""]:
    """Half the squared error of a stack of critics against one target.

    **Arguments:**

    - `critics`: a stack, as in `critic_values`.
    - `observation`: observations of the states before the step.
    - `action`: actions taken in these states, in [-1, 1].
    - `target`: targets from `bootstrapped_target`, the same for all critics.

    **Returns:**

    `(value - target)**2 / 2`, averaged over the batch and the critics.
    """
    values = critic_values(critics, observation, action)
    check_same_shape(values_of_each_critic=values[0], target=target)
    errors = values - target[None]
    return 0.5 * jnp.mean(errors**2)


def least_over_critics(
    values: Float[Array, "critics *batch_and_reward"],
) -> Float[Array, "*batch_and_reward"]:
    """The minimum over critics, through which a gradient flows to the least value."""
    # Not `jnp.min`, which divides its gradient by the number of values that equal the
    # minimum. XLA may recompute the values for that comparison and round them
    # differently; then none is equal, and the gradient is 0 / 0.
    least = jnp.argmin(lax.stop_gradient(values), axis=0)
    critics = jnp.arange(values.shape[0]).reshape(-1, *(1,) * least.ndim)
    return jnp.sum(jnp.where(critics == least[None], values, 0), axis=0)


def outputs_of_stack(
    networks: VectorFunction,
    first: Float[Array, "rows first"],
    second: Float[Array, "rows second"],
) -> Float[Array, "networks rows outputs"]:
    """The outputs of each network of a stack for rows of two inputs side by side."""
    rows = jnp.concatenate([first, second], axis=1)
    return eqx.filter_vmap(
        lambda network, rows: jax.vmap(network)(rows), in_axes=(eqx.if_array(0), None)
    )(networks, rows)
