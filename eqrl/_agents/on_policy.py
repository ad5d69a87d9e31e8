"""Parts shared by the agents that learn on-policy."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._pytree.control_flow import filter_scan
from .._types.custom_types import FloatLike, Metrics
from .._types.data import AnyTransition
from ..losses import lambda_return


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
    key: PRNGKeyArray,
) -> tuple[Carry, Metrics]:
    """Calls `learn` on each of several minibatches, in each of several epochs.

    In an epoch each row is in one minibatch, drawn without replacement.

    **Arguments:**

    - `learn`: from a carry, a minibatch and a key to a carry and metrics.
    - `carry`: what is learned, to begin with.
    - `rows`: arrays with the same leading axis.
    - `num_epochs`, `num_minibatches`: at least 1.
    - `name`: of the second, as an error says it.
    - `key`: for the draws, and those of `learn`.

    **Returns:**

    The carry at the end, and the metrics averaged over all calls.

    Raises a `ValueError` unless minibatches of equal size can be made.
    """
    num_rows = jax.tree.leaves(rows)[0].shape[0]
    if num_rows % num_minibatches != 0:
        raise ValueError(
            f"`{name}={num_minibatches}` must divide the {num_rows} transitions of a "
            "batch, which on-policy are num_envs * num_steps of "
            "`eqrl.Trainer.on_policy`."
        )

    names: list[str] = []

    # One minibatch at a time is gathered: a shuffled rollout would be a copy of it.
    def minibatch(
        carry: Carry, drawn: tuple[Int[Array, " rows"], PRNGKeyArray]
    ) -> tuple[Carry, Metrics]:
        index, key = drawn
        carry, metrics = learn(carry, jax.tree.map(lambda x: x[index], rows), key)
        names[:] = metrics
        return carry, metrics

    def epoch(carry: Carry, key: PRNGKeyArray) -> tuple[Carry, Metrics]:
        order_key, learn_key = jr.split(key)
        order = jr.permutation(order_key, num_rows).reshape(num_minibatches, -1)
        keys = jr.split(learn_key, num_minibatches)
        carry, metrics = filter_scan(minibatch, carry, (order, keys))
        return carry, jax.tree.map(jnp.mean, metrics)

    carry, metrics = filter_scan(epoch, carry, jr.split(key, num_epochs))
    # In the order of computation: JAX returns dictionaries in that of the alphabet.
    return carry, {name: jnp.mean(metrics[name]) for name in names}


def rollout_returns(
    batch: AnyTransition,
    next_value: Float[Array, " rows"],
    *,
    reward_scale: FloatLike,
    discount: FloatLike,
    decay: FloatLike,
) -> Float[Array, " rows"]:
    """The `eqrl.losses.lambda_return` of each step of a rollout, with one leading axis.

    **Arguments:**

    - `batch`: the rollout, with the axes `(envs, time)`.
    - `next_value`: of the state that each step reached, with one leading axis.
    - `reward_scale`: factor by which rewards are multiplied.
    - `discount`, `decay`: in [0, 1].
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
