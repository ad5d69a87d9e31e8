from collections.abc import Callable
from typing import Protocol, runtime_checkable

import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
import optax
from jax.scipy.special import entr
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from .._types.custom_types import FloatLike, Metrics, Observation, PyTree
from ..nn import AbstractDensity
from ._critic import (
    Critic,
    check_flags,
    check_same_shape,
    critic_values,
    in_one_type,
    least_over_critics,
)
from ._sac import sample_actions


AdvantageClip = tuple[FloatLike, FloatLike]
"""Lower and upper bound of the advantage of switching, in units of the value."""


def switch_probabilities(
    keep_value: Float[Array, ""],
    new_value: Float[Array, ""],
    temperature: FloatLike,
    *,
    advantage_clip: AdvantageClip | None = None,
) -> Float[Array, "2"]:
    """Probabilities of keeping and of switching; no gradient flows through them.

    **Arguments:**

    - `keep_value`: value of the current trajectory.
    - `new_value`: value of the new trajectory.
    - `temperature`: at least 0; the lower it is, the more the better one is preferred.
    - `advantage_clip`: bounds of `new_value - keep_value`, applied before the division
        by the temperature; `None` for no bounds.

    **Returns:**

    Two probabilities, of keeping and of switching, proportional to
    `exp(value / temperature)`. A temperature below 1e-10 counts as 1e-10.
    """
    check_same_shape(keep_value=keep_value, new_value=new_value)
    values = jnp.stack([keep_value, new_value])
    if advantage_clip is not None:
        advantage = jnp.clip(new_value - keep_value, *advantage_clip)
        values = jnp.stack([jnp.zeros_like(advantage), advantage])
    # The maximum is subtracted before the division, since a large value divided by a
    # small temperature overflows. A product with the inverse: whether XLA makes one of
    # a division by a scalar depends on the program around it, so the last bit would
    # depend on the devices.
    inverse = 1 / jnp.maximum(temperature, 1e-10)
    logits = (values - jnp.max(values, keepdims=True)) * inverse
    return lax.stop_gradient(jax.nn.softmax(logits))


def compare_through_target(
    reward: Float[Array, "time *shape"],
    discount: Float[Array, "time ..."],
    stop: Bool[Array, "time ..."],
    next_value: Float[Array, "time *shape"],
) -> Float[Array, "time *shape"]:
    """Multi-step target of TAAC's compare-through operator, for one window.

    From [Yu et al., 2021](https://arxiv.org/abs/2104.06521).

    A target runs through the stored rewards while the stored and the current policy
    behave alike, up to the first `stop`, and then bootstraps. No gradient flows through
    it. The last row always bootstraps. `discount` and `stop` may lack trailing axes of
    `reward`, such as that of a vector reward.

    **Arguments:**

    - `reward`: reward of each transition in a window.
    - `discount`: of all that follows the transition, in [0, 1]; 0 if it terminates.
    - `stop`: whether to bootstrap at the state reached.
    - `next_value`: estimate at the state reached. It is ignored if `discount` is zero,
        even if it is not finite.

    **Returns:**

    For each transition, the discounted sum of the rewards up to and including the first
    row with `stop`, plus the discounted value there.
    """
    check_same_shape(reward=reward, next_value=next_value)
    check_flags(stop=stop)
    # The discount or flag of a step applies to all dimensions of its reward.
    discount, stop = (
        x.reshape(x.shape + (1,) * (reward.ndim - x.ndim)) for x in (discount, stop)
    )
    reward, discount, next_value = in_one_type(reward, discount, next_value)

    def one_step_back(
        following: Float[Array, "*shape"], row: tuple[Array, Array, Array, Array]
    ) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
        reward, discount, stop, next_value = row
        following = jnp.where(stop, next_value, following)
        # 0 * inf is NaN, so a product with discount 0 must be selected away.
        target = reward + jnp.where(discount == 0, 0, discount * following)
        return target, target

    # The scan begins with the last value, as if it were the target after the window. So
    # the last row bootstraps there, even if `stop` is false.
    rows = (reward, discount, stop, next_value)
    _, target = lax.scan(one_step_back, next_value[-1], rows, reverse=True)
    return lax.stop_gradient(target)


_NUM_BINS = 10


def critic_metrics(
    values: Float[Array, "critics batch *reward"], target: Float[Array, "batch *reward"]
) -> Metrics:
    """Value, TD error and explained variance of each critic and reward dimension.

    The explained variance is NaN if the targets are all equal.
    """
    errors = target[None] - values
    # Targets that are all equal leave no variance to explain. Only as differences are
    # they exactly 0, since means are rounded.
    spread = jnp.var(target[None] - target[None, :1], axis=1)
    explained = 1 - jnp.var(errors, axis=1) / jnp.where(spread > 0, spread, jnp.nan)
    by_critic = {
        "value": jnp.mean(values, axis=1),
        "td_error": jnp.mean(errors, axis=1),
        "explained_variance": explained,
    }
    metrics = _numbered("target", jnp.mean(target, axis=0))
    for name, numbers in by_critic.items():
        metrics |= _numbered(name, numbers)
    return metrics


def _numbered(name: str, numbers: Float[Array, "..."]) -> Metrics:
    """One metric for each element of an array, with its indices in the name."""
    return {
        "_".join((name, *map(str, index))): numbers[index]
        for index in np.ndindex(numbers.shape)
    }


def switch_metrics(
    probabilities: Float[Array, "batch 2"],
    advantage: Float[Array, " batch"],
    *,
    histograms: bool,
) -> Metrics:
    """Entropy, advantage and keep probability of the switches in a batch."""
    keep = probabilities[:, 0]
    metrics = {
        # `entr` is 0 for a probability of 0, where a product with its logarithm is nan.
        "switch_entropy": jnp.mean(jnp.sum(entr(probabilities), axis=1)),
        "switch_advantage": jnp.mean(advantage),
        "keep_probability": jnp.mean(keep),
        "keep_probability_std": jnp.std(keep),
    }
    if histograms:
        # A probability of 1 belongs to the last bin.
        bins = jnp.minimum((keep * _NUM_BINS).astype(int), _NUM_BINS - 1)
        metrics |= histogram("keep_probability", bins, _NUM_BINS)
    return metrics


def histogram(name: str, bins: Array, num_bins: int) -> Metrics:
    """The share of elements in each bin, as one metric for each bin."""
    return {
        f"{name}_histogram_{index:02d}": jnp.mean((bins == index).astype(float))
        for index in range(num_bins)
    }


TrajectoryActor = Callable[..., AbstractDensity]
"""Maps one observation and one trajectory to a distribution with a density."""

TDLoss = Callable[
    [Float[Array, "critics batch *reward"], Float[Array, "critics batch *reward"]],
    Float[Array, "critics batch *reward"],
]
"""An elementwise loss of values and targets, such as `optax.huber_loss`."""


@runtime_checkable
class TrajectoryFamily(Protocol):
    """Anything that can continue a trajectory and begin a new one."""

    def keep(self, trajectory: PyTree) -> PyTree: ...

    def new(self, trajectory: PyTree, output: Float[Array, "*batch act"]) -> PyTree: ...


def flat_trajectory(trajectory: object) -> Float[Array, "*batch trajectory"]:
    """The parts of a trajectory concatenated into one vector, the critics' input."""
    return jnp.concatenate(jax.tree.leaves(trajectory), axis=-1)


def least_value(
    values: Float[Array, "critics *batch_and_reward"],
    reward_weights: Float[Array, " reward"] | None = None,
    *,
    faithful: bool = False,
) -> Float[Array, "*batch_and_reward"]:
    """Pessimistic (minimum over critics) value, for each dimension of the reward.

    **Arguments:**

    - `values`: the value of each critic, from `critic_values`.
    - `reward_weights`: weights of the dimensions of a vector reward, of either sign;
        `None` if rewards are scalars, or to weigh all equally.
    - `faithful`: whether the value is zero if the weight is zero, as in the reference.

    **Returns:**

    The minimum over critics; the maximum for a dimension with a negative weight.
    """
    if reward_weights is None:
        return least_over_critics(values)
    signs = jnp.where(reward_weights < 0, -1.0, 1.0)
    if faithful:
        signs = jnp.where(reward_weights == 0, 0.0, signs)
    # For a negative weight min(-values) = -max(values): high values are the bad ones.
    signs = signs.reshape((1,) * (values.ndim - 1) + signs.shape)
    return signs[0] * least_over_critics(signs * values)


def _total_value(
    values: Float[Array, "critics batch *reward"],
    reward_weights: Float[Array, " reward"] | None,
) -> Float[Array, " batch"]:
    """The scalar that the policy maximizes: the weighted sum over the reward."""
    least = least_value(values, reward_weights)
    if least.ndim == 1:
        return least
    if reward_weights is not None:
        least = least * reward_weights[None]
    return jnp.sum(least, axis=1)


def trajectory_values(
    critics: Critic,
    observation: Observation[Array, "batch obs"],
    trajectories: tuple[object, ...],
) -> tuple[Float[Array, "critics batch *reward"], ...]:
    """Values of several trajectories at the same observations, from one call.

    The trajectories are stacked along the batch, so each critic runs once.
    """
    num_trajectories = len(trajectories)
    values = critic_values(
        critics,
        jnp.concatenate([observation] * num_trajectories),
        jnp.concatenate([flat_trajectory(x) for x in trajectories]),
    )
    return tuple(jnp.split(values, num_trajectories, axis=1))


def switch_policy(
    keep_values: Float[Array, "critics batch *reward"],
    new_values: Float[Array, "critics batch *reward"],
    temperature: FloatLike,
    *,
    reward_weights: Float[Array, " reward"] | None = None,
    advantage_clip: AdvantageClip | None = None,
) -> tuple[Float[Array, "batch 2"], Float[Array, " batch"]]:
    """Second stage of TAAC's policy: whether to keep the current trajectory.

    From [Yu et al., 2021](https://arxiv.org/abs/2104.06521).

    No gradient flows through it. The distribution that maximizes expected value plus
    `temperature` times entropy over two alternatives is a softmax of their values, so
    this stage needs no network of its own.

    **Arguments:**

    - `keep_values`, `new_values`: values of both trajectories, from each critic.
    - `temperature`: weight of the switch's entropy, at least 0.
    - `reward_weights`: as in `least_value`.
    - `advantage_clip`: as in `switch_probabilities`.

    **Returns:**

    The probabilities of keeping and of switching, and the advantage of switching over
    keeping, unclipped.
    """
    keep_value = _total_value(keep_values, reward_weights)
    new_value = _total_value(new_values, reward_weights)
    probabilities = jax.vmap(
        lambda keep, new: switch_probabilities(
            keep, new, temperature, advantage_clip=advantage_clip
        )
    )(keep_value, new_value)
    return probabilities, lax.stop_gradient(new_value - keep_value)


def taac_next_value(
    actor: TrajectoryActor,
    critics: Critic,
    target_critics: Critic,
    observation: Observation[Array, "batch obs"],
    trajectory: object,
    switch_temperature: FloatLike,
    family: TrajectoryFamily,
    *,
    reward_weights: Float[Array, " reward"] | None = None,
    advantage_clip: AdvantageClip | None = None,
    sampled: bool = False,
    faithful: bool = False,
    key: PRNGKeyArray,
) -> tuple[Float[Array, "batch *reward"], Bool[Array, " batch"]]:
    """Estimated value of states under TAAC's policy, from one sampled decision each.

    From [Yu et al., 2021](https://arxiv.org/abs/2104.06521).

    No gradient flows through it, and it contains no entropy bonus.

    **Arguments:**

    - `actor`: maps one observation and one trajectory to a distribution.
    - `critics`: the stack that decides whether to switch, as in `critic_values`.
    - `target_critics`: the stack that values the decision.
    - `observation`: observations of the states reached.
    - `trajectory`: the trajectory on which each state was reached.
    - `switch_temperature`: weight of the switch's entropy, at least 0.
    - `family`: the family of trajectories, such as `eqrl.ConstantTrajectory`.
    - `reward_weights`: as in `least_value`.
    - `advantage_clip`: as in `switch_probabilities`.
    - `sampled`: whether to return the value of the sampled decision instead of the mean
        over both decisions.
    - `faithful`: as in `least_value`.
    - `key`: for the actor's output and the switch.

    **Returns:**

    The values, and whether the current policy switches in each state. With the mean, a
    target that bootstraps where the policy switches is biased toward a policy that
    keeps more often; with the value of the sampled decision it is unbiased.
    """
    output_key, switch_key = jr.split(key)
    output, _ = sample_actions(actor, observation, trajectory, key=output_key)
    both = (family.keep(trajectory), family.new(trajectory, output))
    keep_values, new_values = trajectory_values(critics, observation, both)
    probabilities, _ = switch_policy(
        keep_values,
        new_values,
        switch_temperature,
        reward_weights=reward_weights,
        advantage_clip=advantage_clip,
    )
    switch = jr.bernoulli(switch_key, probabilities[:, 1])
    # The online critics decided; the target critics value the decision.
    keep_value, new_value = (
        least_value(values, reward_weights, faithful=faithful)
        for values in trajectory_values(target_critics, observation, both)
    )
    # Sampled, the weight is 0 or 1, and the value is that of the branch that decides
    # where the target stops. The probability instead gives the mean over both.
    weight = switch.astype(keep_value.dtype) if sampled else probabilities[:, 1]
    # (batch,) -> (batch, 1) if the reward is a vector.
    weight = weight.reshape(weight.shape + (1,) * (keep_value.ndim - 1))
    value = (1 - weight) * keep_value + weight * new_value
    return lax.stop_gradient(value), switch


def taac_critic_loss(
    critics: Critic,
    observation: Observation[Array, "batch obs"],
    trajectory: object,
    target: Float[Array, "batch *reward"],
    td_loss: TDLoss = optax.squared_error,
) -> tuple[Float[Array, ""], Metrics]:
    """Critic loss of TAAC.

    From [Yu et al., 2021](https://arxiv.org/abs/2104.06521).

    **Arguments:**

    - `critics`: a stack, as in `critic_values`, which maps one observation and one flat
        trajectory to a scalar, or to a vector if rewards are vectors.
    - `observation`: observations of the states before the step.
    - `trajectory`: the trajectory followed from each state.
    - `target`: from `compare_through_target`; the same for all critics.
    - `td_loss`: an elementwise loss of values and targets.

    **Returns:**

    `td_loss`, averaged over batch and reward dimensions and summed over the critics;
    and the metrics `value`, `td_error` (the mean of target minus value) and
    `explained_variance` of each critic and reward dimension, and `target` of each
    reward dimension. The names end with the index of the critic and, if rewards are
    vectors, that of the dimension.
    """
    values = critic_values(critics, observation, flat_trajectory(trajectory))
    check_same_shape(values_of_each_critic=values[0], target=target)
    targets = jnp.broadcast_to(target[None], values.shape)
    # Summed over critics, so that the step of each is the same for any number of them.
    loss = jnp.mean(td_loss(values, targets)) * values.shape[0]
    return loss, critic_metrics(lax.stop_gradient(values), target)


def taac_actor_loss(
    actor: TrajectoryActor,
    critics: Critic,
    observation: Observation[Array, "batch obs"],
    trajectory: object,
    temperature: FloatLike,
    switch_temperature: FloatLike,
    family: TrajectoryFamily,
    *,
    reward_weights: Float[Array, " reward"] | None = None,
    advantage_clip: AdvantageClip | None = None,
    histograms: bool = False,
    key: PRNGKeyArray,
) -> tuple[Float[Array, ""], Metrics]:
    """Actor loss of TAAC.

    From [Yu et al., 2021](https://arxiv.org/abs/2104.06521).

    Its gradient is that of the mean of
    `temperature * log_prob - switch_probability * new_value` with the probability held
    fixed: only a switch executes the actor's output.

    **Arguments:**

    - `actor`: maps one observation and one trajectory to a distribution.
    - `critics`: a stack, as in `critic_values`.
    - `observation`: observations of the states before the step.
    - `trajectory`: the trajectory on which each state was reached.
    - `temperature`: weight of the actor's entropy, at least 0.
    - `switch_temperature`: weight of the entropy of the switch, at least 0.
    - `family`: the family of trajectories, such as `eqrl.ConstantTrajectory`.
    - `reward_weights`: as in `least_value`.
    - `advantage_clip`: as in `switch_probabilities`.
    - `histograms`: adds the share of states in each tenth of the keep probability.
    - `key`: for the actor's output.

    **Returns:**

    The mean of half the squared norm of the weighted value's derivative in the output,
    plus `temperature * log_prob`; and the metrics `entropy` (the mean of `-log_prob`),
    `switch_entropy` (of the switch, in nats), `switch_advantage` (of switching over
    keeping), and `keep_probability` with its standard deviation
    `keep_probability_std`.
    """
    output, log_prob = sample_actions(actor, observation, trajectory, key=key)
    keep = flat_trajectory(family.keep(trajectory))
    keep_values = critic_values(critics, observation, keep)

    def weighted_value(
        output: Float[Array, "batch act"],
    ) -> tuple[Float[Array, ""], tuple[Array, Array]]:
        new = flat_trajectory(family.new(trajectory, output))
        new_values = critic_values(critics, observation, new)
        probabilities, advantage = switch_policy(
            keep_values,
            new_values,
            switch_temperature,
            reward_weights=reward_weights,
            advantage_clip=advantage_clip,
        )
        # Only a switch executes the output, so its value is weighted by the probability
        # of a switch, which passes no gradient.
        value = probabilities[:, 1] * _total_value(new_values, reward_weights)
        return jnp.sum(value), (probabilities, advantage)

    # dQ/d(output) is taken here and held fixed: 1/2 |(slope + output) - output|^2 with
    # a constant goal has the gradient -slope * d(output), which is that of minus the
    # weighted value. So no critic gets a gradient from this loss.
    slope, (probabilities, advantage) = jax.grad(weighted_value, has_aux=True)(
        lax.stop_gradient(output)
    )
    goal = lax.stop_gradient(slope + output)
    squares = jnp.sum((goal - output) ** 2, axis=1)
    # Both terms flow into the actor through the reparameterized output.
    loss = jnp.mean(0.5 * squares + temperature * log_prob)
    metrics = switch_metrics(probabilities, advantage, histograms=histograms)
    return loss, metrics | {"entropy": -jnp.mean(lax.stop_gradient(log_prob))}


def taac_temperature_loss(
    log_temperature: Float[Array, ""],
    entropy: Float[Array, ""] | Float[Array, " batch"],
    target_entropy: FloatLike,
) -> Float[Array, ""]:
    """Temperature loss of TAAC, for the entropy of the actor or of the switch.

    From [Yu et al., 2021](https://arxiv.org/abs/2104.06521).

    **Arguments:**

    - `log_temperature`: logarithm of the temperature.
    - `entropy`: entropy of the actor or of the switch, in nats: one estimate, or one
        for each element of a batch. No gradient flows through it.
    - `target_entropy`: in nats; for the actor, summed over dimensions of the action.

    **Returns:**

    The mean of `log_temperature * (entropy - target_entropy)`, whose gradient does not
    vanish as the temperature falls.
    """
    # Linear in the logarithm, the gradient keeps its size while the temperature falls.
    excess = lax.stop_gradient(entropy - target_entropy)
    return jnp.mean(log_temperature * excess)
