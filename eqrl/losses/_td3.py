import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, PRNGKeyArray

from .._types.custom_types import FloatLike
from ..nn import Actor
from ._critic import Critic, critic_values


def td3_next_value(
    actor: Actor,
    critics: Critic,
    observation: Float[Array, "batch obs"],
    policy_noise: FloatLike,
    noise_clip: FloatLike,
    *,
    key: PRNGKeyArray,
) -> Float[Array, " batch"]:
    """Value of states under a smoothed target actor; no gradient flows through it.

    **Arguments:**

    - `actor`: the target actor, from one observation to one action in [-1, 1].
    - `critics`: the stack of target critics, as in `critic_values`.
    - `observation`: of the states reached.
    - `policy_noise`: standard deviation of the smoothing noise, at least 0.
    - `noise_clip`: the noise is clipped to this far either side of zero, at least 0.
    - `key`: for the noise.

    **Returns:**

    The least value that a critic gives.
    """
    action = jax.vmap(actor)(observation)
    noise = policy_noise * jr.normal(key, action.shape)
    noise = jnp.clip(noise, -noise_clip, noise_clip)
    action = jnp.clip(action + noise, -1, 1)
    value = jnp.min(critic_values(critics, observation, action), axis=0)
    return lax.stop_gradient(value)


def td3_actor_loss(
    actor: Actor,
    critic: Critic,
    observation: Float[Array, "batch obs"],
) -> Float[Array, ""]:
    """What TD3 lowers to improve its actor.

    **Arguments:**

    - `actor`: from one observation to one action in [-1, 1].
    - `critic`: a single critic, the first of the stack: from one observation and one
        action to a scalar.
    - `observation`: of the states left.

    **Returns:**

    The mean of `-value`.
    """
    action = jax.vmap(actor)(observation)
    return -jnp.mean(jax.vmap(critic)(observation, action))
