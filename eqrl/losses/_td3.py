import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from .._types.custom_types import CriticFunction, FloatLike, Observation
from ..nn import Actor
from ._critic import critic_values, least_over_critics


def td3_next_value(
    actor: Actor,
    critics: CriticFunction,
    observation: Observation[Array, "batch obs"],
    policy_noise: FloatLike,
    noise_clip: FloatLike,
    *,
    critic_observation: Float[Array, "batch critic_obs"] | None = None,
    key: PRNGKeyArray,
) -> Float[Array, " batch"]:
    """Value of states under a smoothed target policy. No gradient flows through it.

    From [Fujimoto et al., 2018](https://arxiv.org/abs/1802.09477).

    **Arguments:**

    - `actor`: the target actor, from one observation to one action in [-1, 1].
    - `critics`: the stack of target critics, as in `critic_values`.
    - `observation`: observations of the next states.
    - `policy_noise`: standard deviation of the smoothing noise, at least 0.
    - `noise_clip`: the noise is clipped to `[-noise_clip, noise_clip]`, at least 0.
    - `critic_observation`: the critics' observations of the same states; `None` if
        they are `observation`.
    - `key`: for the noise.

    **Returns:**

    The minimum over the critics.
    """
    action = jax.vmap(actor)(observation)
    # Noise smooths the critics over similar actions, so that the actor cannot exploit
    # narrow peaks. The clip keeps those actions similar.
    noise = policy_noise * jr.normal(key, action.shape)
    noise = jnp.clip(noise, -noise_clip, noise_clip)
    # The noise may move an action out of its bounds.
    action = jnp.clip(action + noise, -1, 1)
    if critic_observation is not None:
        observation = critic_observation
    value = least_over_critics(critic_values(critics, observation, action))
    return lax.stop_gradient(value)


def td3_actor_loss(
    actor: Actor,
    critic: CriticFunction,
    observation: Observation[Array, "batch obs"],
    *,
    critic_observation: Float[Array, "batch critic_obs"] | None = None,
) -> Float[Array, ""]:
    """Actor loss of TD3.

    From [Fujimoto et al., 2018](https://arxiv.org/abs/1802.09477).

    **Arguments:**

    - `actor`: from one observation to one action in [-1, 1].
    - `critic`: a single critic, the first of the stack: from one observation and one
        action to a scalar.
    - `observation`: observations of the states before the step.
    - `critic_observation`: the critics' observations of the same states; `None` if
        they are `observation`.

    **Returns:**

    The mean of `-value`.
    """
    # The gradient flows through the action, as the deterministic policy gradient does.
    action = jax.vmap(actor)(observation)
    if critic_observation is not None:
        observation = critic_observation
    return -jnp.mean(jax.vmap(critic)(observation, action))
