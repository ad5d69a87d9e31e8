from collections.abc import Callable

import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from .._types.custom_types import (
    CriticFunction,
    FloatLike,
    Metrics,
    Observation,
    PyTree,
)
from ..nn import AbstractDensity, StochasticPolicy
from ._critic import critic_values, least_over_critics


def sample_actions(
    actor: Callable[..., AbstractDensity], *inputs: PyTree, key: PRNGKeyArray
) -> tuple[Float[Array, "batch act"], Float[Array, " batch"]]:
    """Samples one action for each row of the inputs, with its log-density."""
    keys = jr.split(key, jax.tree.leaves(inputs)[0].shape[0])
    draw = lambda key, *inputs: actor(*inputs).sample_and_log_prob(key=key)
    return jax.vmap(draw)(keys, *inputs)


def sac_next_value(
    actor: StochasticPolicy,
    critics: CriticFunction,
    observation: Observation[Array, "batch obs"],
    temperature: FloatLike,
    *,
    critic_observation: Float[Array, "batch critic_obs"] | None = None,
    key: PRNGKeyArray,
) -> Float[Array, " batch"]:
    """Soft value of states, from one sampled action each. No gradient flows through it.

    From [Haarnoja et al., 2018](https://arxiv.org/abs/1812.05905).

    **Arguments:**

    - `actor`: from one observation to a distribution with a density.
    - `critics`: the stack of target critics, as in `critic_values`.
    - `observation`: observations of the next states.
    - `temperature`: weight of the entropy, at least 0.
    - `critic_observation`: the critics' observations of the same states; `None` if
        they are `observation`.
    - `key`: for the actions.

    **Returns:**

    The minimum over the critics minus `temperature` times the log-probability.
    """
    action, log_prob = sample_actions(actor, observation, key=key)
    if critic_observation is not None:
        observation = critic_observation
    value = least_over_critics(critic_values(critics, observation, action))
    return lax.stop_gradient(value - temperature * log_prob)


def sac_actor_loss(
    actor: StochasticPolicy,
    critics: CriticFunction,
    observation: Observation[Array, "batch obs"],
    temperature: FloatLike,
    *,
    critic_observation: Float[Array, "batch critic_obs"] | None = None,
    key: PRNGKeyArray,
) -> tuple[Float[Array, ""], Metrics]:
    """Actor loss of SAC.

    From [Haarnoja et al., 2018](https://arxiv.org/abs/1812.05905).

    **Arguments:**

    - `actor`: from one observation to a distribution with a density.
    - `critics`: a stack, as in `critic_values`.
    - `observation`: observations of the states before the step.
    - `temperature`: weight of the entropy, at least 0.
    - `critic_observation`: the critics' observations of the same states; `None` if
        they are `observation`.
    - `key`: for the actions.

    **Returns:**

    The mean of `temperature * log_prob - value`, where `value` is the minimum over the
    critics; and the metric `entropy`, the mean of `-log_prob` of the same actions, to
    be passed to `sac_temperature_loss`.
    """
    action, log_prob = sample_actions(actor, observation, key=key)
    if critic_observation is not None:
        observation = critic_observation
    value = least_over_critics(critic_values(critics, observation, action))
    # Differentiated with respect to the actor only, through its sampled actions.
    loss = jnp.mean(temperature * log_prob - value)
    return loss, {"entropy": -jnp.mean(log_prob)}


def sac_temperature_loss(
    log_temperature: Float[Array, ""],
    entropy: Float[Array, ""] | Float[Array, " batch"],
    target_entropy: FloatLike,
) -> Float[Array, ""]:
    """Temperature loss of SAC, which keeps the entropy of the policy at a target.

    From [Haarnoja et al., 2018](https://arxiv.org/abs/1812.05905).

    **Arguments:**

    - `log_temperature`: logarithm of the temperature.
    - `entropy`: entropy of the policy, in nats: one estimate, or one for each element
        of a batch. No gradient flows through it.
    - `target_entropy`: in nats, summed over the dimensions of the action.

    **Returns:**

    The mean of `temperature * (entropy - target_entropy)`.
    """
    # Equation 18 of the paper. The gradient in the logarithm has the temperature as a
    # factor, unlike that of TAAC.
    excess = lax.stop_gradient(entropy - target_entropy)
    return jnp.mean(jnp.exp(log_temperature) * excess)
