"""What TAAC carries along an episode, stores, and how it decides at each step."""

from typing import Any

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..._pytree.tree import tree_where
from ..._types.custom_types import FloatLike
from ..._types.data import EnvSpec
from ...losses import switch_policy, trajectory_values
from ...losses._switch import AdvantageClip
from ...nn import AbstractDensity, Linear, StochasticPolicy
from ..actor_critic import MakeNetwork, check_density
from .trajectory import AbstractTrajectory, Trajectory


class TAACMemory(eqx.Module):
    """The trajectory that `TAAC` is on."""

    trajectory: Trajectory
    repeats: Int[Array, ""]


TAACMemory.__init__.__doc__ = """**Arguments:**

- `trajectory`: as the last step left it.
- `repeats`: steps taken on it so far; 0 where the episode begins.
"""


class TAACExtras(eqx.Module):
    """What `TAAC` stores beside each transition."""

    previous: Trajectory
    trajectory: Trajectory
    switch: Bool[Array, "*batch"]
    repeats: Int[Array, "*batch"]


TAACExtras.__init__.__doc__ = """**Arguments:**

- `previous`: the trajectory on which the step began.
- `trajectory`: the one it left behind, whose action was done.
- `switch`: whether it began a new one, also where `max_repeat_steps` forced it to; of a
    faithful `TAAC`, whether that was decided.
- `repeats`: steps taken on it, this one included; 1 where it is the first.
"""


class TrajectoryPolicy(eqx.Module):
    """A policy which sees the trajectory it would leave beside the observation."""

    embeddings: tuple[Linear, ...]
    policy: StochasticPolicy

    def __call__(
        self, observation: Float[Array, " obs"], trajectory: Trajectory
    ) -> AbstractDensity:
        """The distribution of outputs at `observation`, on `trajectory`."""
        parts = jax.tree.leaves(trajectory)
        embedded = [
            embedding(part)
            for embedding, part in zip(self.embeddings, parts, strict=True)
        ]
        return self.policy(jnp.concatenate([lax.stop_gradient(observation), *embedded]))


TrajectoryPolicy.__init__.__doc__ = """**Arguments:**

- `embeddings`: one for each part of a trajectory, from it to a vector as long as an
    observation.
- `policy`: from an observation and, behind it, the embedded parts to a distribution
    with a density.
"""


def make_trajectory_policy(
    make_actor: MakeNetwork, num_parts: int, spec: EnvSpec, *, key: PRNGKeyArray
) -> TrajectoryPolicy:
    """A policy whose network takes the observation and `num_parts` embedded parts."""
    actor_key, embedding_key = jr.split(key)
    input_size = spec.observation_size * (1 + num_parts)
    policy = make_actor(input_size, spec.action_size, key=actor_key)
    check_density(
        policy, EnvSpec(observation_size=input_size, action_size=spec.action_size)
    )
    embeddings = tuple(
        Linear(spec.action_size, spec.observation_size, key=part_key)
        for part_key in jr.split(embedding_key, num_parts)
    )
    return TrajectoryPolicy(embeddings=embeddings, policy=policy)


class Preferences(eqx.Module):
    """What decides, beside the networks, which of two trajectories is preferred."""

    family: AbstractTrajectory
    reward_weights: Float[Array, " reward"] | None
    advantage_clip: AdvantageClip | None

    def options(self) -> dict[str, Any]:
        """As keyword arguments of the losses."""
        return {
            "reward_weights": self.reward_weights,
            "advantage_clip": self.advantage_clip,
        }


class Decision(eqx.Module):
    """Of one step: an actor's output, and whether to switch to what it begins."""

    output: Float[Array, " act"]
    switch: Bool[Array, ""]


def decide_at_random(trajectory: Trajectory, *, key: PRNGKeyArray) -> Decision:
    """A decision before anything is learnt: any output, and to switch or not."""
    output_key, switch_key = jr.split(key)
    output = jr.uniform(output_key, trajectory.action.shape, minval=-1, maxval=1)
    return Decision(output=output, switch=jr.bernoulli(switch_key))


def decide(
    actor: TrajectoryPolicy,
    critics: Any,
    switch_temperature: Float[Array, ""],
    observation: Float[Array, " obs"],
    trajectory: Trajectory,
    preferences: Preferences,
    *,
    epsilon: FloatLike,
    key: PRNGKeyArray,
) -> Decision:
    """Samples with probability `epsilon`, independently for output and switch.

    Else it takes the mode of the output, and of the switch what is likelier: to keep,
    where both are alike.
    """
    output_key, switch_key, explore_key = jr.split(key, 3)
    explore = jr.uniform(explore_key, (2,)) < epsilon
    density = actor(observation, trajectory)
    output = jnp.where(explore[0], density.sample(key=output_key), density.mode())
    family = preferences.family
    both = (family.keep(trajectory), family.new(trajectory, output))
    keep_values, new_values = trajectory_values(
        critics, observation[None], jax.tree.map(lambda x: x[None], both)
    )
    probabilities, _ = switch_policy(
        keep_values, new_values, switch_temperature, **preferences.options()
    )
    keep, new = probabilities[0]
    switch = jnp.where(explore[1], jr.bernoulli(switch_key, new), new > keep)
    return Decision(output=output, switch=switch)


def begin_at_random(memory: TAACMemory, *, key: PRNGKeyArray) -> TAACMemory:
    """At the first step of an episode, with a trajectory uniform in [-1, 1]."""
    parts, structure = jax.tree.flatten(memory.trajectory)
    keys = jr.split(key, len(parts))
    drawn = [
        jr.uniform(part_key, part.shape, minval=-1, maxval=1)
        for part, part_key in zip(parts, keys, strict=True)
    ]
    trajectory = tree_where(
        memory.repeats == 0, jax.tree.unflatten(structure, drawn), memory.trajectory
    )
    return TAACMemory(trajectory=trajectory, repeats=memory.repeats)


def take(
    family: AbstractTrajectory, trajectory: Trajectory, decision: Decision
) -> Trajectory:
    """The trajectory after a decision."""
    return tree_where(
        decision.switch,
        family.new(trajectory, decision.output),
        family.keep(trajectory),
    )
