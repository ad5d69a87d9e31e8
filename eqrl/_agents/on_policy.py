"""Parts shared by the agents that learn on-policy."""

import math
from collections.abc import Callable
from typing import TypeVar

import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.control_flow import filter_scan
from .._types.custom_types import FloatLike, Metrics
from .._types.data import AnyTransition, flatten_batch
from ..losses import lambda_return
from ..nn import ValueFunction


Carry = TypeVar("Carry")
Rows = TypeVar("Rows")


def learn_in_minibatches(
    learn: Callable[[Carry, Rows, PRNGKeyArray], tuple[Carry, Metrics]],
    carry: Carry,
    rows: Rows,
    *,
    num_epochs: int,
    num_minibatches: int,
    name: str = "num_minibatches",
    before_epoch: Callable[[Carry, Rows], Rows] | None = None,
    key: PRNGKeyArray,
) -> tuple[Carry, Metrics]:
    """Calls `learn` on each of several minibatches, in each of several epochs.

    In each epoch every row is in one minibatch, drawn without replacement.
    `before_epoch` computes the rows of an epoch from a carry and `rows`. Metrics are
    averaged over all calls. Raises a `ValueError`, which refers to `num_minibatches` as
    `name`, if the rows do not split into minibatches of equal size.
    """
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    if num_rows % num_minibatches != 0:
        raise ValueError(
            f"`{name}={num_minibatches}` must divide the {num_rows} transitions of a "
            "batch, which on-policy are num_envs * num_steps of "
            "`eqrl.Trainer.on_policy`."
        )

    # Filled when `learn` is traced.
    names: list[str] = []

    def epoch(carry: Carry, key: PRNGKeyArray) -> tuple[Carry, Metrics]:
        learned = rows if before_epoch is None else before_epoch(carry, rows)

        # Gathers minibatches one by one, since shuffling the rollout would copy it.
        def minibatch(
            carry: Carry, drawn: tuple[Int[Array, " rows"], PRNGKeyArray]
        ) -> tuple[Carry, Metrics]:
            index, key = drawn
            rows = jax.tree.map(lambda x: x[index], learned)
            carry, metrics = learn(carry, rows, key)
            names[:] = metrics
            return carry, metrics

        order_key, learn_key = jr.split(key)
        order = permutation(order_key, num_rows).reshape(num_minibatches, -1)
        keys = jr.split(learn_key, num_minibatches)
        carry, metrics = filter_scan(minibatch, carry, (order, keys))
        return carry, jax.tree.map(jnp.mean, metrics)

    # A scan of scans: the program does not grow with the epochs and minibatches.
    carry, metrics = filter_scan(epoch, carry, jr.split(key, num_epochs))
    # Restores the order of computation, since JAX sorts the keys of dictionaries.
    return carry, {name: jnp.mean(metrics[name]) for name in names}


def permutation(key: PRNGKeyArray, size: int) -> Int[Array, " size"]:
    """The integers below `size`, in random order.

    Each integer is packed into one word with random bits and sorted by them. On a CPU
    that takes a fraction of the time of `jax.random.permutation`, which sorts pairs of
    words. Integers with the same bits keep their order, so sorting is repeated until
    fewer than one such pair is expected.
    """
    num_bits = max((size - 1).bit_length(), 1)
    mask = (1 << num_bits) - 1
    numbers = jnp.arange(size, dtype=jnp.uint32)
    order = numbers
    # There are fewer than 2^(2 * num_bits) pairs. The probability that a pair ties in
    # every round is 2^-(random bits of all rounds).
    for round_key in jr.split(key, math.ceil(2 * num_bits / (32 - num_bits))):
        bits = jr.bits(round_key, (size,), jnp.uint32)
        packed = (bits << num_bits) | numbers
        # No two words are equal, so the sort need not be stable.
        order = order[lax.sort(packed, is_stable=False) & mask]
    return order.astype(int)


def rollout_values(
    critic: ValueFunction, batch: AnyTransition
) -> tuple[Float[Array, " rows"], Float[Array, " rows"]]:
    """Values of the states before and after each step of a rollout.

    Within an episode a step ends in the state where the next one begins, so one pass of
    the critic serves both. The value after a termination is that of the next episode's
    first state, and is never used. The rollout has the axes `(envs, time)`, the values
    one.
    """
    rows = flatten_batch(batch)
    value = jax.vmap(critic)(rows.observation)

    def all_after() -> Float[Array, " rows"]:
        return jax.vmap(critic)(rows.next_observation)

    def shifted() -> Float[Array, " rows"]:
        last = jax.vmap(critic)(batch.next_observation[:, -1])
        before = value.reshape(batch.reward.shape)[:, 1:]
        return jnp.concatenate([before, last[:, None]], axis=1).reshape(-1)

    # After a truncation the next step begins in another episode, so the states reached
    # need a pass of their own. The last ones get one in either case. Under `vmap` both
    # branches are computed.
    return value, lax.cond(jnp.any(batch.truncated[:, :-1]), all_after, shifted)


def rollout_returns(
    batch: AnyTransition,
    next_value: Float[Array, " rows"],
    *,
    reward_scale: FloatLike,
    discount: FloatLike,
    decay: FloatLike,
) -> Float[Array, " rows"]:
    """The `eqrl.losses.lambda_return` of each step of a rollout, with one leading axis.

    The rollout has the axes `(envs, time)`; the values of the states reached have one.
    """
    returns = jax.vmap(lambda_return, in_axes=(0, 0, 0, 0, None, None))(
        reward_scale * batch.reward,
        batch.terminated,
        batch.truncated,
        next_value.reshape(batch.reward.shape),
        discount,
        decay,
    )
    return returns.reshape(-1)
