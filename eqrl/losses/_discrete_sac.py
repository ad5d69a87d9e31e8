import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from .._pytree.tree import check_stack
from .._types.custom_types import ActionValueFunction, FloatLike, Metrics, Observation
from ..nn import ChoiceFunction
from ._critic import check_same_rows, check_same_shape, least_over_critics
from ._dqn import values_of


def action_values(
    critics: ActionValueFunction, observation: Observation[Array, "batch obs"]
) -> Float[Array, "critics batch actions"]:
    """Values of all actions according to each critic of a stack.

    **Arguments:**

    - `critics`: a stack, as made by `equinox.filter_vmap` over a factory, of networks
        from one observation to the value of each action.
    - `observation`: observations of the states.

    **Returns:**

    The values, one row for each critic.
    """
    check_stack("critics", critics)
    # Critics are mapped over their arrays only; functions among them are shared.
    return eqx.filter_vmap(
        lambda critic, x: jax.vmap(critic)(x), in_axes=(eqx.if_array(0), None)
    )(critics, observation)


def discrete_critic_loss(
    critics: ActionValueFunction,
    observation: Observation[Array, "batch obs"],
    action: Int[Array, " batch"],
    target: Float[Array, " batch"],
) -> Float[Array, ""]:
    """Half the squared error of a stack of critics against one target.

    **Arguments:**

    - `critics`: a stack, as in `action_values`.
    - `observation`: observations of the states before the step.
    - `action`: actions taken in these states.
    - `target`: targets from `bootstrapped_target`, the same for all critics.

    **Returns:**

    `(value - target)**2 / 2`, averaged over the batch and the critics.
    """
    check_same_shape(action=action, target=target)
    check_same_rows(observation=observation, action=action)
    values = action_values(critics, observation)
    taken = jax.vmap(values_of, in_axes=(0, None))(values, action)
    return 0.5 * jnp.mean((taken - target[None]) ** 2)


def discrete_sac_next_value(
    actor: ChoiceFunction,
    critics: ActionValueFunction,
    observation: Observation[Array, "batch obs"],
    temperature: FloatLike,
) -> Float[Array, " batch"]:
    """Soft value of states, expected over all actions. No gradient flows through it.

    From [Christodoulou, 2019](https://arxiv.org/abs/1910.07207).

    **Arguments:**

    - `actor`: from one observation to a `Softmax`.
    - `critics`: the stack of target critics, as in `action_values`.
    - `observation`: observations of the next states.
    - `temperature`: weight of the entropy, at least 0.

    **Returns:**

    The expectation of the minimum over the critics minus `temperature` times the
    log-probability.
    """
    probs, log_probs = _probabilities(actor, observation)
    values = least_over_critics(action_values(critics, observation))
    soft = values - temperature * log_probs
    return lax.stop_gradient(jnp.sum(probs * soft, axis=-1))


def discrete_sac_actor_loss(
    actor: ChoiceFunction,
    critics: ActionValueFunction,
    observation: Observation[Array, "batch obs"],
    temperature: FloatLike,
) -> tuple[Float[Array, ""], Metrics]:
    """Actor loss of SAC for discrete actions, an exact expectation over all of them.

    From [Christodoulou, 2019](https://arxiv.org/abs/1910.07207).

    **Arguments:**

    - `actor`: from one observation to a `Softmax`.
    - `critics`: a stack, as in `action_values`. No gradient flows into it.
    - `observation`: observations of the states before the step.
    - `temperature`: weight of the entropy, at least 0.

    **Returns:**

    The mean over states of the expectation of `temperature * log_prob - value`, where
    `value` is the minimum over the critics; and the metric `entropy`, the mean entropy
    of the policy, to be passed to `sac_temperature_loss`.
    """
    probs, log_probs = _probabilities(actor, observation)
    values = least_over_critics(action_values(critics, observation))
    # The gradient of the actor flows through the probabilities alone.
    costs = temperature * log_probs - lax.stop_gradient(values)
    loss = jnp.mean(jnp.sum(probs * costs, axis=-1))
    return loss, {"entropy": -jnp.mean(jnp.sum(probs * log_probs, axis=-1))}


def _probabilities(
    actor: ChoiceFunction, observation: Observation[Array, "batch obs"]
) -> tuple[Float[Array, "batch actions"], Float[Array, "batch actions"]]:
    """Probabilities of all actions, and their logarithms, which are finite."""
    log_probs = jax.vmap(lambda x: actor(x).log_probs())(observation)
    # An action that is ruled out by an infinite logit adds nothing.
    known = jnp.where(jnp.isneginf(log_probs), 0, log_probs)
    return jnp.exp(log_probs), known
