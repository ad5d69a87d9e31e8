import jax
import jax.lax as lax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from .._types.custom_types import FloatLike, Metrics
from ..nn import StochasticPolicy, VectorFunction
from ._critic import check_same_shape, outputs_of_stack
from ._sac import sample_actions


def csf_loss(
    difference: Float[Array, "batch skill"],
    skill: Float[Array, "batch skill"],
    negatives: Float[Array, "negatives skill"],
    weight: FloatLike,
) -> Float[Array, ""]:
    """Contrastive loss of the representation of contrastive successor features.

    From [Zheng et al., 2025](https://arxiv.org/abs/2412.08021).

    **Arguments:**

    - `difference`: the step of the representation in each transition.
    - `skill`: the skill of each transition.
    - `negatives`: skills drawn from the prior, shared by all rows; they do not include
        a row's own skill.
    - `weight`: weight of the contrastive term, at least 0; 5 in the paper.

    **Returns:**

    The mean of `weight * log sum_j exp(difference . negatives_j) - difference . skill`.
    """
    check_same_shape(difference=difference, skill=skill)
    towards = jnp.sum(difference * skill, axis=-1)
    others = jax.nn.logsumexp(difference @ negatives.T, axis=-1)
    return jnp.mean(weight * others - towards)


def csf_next_features(
    actor: StochasticPolicy,
    critics: VectorFunction,
    observation: Float[Array, "batch obs"],
    skill: Float[Array, "batch skill"],
    *,
    key: PRNGKeyArray,
) -> Float[Array, "batch skill"]:
    """Successor features of states, through which no gradient flows.

    From [Zheng et al., 2025](https://arxiv.org/abs/2412.08021).

    **Arguments:**

    - `actor`: from one observation to a distribution with a density.
    - `critics`: the stack of target critics, from an observation, concatenated with an
        action, to successor features.
    - `observation`: observations of the next states, with their skills.
    - `skill`: the skill of each state.
    - `key`: for the actions.

    **Returns:**

    For each row the features of the critic with the lowest value, `features . skill`,
    for one sampled action.
    """
    action, _ = sample_actions(actor, observation, key=key)
    # Vectors have no minimum; their values along the skill do.
    features = outputs_of_stack(critics, observation, action)
    return lax.stop_gradient(_least_along(features, skill))


def csf_critic_loss(
    critics: VectorFunction,
    observation: Float[Array, "batch obs"],
    action: Float[Array, "batch act"],
    target: Float[Array, "batch skill"],
) -> Float[Array, ""]:
    """Critic loss of contrastive successor features.

    From [Zheng et al., 2025](https://arxiv.org/abs/2412.08021).

    **Arguments:**

    - `critics`: a stack, as in `csf_next_features`.
    - `observation`, `action`: those of the states before the step, with their skills.
    - `target`: the target successor features.

    **Returns:**

    The squared error, averaged over rows and features and summed over critics.
    """
    predicted = outputs_of_stack(critics, observation, action)
    check_same_shape(features_of_each_critic=predicted[0], target=target)
    return jnp.sum(jnp.mean((predicted - target[None]) ** 2, axis=(1, 2)))


def csf_actor_loss(
    actor: StochasticPolicy,
    critics: VectorFunction,
    observation: Float[Array, "batch obs"],
    skill: Float[Array, "batch skill"],
    temperature: FloatLike,
    *,
    key: PRNGKeyArray,
) -> tuple[Float[Array, ""], Metrics]:
    """Actor loss of contrastive successor features.

    From [Zheng et al., 2025](https://arxiv.org/abs/2412.08021).

    **Arguments:**

    - `actor`, `critics`, `skill`, `key`: as in `csf_next_features`.
    - `observation`: observations of the states before the step, with their skills.
    - `temperature`: weight of the entropy, at least 0.

    **Returns:**

    The mean of `temperature * log_prob - features . skill`, with the features of the
    critic with the lowest value; and the metric `entropy`, the mean of `-log_prob`.
    """
    action, log_prob = sample_actions(actor, observation, key=key)
    features = outputs_of_stack(critics, observation, action)
    value = jnp.sum(_least_along(features, skill) * skill, axis=1)
    loss = jnp.mean(temperature * log_prob - value)
    return loss, {"entropy": -jnp.mean(log_prob)}


def _least_along(
    features: Float[Array, "critics batch skill"], skill: Float[Array, "batch skill"]
) -> Float[Array, "batch skill"]:
    check_same_shape(features_of_each_critic=features[0], skill=skill)
    least = jnp.argmin(jnp.sum(features * skill[None], axis=2), axis=0)
    return jnp.take_along_axis(features, least[None, :, None], axis=0)[0]
