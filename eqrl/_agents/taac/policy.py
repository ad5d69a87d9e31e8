"""Decisions of `TAAC` at each step, its memory and its extras."""

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..._pytree.tree import tree_where
from ..._types.custom_types import FloatLike, Observation
from ..._types.data import EnvSpec
from ...losses import Critic, switch_policy, trajectory_values
from ...losses._taac import AdvantageClip
from ...nn import AbstractDensity, Linear, MakePolicy, StochasticPolicy, as_floats
from ..networks import DENSITY, make_network
from .trajectory import AbstractTrajectory, Trajectory


class TAACMemory(eqx.Module):
    """The trajectory that `TAAC` currently follows."""

    trajectory: Trajectory
    repeats: Int[Array, ""]


TAACMemory.__init__.__doc__ = """**Arguments:**

- `trajectory`: the trajectory after the last step.
- `repeats`: number of steps taken on it so far; 0 at the start of an episode.
"""


class TAACExtras(eqx.Module):
    """Extras that `TAAC` stores with each transition."""

    previous: Trajectory
    trajectory: Trajectory
    switch: Bool[Array, "*batch"]
    repeats: Int[Array, "*batch"]


TAACExtras.__init__.__doc__ = """**Arguments:**

- `previous`: the trajectory before the step.
- `trajectory`: the trajectory after the step, whose action was executed.
- `switch`: whether the step began a new trajectory, even if `max_repeat_steps` forced
    it to; with `TAAC(faithful=True)`, whether the policy decided to.
- `repeats`: number of steps taken on the trajectory, including this one; 1 on its first
    step.
"""


class TrajectoryPolicy(eqx.Module):
    """A policy conditioned on the observation and on the current trajectory.

    Each part of the trajectory has its own embedding, which maps it to a vector of the
    observation's length. The policy sees the observation, followed by these vectors.
    """

    embeddings: tuple[Linear, ...]
    policy: StochasticPolicy

    def __call__(
        self, observation: Observation[Array, " obs"], trajectory: Trajectory
    ) -> AbstractDensity:
        """The distribution over the actor's outputs for one observation."""
        parts = jax.tree.leaves(trajectory)
        embedded = [
            embedding(part)
            for embedding, part in zip(self.embeddings, parts, strict=True)
        ]
        seen = lax.stop_gradient(as_floats(observation))
        return self.policy(jnp.concatenate([seen, *embedded]))


def make_trajectory_policy(
    make_actor: MakePolicy, num_parts: int, spec: EnvSpec, *, key: PRNGKeyArray
) -> TrajectoryPolicy:
    """A policy whose network takes the observation and `num_parts` embedded parts."""
    actor_key, embedding_key = jr.split(key)
    # The network is made as for an environment with longer observations.
    input_size = spec.observation_size * (1 + num_parts)
    sizes = EnvSpec(observation_size=input_size, action_size=spec.action_size)
    policy = make_network(DENSITY, "make_actor", make_actor, sizes, key=actor_key)
    embeddings = tuple(
        # Each embedded part is as long as the observation.
        Linear(spec.action_size, spec.observation_size, key=part_key)
        for part_key in jr.split(embedding_key, num_parts)
    )
    return TrajectoryPolicy(embeddings=embeddings, policy=policy)


class Preferences(eqx.Module):
    """Options that, besides the networks, decide which trajectory is preferred."""

    family: AbstractTrajectory
    reward_weights: Float[Array, " reward"] | None
    advantage_clip: AdvantageClip | None


class Decision(eqx.Module):
    """An actor's output, and whether to switch to the trajectory that it begins."""

    output: Float[Array, " act"]
    switch: Bool[Array, ""]


def random_decision(trajectory: Trajectory, *, key: PRNGKeyArray) -> Decision:
    """A uniform output and a fair coin for the switch, to explore before learning."""
    output_key, switch_key = jr.split(key)
    output = jr.uniform(output_key, trajectory.action.shape, minval=-1, maxval=1)
    return Decision(output=output, switch=jr.bernoulli(switch_key))


def decide(
    actor: TrajectoryPolicy,
    critics: Critic,
    switch_temperature: Float[Array, ""],
    observation: Observation[Array, " obs"],
    trajectory: Trajectory,
    preferences: Preferences,
    *,
    epsilon: FloatLike,
    key: PRNGKeyArray,
) -> Decision:
    """A decision of the two-stage policy.

    The output and the switch are each sampled with probability `epsilon`, independently
    of each other. Otherwise the output is its distribution's mode, and the switch is
    taken if it is strictly more likely than not. Where its probability is nan, the
    decision is to switch to an output of nan: no comparison with nan holds, so an agent
    that diverged would otherwise continue with finite actions.
    """
    output_key, switch_key, explore_key = jr.split(key, 3)
    explore = jr.uniform(explore_key, (2,)) < epsilon
    density = actor(observation, trajectory)
    output = jnp.where(explore[0], density.sample(key=output_key), density.mode())
    # The switch compares continuing with the output just drawn, rather than with the
    # mean over outputs.
    family = preferences.family
    both = (family.keep(trajectory), family.new(trajectory, output))
    keep_values, new_values = trajectory_values(
        critics, observation[None], jax.tree.map(lambda x: x[None], both)
    )
    probabilities, _ = switch_policy(
        keep_values,
        new_values,
        switch_temperature,
        reward_weights=preferences.reward_weights,
        advantage_clip=preferences.advantage_clip,
    )
    keep, new = probabilities[0]
    switch = jnp.where(explore[1], jr.bernoulli(switch_key, new), new > keep)
    diverged = jnp.isnan(new)
    return Decision(
        output=jnp.where(diverged, jnp.nan, output), switch=switch | diverged
    )


def randomize_first(memory: TAACMemory, *, key: PRNGKeyArray) -> TAACMemory:
    """Draws the trajectory uniformly from [-1, 1] if the episode has just begun."""
    parts, structure = jax.tree.flatten(memory.trajectory)
    keys = jr.split(key, len(parts))
    drawn = [
        jr.uniform(part_key, part.shape, minval=-1, maxval=1)
        for part, part_key in zip(parts, keys, strict=True)
    ]
    # Every step counts as at least 1, so 0 means that the episode has just begun.
    trajectory = tree_where(
        memory.repeats == 0, jax.tree.unflatten(structure, drawn), memory.trajectory
    )
    return TAACMemory(trajectory=trajectory, repeats=memory.repeats)
