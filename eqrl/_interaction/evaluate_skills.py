import dataclasses
import functools
from collections.abc import Callable

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray, Real

from .._agents.base import AbstractAgent, AnyAgent, layers
from .._agents.taac.taac import TAAC
from .._agents.wrappers.intrinsic import Intrinsic, find, rewards_of
from .._agents.wrappers.skills import prior_of, with_skill
from .._pytree.fields import PositiveInt, check_integer, checked, reusable_key
from .._pytree.tree import parts
from .._rewards.base import (
    AbstractReward,
    AnyReward,
    StateDescriptor,
    as_if_left,
    check_descriptor,
    describe,
    descriptor_size,
)
from .._rewards.discriminator import Discriminator, DiscriminatorState
from .._skills.prior import AnyOneHotSkills
from .._types.custom_types import (
    Agents,
    EnvState,
    Extras,
    Memory,
    Mode,
    PyTree,
    State,
)
from .._types.data import AnyTransition
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from ..envs._host import checked_result
from .evaluate import Evaluation, rollout, zero_outside
from .fit import check_fits


# How many skills of a continuous prior are drawn by default.
_NUM_DRAWN = 16
# How many steps an intrinsic reward sees together: as many as in a usual batch.
_BATCH_SIZE = 256


class SkillEvaluation(eqx.Module):
    """Returns, descriptors and recovered skills of episodes with several skills.

    All but `skills` and `accuracy` have the leading axes `(skills, episodes)`.
    """

    skills: Float[Array, "skills skill"]
    returns: Float[Array, "skills episodes"] | Float[Array, "skills episodes reward"]
    diversity_returns: Float[Array, "skills episodes"]
    lengths: Int[Array, "skills episodes"]
    descriptors: Float[Array, "skills episodes time descriptor"]
    recovered_skills: Float[Array, "skills episodes time skill"]
    mask: Bool[Array, "skills episodes time"]
    accuracy: Float[Array, ""]
    first_descriptors: Float[Array, "skills episodes descriptor"] | None = None


SkillEvaluation.__init__.__doc__ = """**Arguments:**

- `skills`: the skills that were played.
- `returns`: undiscounted sums of the environment's rewards.
- `diversity_returns`: undiscounted sums of the intrinsic rewards; those of a
    `Discriminator` if there is one: one-hot skills that are distinguishable at every
    step then reach `max_steps * log(num_skills)`. They are `nan` without an intrinsic
    reward.
- `lengths`: numbers of steps.
- `descriptors`: the descriptor of the state that each step reached; by default the part
    of it that the discriminator sees.
- `recovered_skills`: the most probable skill in that state, according to the
    discriminator; `nan` without one.
- `mask`: which steps are within the episode; other steps have no meaning.
- `accuracy`: share of the steps at which the discriminator considers the skill that was
    played the most probable of `skills`; `nan` without one.
- `first_descriptors`: the descriptor of the state in which each episode began, before
    its first step; `None` if it is not known.
"""


@checked
def evaluate_skills(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    *,
    num_episodes: PositiveInt,
    key: PRNGKeyArray,
    skills: int | Real[Array | np.ndarray, "skills skill"] | None = None,
    mode: Mode = "greedy",
    max_steps: PositiveInt | None = None,
    descriptor: StateDescriptor | None = None,
) -> SkillEvaluation:
    """Plays episodes with each skill side by side, without learning.

    With a `Discriminator`, the result also includes the skill that it recovers from
    each state. Skills that were learned from any other intrinsic reward are played in
    the same way, and that reward is summed.

    **Arguments:**

    - `agent`, `state`: an agent with skills, such as `eqrl.diayn` makes, in any nesting
        of wrappers, and its state.
    - `env`: the environment.
    - `num_episodes`: episodes of each skill, at least 1.
    - `key`: for actions, environments and drawn skills.
    - `skills`: the skills, one in each row; or how many to draw from the prior. `None`
        takes all one-hot skills, or draws 16 from a continuous prior.
    - `mode`: how actions are picked.
    - `max_steps`: the most steps of an episode; `None` takes `env.spec.max_steps`.
    - `descriptor`: how to describe a state: `"state_descriptor"`, `"observation"`,
        `"both"`, joined, or a function of one observation. `None` takes the input of
        the discriminator, or else the environment's descriptor, or the observation if
        there is none.

    **Returns:**

    A `SkillEvaluation`, which holds the descriptors of all steps. A reward that depends
    on the number of updates is the one at the first update. One that compares the steps
    of a batch, such as `ParticleEntropy`, sees at most 256 at a time, drawn from all
    episodes without replacement. If these have fewer steps, copies of them
    fill the batch and are each other's neighbors: play more episodes then.

    Raises a `ValueError` if the agent has no skills, if `skills` or `descriptor` do not
    fit, if `state` is a stack, or if nothing limits the length of an episode.
    """
    skills_key, play_key, score_key = jr.split(reusable_key(key), 3)
    prior = prior_of(agent)
    if skills is None and isinstance(prior, AnyOneHotSkills):
        shown = jnp.eye(prior.size)
    elif skills is None or isinstance(skills, (int, np.integer)):
        number = _NUM_DRAWN if skills is None else skills
        check_integer("skills", number, least=1)
        draw = lambda index, key: prior.sample(index=index, key=key)
        shown = jax.vmap(draw)(jnp.arange(number), jr.split(skills_key, number))
    else:
        shown = jnp.asarray(skills, dtype=jnp.result_type(float))
        if shown.ndim != 2 or shown.shape[1] != prior.size or shown.shape[0] == 0:
            raise ValueError(
                f"`skills` has shape {shown.shape}, but the agent's skills have size "
                f"{prior.size}; give one skill a row, of shape (skills, {prior.size})."
            )
    if descriptor is not None:
        check_descriptor("descriptor", descriptor)
        descriptor_size(descriptor, env.spec)
    keys = jr.split(play_key, shown.shape[0])
    evaluate = functools.partial(
        _evaluate,
        agent,
        state,
        env,
        shown,
        num_episodes,
        mode,
        max_steps,
        descriptor,
        keys,
        key=score_key,
    )
    return checked_result(env, evaluate)


@eqx.filter_jit
def _evaluate(
    agent: AnyAgent,
    state: PyTree,
    env: AnyEnv,
    skills: Float[Array, "skills skill"],
    num_episodes: int,
    mode: Mode,
    max_steps: int | None,
    descriptor: StateDescriptor | None,
    keys: Key[Array, " skills"],
    *,
    key: PRNGKeyArray,
) -> SkillEvaluation:
    hint = (
        "Give one state of this agent, trained in environments of this size. Of a "
        "stack, as of many seeds or of a population, take one by `jax.tree.map(lambda "
        "x: x[0], state)`, or map over it by `equinox.filter_vmap`."
    )
    check_fits(with_skill(agent, skills[0]), state, env.spec, hint=hint)

    def play(
        skill: Float[Array, " skill"], key: PRNGKeyArray
    ) -> tuple[AnyTransition, Bool[Array, "episodes time"]]:
        return rollout(
            with_skill(agent, skill),
            state,
            env,
            num_episodes=num_episodes,
            key=key,
            mode=mode,
            max_steps=max_steps,
        )

    transitions, mask = jax.vmap(play)(skills, keys)
    returns = jnp.sum(zero_outside(mask, transitions.reward), axis=2)
    whole = jnp.broadcast_to(jnp.expand_dims(returns, 2), transitions.reward.shape)
    transitions = dataclasses.replace(transitions, episode_return=whole)
    rewards = [
        reward
        for intrinsic in layers(agent)
        if isinstance(intrinsic, Intrinsic)
        for reward, _ in rewards_of(intrinsic.reward, None)
    ]
    is_told_apart = any(isinstance(reward, Discriminator) for reward in rewards)
    kind = Discriminator if is_told_apart else AbstractReward
    described, worth = transitions, jnp.full(mask.shape, jnp.nan)
    recovered = jnp.full((*mask.shape, skills.shape[1]), jnp.nan)
    accuracy = jnp.asarray(jnp.nan)
    if rewards:
        reward, reward_state, seen = find(agent, state, transitions, kind)
        worth = _score(reward, reward_state, seen, mask, key=key)
        if isinstance(reward, Discriminator):
            recovered, accuracy = _recover(reward, reward_state, seen, mask, skills)
            if descriptor is None:
                # Its input, of observations that may be normalized.
                descriptor, described = reward.descriptor, seen
    if descriptor is None:
        has_one = env.spec.state_descriptor_size is not None
        descriptor = "state_descriptor" if has_one else "observation"
    first = jax.tree.map(lambda x: x[:, :, 0], as_if_left(described))
    return SkillEvaluation(
        skills=skills,
        returns=returns,
        diversity_returns=jnp.sum(worth, axis=2),
        lengths=jnp.sum(mask, axis=2),
        descriptors=describe(descriptor, described),
        recovered_skills=recovered,
        mask=mask,
        accuracy=accuracy,
        first_descriptors=describe(descriptor, first),
    )


def _score(
    reward: AnyReward,
    state: PyTree,
    seen: AnyTransition,
    mask: Bool[Array, "skills episodes time"],
    *,
    key: PRNGKeyArray,
) -> Float[Array, "skills episodes time"]:
    """The reward of each step within its episode, and 0 outside.

    Steps are scored in random batches, as in training: rewards that compare the steps
    of a batch must see no others, and take memory by the square of their number.
    """
    order_key, score_key = jr.split(key)
    num_batches = -(-mask.size // _BATCH_SIZE)
    # Steps within episodes come first, and fill the last places a second time.
    lots = jr.uniform(order_key, (mask.size,))
    order = jnp.argsort(jnp.where(mask.reshape(-1), lots, 1))
    place = jnp.arange(num_batches * -(-mask.size // num_batches))
    count = jnp.sum(mask)
    index = order[place % count].reshape(num_batches, -1)
    rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[mask.ndim :]), seen)

    def score(
        batch: tuple[Int[Array, " batch"], PRNGKeyArray],
    ) -> Float[Array, " batch"]:
        index, key = batch
        drawn = jax.tree.map(lambda x: x[index], rows)
        return reward.reward(state, drawn, step=jnp.zeros((), int), key=key)

    worth = lax.map(score, (index, jr.split(score_key, num_batches))).reshape(-1)
    target = jnp.where(place < count, index.reshape(-1), mask.size)
    scores = jnp.zeros(mask.size, worth.dtype).at[target].set(worth, mode="drop")
    return scores.reshape(mask.shape)


def _recover(
    discriminator: Discriminator,
    state: DiscriminatorState,
    seen: AnyTransition,
    mask: Bool[Array, "skills episodes time"],
    skills: Float[Array, "skills skill"],
) -> tuple[Float[Array, "skills episodes time skill"], Float[Array, ""]]:
    """The most probable skill of each state, and how often it is the one played."""

    def judge(
        descriptor: Float[Array, " descriptor"],
    ) -> tuple[Float[Array, " skill"], Int[Array, ""]]:
        distribution = state.network(descriptor)
        return distribution.mode(), jnp.argmax(jax.vmap(distribution.log_prob)(skills))

    descriptors = discriminator.descriptors(seen)
    recovered, likeliest = jax.vmap(jax.vmap(jax.vmap(judge)))(descriptors)
    # Drawn skills may be equal; confusing equal skills is not a mistake.
    equal = jnp.all(skills[:, None] == skills[None, :], axis=-1)
    right = jax.vmap(lambda equal, likeliest: equal[likeliest])(equal, likeliest)
    return recovered, jnp.mean(right.astype(float), where=mask)


def skill_confusion(evaluation: SkillEvaluation) -> Float[Array, "skills skills"]:
    """Confusion matrix of a discriminator over the skills that were played.

    **Arguments:**

    - `evaluation`: an evaluation of at least one skill, from `evaluate_skills`.

    **Returns:**

    A matrix whose row i and column j hold the share of the steps of skill i at which j
    is, among the skills that were played, the nearest to the recovered skill. Equally
    near ones share the step, and shares of skills equal to i count for i itself. Rows
    sum to 1; if skills are told apart, the diagonal is 1. It is `nan` without a
    discriminator.
    """
    recovered, mask = evaluation.recovered_skills, evaluation.mask
    skills = evaluation.skills
    # The squared distance, but for what all skills share.
    alike = jnp.einsum("iets,js->ietj", recovered, skills)
    alike = alike - jnp.sum(skills**2, axis=-1)[None, None, None] / 2
    nearest = (alike == jnp.max(alike, axis=-1, keepdims=True)).astype(alike.dtype)
    taken = nearest / jnp.sum(nearest, axis=-1, keepdims=True)
    counts = jnp.sum(zero_outside(mask, taken), axis=(1, 2))
    equal = jnp.all(skills[:, None] == skills[None], axis=-1)
    own = jnp.sum(counts, axis=1, where=equal)
    counts = jnp.where(equal, 0, counts) + jnp.diag(own)
    lengths = jnp.sum(mask, axis=(1, 2)).astype(counts.dtype)
    shares = counts / lengths[:, None]
    return jnp.where(jnp.isnan(evaluation.accuracy), jnp.nan, shares)


Score = Callable[[Agents, State, Evaluation], Float[Array, ""]]
"""From an agent, its state and its evaluation to a number to rank by."""


def mean_return(
    agent: object, state: object, evaluation: Evaluation
) -> Float[Array, ""]:
    """The default score: the mean return over all episodes."""
    del agent, state
    return jnp.mean(evaluation.returns)


def weighted_return(
    agent: AbstractAgent[State, Memory, Extras], state: object, evaluation: Evaluation
) -> Float[Array, ""]:
    """Score for vector rewards: the mean return, weighted as `TAAC` weights rewards.

    **Arguments:**

    - `agent`: a `TAAC`, or any wrapper around one; without `reward_weights` all
        dimensions have the weight 1.
    - `state`: unused.
    - `evaluation`: of the agent; returns of shape `(episodes, reward)`.

    Raises a `ValueError` if there is no `TAAC` or the returns are not vectors.
    """
    del state
    if evaluation.returns.ndim != 2:
        raise ValueError(
            "`weighted_return` is a score of vectors of rewards, but this reward is a "
            "scalar; leave `score` out."
        )
    found = parts(agent, TAAC)
    if not found:
        raise ValueError(
            "`weighted_return` weighs rewards as a `TAAC` does, but there is none in "
            f"{type(agent).__name__}; give a `score` of your own."
        )
    weights = found[0].reward_weights
    means = jnp.mean(evaluation.returns, axis=0)
    if weights is None:
        return jnp.sum(means)
    return jnp.dot(jnp.stack([jnp.asarray(weight) for weight in weights]), means)


def diversity_return(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    *,
    num_episodes: int,
    key: PRNGKeyArray,
) -> Float[Array, ""]:
    """Mean of `evaluate_skills`' diversity returns over skills and episodes.

    With its other arguments bound, it is a `score` for `train_population`: `lambda
    agent, state, evaluation: eqrl.diversity_return(agent, state, env, num_episodes=4,
    key=key)`. All members and generations then share one key and are compared on equal
    terms.

    Raises a `ValueError` if the agent has no intrinsic reward, as a `CSF` has none.
    """
    if not parts(agent, Intrinsic):
        raise ValueError(
            f"There is no `Intrinsic` in {type(agent).__name__}, whose reward "
            "`diversity_return` sums; give a `score` of your own."
        )
    evaluation = evaluate_skills(agent, state, env, num_episodes=num_episodes, key=key)
    return jnp.mean(evaluation.diversity_returns)
