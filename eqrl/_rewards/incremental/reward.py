import math
from typing import Any, get_args

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from ..._pytree.fields import check_choice, check_integer, check_range, hyperparameter
from ..._types.custom_types import FloatLike, Metrics
from ..._types.data import EnvSpec, Transition
from ..base import AbstractReward
from ..descriptor import (
    StateDescriptor,
    check_descriptor,
    describe,
    descriptor_size,
)
from .distances import Distances
from .feature_set import (
    distance_to,
    emptied,
    empty_set,
    with_points,
)
from .mode import (
    MODES,
    Feature,
    IncrementalMode,
    ModeName,
    Normalization,
)
from .scale import factors, first_scale, next_scale, tallied
from .state import IncrementalState


# Transitions of a batch from which the mean distances are taken.
_NUM_TALLIED = 32


class Incremental(AbstractReward[IncrementalState]):
    """The reward of DISk: to do what no earlier skill did, again and again.

    It is `beta * diversity - alpha * consistency`: the distance of a transition's
    feature to the k-th nearest of those that earlier skills left, which
    `eqrl.learn_skills` collects, less the distance to the k-th nearest of those of the
    last transitions. While there are fewer than k of the former, as for a first skill,
    diversity is 1: where episodes can terminate, that is a reward for living on. While
    there are fewer than k of the latter, consistency is 0.

    Each distance is divided by its mean over the previous skill, or, where that is not
    known, over the batch. The divisor is at least a hundredth of the batch's mean.

    Differences from the paper's released code: time limits are not ends; the set of
    past features includes the newest skill; the divisors are means of the distances
    themselves and of the previous skill only; no temperature turns consistency into
    dispersion within a skill. `mode="released"` does as the code does in the last
    three, up to this: `"released"` normalization takes its means from 32 transitions of
    a batch, at every 10,000th update rather than environment step, and is guarded
    against dividing by zero.

    ??? cite "Reference"

        ```bibtex
        @inproceedings{shafiullah2022one,
            title={One After Another: Learning Incremental Skills for a Changing World},
            author={Shafiullah, Nur Muhammad Mahi and Pinto, Lerrel},
            booktitle={International Conference on Learning Representations},
            year={2022},
        }
        ```
    """

    mode: ModeName = eqx.field(static=True)
    k: int = eqx.field(static=True)
    num_samples: int = eqx.field(static=True)
    feature: Feature = eqx.field(static=True)
    normalization: Normalization = eqx.field(static=True)
    per_timestep: bool = eqx.field(static=True)
    descriptor: StateDescriptor = eqx.field(static=True)
    recent_capacity: int | None = eqx.field(static=True)
    past_capacity: int = eqx.field(static=True)
    alpha: FloatLike = hyperparameter()
    beta: FloatLike = hyperparameter()

    def __init__(
        self,
        *,
        alpha: FloatLike = 1.0,
        beta: FloatLike = 1.0,
        mode: ModeName = "paper",
        k: int | None = None,
        num_samples: int = 512,
        feature: Feature | None = None,
        normalization: Normalization | None = None,
        per_timestep: bool | None = None,
        descriptor: StateDescriptor = "state_descriptor",
        recent_capacity: int | None = None,
        past_capacity: int = 0,
    ) -> None:
        """**Arguments:**

        - `alpha`: weight of consistency.
        - `beta`: weight of diversity.
        - `mode`: decides what is left out of `k`, `feature`, `normalization` and
            `per_timestep`, and how `eqrl.learn_skills` goes on from skill to skill:
            `"paper"`, `"pseudocode"` or `"released"`.
        - `k`: which of the nearest neighbors counts, at least 1.
        - `num_samples`: points of each set that a batch is compared with, drawn afresh
            for each, without replacement; all of them where there are fewer.
        - `feature`: `"delta"`, the change of the descriptor; or `"next_state"`, the
            descriptor of the state reached.
        - `normalization`: `"previous_skill_mean"`; `"batch_mean"`, by which both terms
            always have the mean of their weights; `"none"`; or `"released"`.
        - `per_timestep`: whether a transition is compared only with those that were as
            far into their episodes.
        - `descriptor`: what is seen of a state: `"state_descriptor"`, as the
            environment describes behavior; `"observation"`, in full; or a function of
            one observation.
        - `recent_capacity`: recent features that are held, with `per_timestep` for each
            timestep; `None` takes as many as the mode says, in `"paper"` those of an
            episode at the time limit.
        - `past_capacity`: past features that there is room for, likewise;
            `eqrl.learn_skills` sees to it.
        """
        check_choice("mode", mode, MODES)
        preset = MODES[mode]
        self.alpha = alpha
        self.beta = beta
        self.mode = mode
        self.k = preset.k if k is None else k
        self.num_samples = num_samples
        self.feature = preset.feature if feature is None else feature
        self.normalization = (
            preset.normalization if normalization is None else normalization
        )
        self.per_timestep = (
            preset.per_timestep if per_timestep is None else per_timestep
        )
        self.descriptor = descriptor
        self.recent_capacity = recent_capacity
        self.past_capacity = past_capacity

    def __check_init__(self) -> None:
        check_range("alpha", self.alpha)
        check_range("beta", self.beta)
        check_integer("k", self.k, least=1)
        _check_room("num_samples", self.num_samples, self.k)
        if self.recent_capacity is not None:
            _check_room("recent_capacity", self.recent_capacity, self.k)
        check_integer("past_capacity", self.past_capacity, least=0)
        check_descriptor(self.descriptor)
        check_choice("feature", self.feature, get_args(Feature))
        check_choice("normalization", self.normalization, get_args(Normalization))

    @property
    def preset(self) -> IncrementalMode:
        """What the mode says."""
        return MODES[self.mode]

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> IncrementalState:
        del key
        size = descriptor_size(self.descriptor, spec)
        num_buckets = self.num_buckets(spec)
        return IncrementalState(
            past=empty_set(num_buckets, self.past_capacity, size),
            recent=empty_set(num_buckets, self._recent_rows(spec), size),
            scale=first_scale(),
        )

    def observe(
        self, state: IncrementalState, transitions: Transition[Any]
    ) -> IncrementalState:
        features = self.features(transitions)
        num_buckets = state.recent.features.shape[0]
        keep = (
            jnp.arange(num_buckets)[:, None]
            == self._bucket(transitions.timestep, num_buckets)[None]
        )
        features = jnp.broadcast_to(features, (num_buckets, *features.shape))
        return eqx.tree_at(
            lambda state: state.recent,
            state,
            with_points(state.recent, features, keep),
        )

    def reward(
        self,
        state: IncrementalState,
        batch: Transition[Any],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        del step
        diversity, consistency = self._terms(
            state, self._distances(state, _flat(batch), key=key)
        )
        return lax.stop_gradient(diversity + consistency).reshape(batch.timestep.shape)

    def update(
        self, state: IncrementalState, batch: Transition[Any], *, key: PRNGKeyArray
    ) -> tuple[IncrementalState, Metrics]:
        rows = jax.tree.map(lambda x: x[:_NUM_TALLIED], _flat(batch))
        distances = self._distances(state, rows, key=key)
        diversity, consistency = distances.means()
        terms = self._terms(state, distances)
        scale = tallied(
            state.scale,
            diversity=diversity,
            consistency=consistency,
            has_past=jnp.any(distances.has_past),
            has_recent=jnp.any(distances.has_recent),
            diversity_term=jnp.mean(terms[0]),
            consistency_term=jnp.mean(terms[1]),
        )
        state = eqx.tree_at(lambda state: state.scale, state, scale)
        return state, {"diversity": diversity, "consistency": consistency}

    def num_buckets(self, spec: EnvSpec) -> int:
        """How many parts the sets have of which each is compared with itself only."""
        return _max_steps(spec, "`per_timestep`") if self.per_timestep else 1

    def features(
        self, transitions: Transition[Any]
    ) -> Float[Array, "*batch descriptor"]:
        """What the sets hold of transitions, with any leading axes."""
        reached = self.descriptors(transitions)
        if self.feature == "next_state":
            return reached
        left = describe(
            self.descriptor, transitions.observation, transitions.state_descriptor
        )
        return reached - left

    def descriptors(
        self, transitions: Transition[Any]
    ) -> Float[Array, "*batch descriptor"]:
        """What is seen of the states that transitions, with any axes, reached."""
        return describe(
            self.descriptor,
            transitions.next_observation,
            transitions.next_state_descriptor,
        )

    def without_past(self, state: IncrementalState) -> IncrementalState:
        """The set of past features emptied."""
        return eqx.tree_at(lambda state: state.past, state, emptied(state.past))

    def with_past(
        self,
        state: IncrementalState,
        transitions: Transition[Any],
        mask: Bool[Array, "episodes time"],
    ) -> IncrementalState:
        """Adds what a skill did, as `eqrl.rollout` gives it, to the past features."""
        features = self.features(transitions)
        if self.per_timestep:
            features, mask = jnp.swapaxes(features, 0, 1), jnp.swapaxes(mask, 0, 1)
        else:
            features = features.reshape(1, -1, features.shape[-1])
            mask = mask.reshape(1, -1)
        past = with_points(state.past, features, mask)
        return eqx.tree_at(lambda state: state.past, state, past)

    def begin_skill(
        self, state: IncrementalState, *, num_updates: FloatLike
    ) -> IncrementalState:
        """What is known as a further skill begins.

        **Arguments:**

        - `state`: as the skill before ended.
        - `num_updates`: how many the skill will have, as if there were no warm-up.
        """
        scale = next_scale(
            state.scale,
            alpha=self.alpha,
            beta=self.beta,
            expected_calls=num_updates,
        )
        recent = emptied(state.recent) if self.preset.clear_recent else state.recent
        return IncrementalState(past=state.past, recent=recent, scale=scale)

    def _recent_rows(self, spec: EnvSpec) -> int:
        if self.recent_capacity is not None:
            return self.recent_capacity
        episodes = self.preset.num_recent_episodes
        rows = episodes
        if not self.per_timestep:
            rows = episodes * _max_steps(spec, "`recent_capacity=None`")
        # Fewer could never give a distance.
        return max(rows, self.k)

    def _bucket(
        self, timestep: Int[Array, " batch"], num_buckets: int
    ) -> Int[Array, " batch"]:
        if not self.per_timestep:
            return jnp.zeros_like(timestep)
        return jnp.minimum(timestep, num_buckets - 1)

    def _distances(
        self, state: IncrementalState, batch: Transition[Any], *, key: PRNGKeyArray
    ) -> Distances:
        past_key, recent_key = jr.split(key)
        features = self.features(batch)
        bucket = self._bucket(batch.timestep, state.past.features.shape[0])
        diversity, has_past = distance_to(
            state.past,
            features,
            bucket,
            k=self.k,
            num_samples=self.num_samples,
            key=past_key,
        )
        consistency, has_recent = distance_to(
            state.recent,
            features,
            bucket,
            k=self.k,
            num_samples=self.num_samples,
            key=recent_key,
        )
        return Distances(
            diversity=jnp.where(has_past, diversity, 1),
            has_past=has_past,
            consistency=jnp.where(has_recent, consistency, 0),
            has_recent=has_recent,
        )

    def _terms(
        self, state: IncrementalState, distances: Distances
    ) -> tuple[Float[Array, " batch"], Float[Array, " batch"]]:
        """What diversity and consistency add to the reward."""
        diversity_factor, consistency_factor = factors(
            state.scale, self.normalization, *distances.means()
        )
        # An empty past is worth the same whatever it is measured in.
        diversity = jnp.where(
            distances.has_past | (self.normalization == "released"),
            diversity_factor * distances.diversity,
            1,
        )
        consistency = consistency_factor * distances.consistency
        return self.beta * diversity, -self.alpha * consistency


def _check_room(name: str, value: Any, k: int) -> None:
    check_integer(name, value, least=1)
    if value < k:
        raise ValueError(
            f"`{name}={value}` must be at least `k={k}`: there is no k-th nearest of "
            f"fewer points. Raise `{name}`, or lower `k`."
        )


def _max_steps(spec: EnvSpec, what: str) -> int:
    if spec.max_steps is None:
        raise ValueError(
            f"{what} needs the length of an episode, but the environment has no time "
            "limit (`spec.max_steps` is None); put an `eqrl.envs.TimeLimit` around it."
        )
    return spec.max_steps


def _flat(batch: Transition[Any]) -> Transition[Any]:
    """With one leading axis, whatever the batch has; extras are left out."""
    num_axes = batch.timestep.ndim
    batch = eqx.tree_at(
        lambda batch: batch.extras, batch, None, is_leaf=lambda x: x is None
    )
    return jax.tree.map(
        lambda x: x.reshape(math.prod(x.shape[:num_axes]), *x.shape[num_axes:]), batch
    )
