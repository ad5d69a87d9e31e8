from typing import get_args

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from .._pytree.fields import (
    check_choice,
    check_fields,
    checked_by,
    hyperparameter,
    static_choice,
    static_integer,
)
from .._types.custom_types import Extras, FloatLike, Metrics
from .._types.data import EnvSpec, Transition, flatten_batch
from .base import (
    AbstractReward,
    StateDescriptor,
    as_if_left,
    check_descriptor,
    describe,
    descriptor_size,
)
from .feature_set import (
    Distances,
    FeatureSet,
    add_points,
    clear,
    distance_to,
    empty_set,
)
from .scale import (
    MODES,
    Feature,
    IncrementalMode,
    ModeName,
    Normalization,
    Scale,
    factors,
    first_scale,
    next_scale,
    update_scale,
)


# Mean distances are computed from the first transitions of a batch, this many.
_NUM_MEASURED = 32


class IncrementalState(eqx.Module):
    """State of `Incremental`: features of the earlier skills and of the current one."""

    past: FeatureSet
    recent: FeatureSet
    scale: Scale


IncrementalState.__init__.__doc__ = """**Arguments:**

- `past`: features of earlier skills.
- `recent`: features of the newest transitions.
- `scale`: means of the distances, which normalize them.
"""


class Incremental(AbstractReward[IncrementalState]):
    """The reward of DISk: behave consistently, and unlike any earlier skill.

    The reward of a transition is `beta * diversity - alpha * consistency`. Diversity is
    the distance of its feature to the k-th nearest past feature: those of earlier
    skills, which `eqrl.learn_skills` collects. Consistency is the distance to the k-th
    nearest recent feature: those of the newest transitions. With fewer than k past
    features, as for the first skill, diversity is 1; if episodes can terminate, that
    rewards survival. With fewer than k recent features, consistency is 0.

    Each distance is divided by its mean over the previous skill or, if that is not
    known, over the batch. The divisor is at least a hundredth of the batch's mean.

    The metrics are `diversity` and `consistency`, the means over the first 32
    transitions of a batch, before they are divided.

    Differences from the paper's released code: time limits do not terminate; the past
    features include those of the newest skill; the divisors are means of the distances
    themselves and of the previous skill only; no temperature turns consistency into
    dispersion within a skill. `mode="released"` follows the code in the last three,
    with these exceptions: `"released"` normalization computes its means from 32
    transitions of a batch, at every 10,000th update rather than environment step, and
    never divides by zero; and if the world changes within a skill, earlier skills are
    rolled out again immediately, as in `mode="paper"`.

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

    per_timestep: bool = eqx.field(static=True)
    descriptor: StateDescriptor = eqx.field(
        static=True, metadata=checked_by(check_descriptor)
    )
    recent_capacity: int | None = static_integer(None, least=1)
    mode: ModeName = static_choice(choices=MODES)
    k: int = static_integer(least=1)
    num_samples: int = static_integer(least=1)
    past_capacity: int = static_integer(least=0)
    feature: Feature = static_choice(choices=get_args(Feature))
    normalization: Normalization = static_choice(choices=get_args(Normalization))
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
        - `mode`: `"paper"`, `"pseudocode"` or `"released"`: the defaults of `k`,
            `feature`, `normalization` and `per_timestep`, and what `eqrl.learn_skills`
            does between two skills. `dataclasses.replace`, and so a sweep over `mode`,
            changes only the latter, and the capacity if `recent_capacity` is `None`,
            and keeps the values of the four.
        - `k`: the distance is to the k-th nearest neighbor; at least 1.
        - `num_samples`: number of points of each set that a batch is compared with,
            drawn anew for each batch without replacement; all of them if the set has
            fewer.
        - `feature`: `"delta"`, the change of the descriptor; or `"next_state"`, the
            descriptor of the state reached.
        - `normalization`: `"previous_skill_mean"`; `"batch_mean"`, which makes the mean
            of each term over a batch its weight; `"none"`; or `"released"`.
        - `per_timestep`: whether a transition is compared only with those of the same
            timestep of their episodes.
        - `descriptor`: the description of a state: `"state_descriptor"`, that of the
            environment; `"observation"`; `"both"`, joined; or a function of one
            observation.
        - `recent_capacity`: capacity of the set of recent features, with `per_timestep`
            for each timestep. `None` takes that of the mode, in `"paper"` the length of
            an episode at the time limit.
        - `past_capacity`: capacity of the set of past features, likewise.
            `eqrl.learn_skills` sets it.
        """
        # `check_fields` would run only after the defaults of the mode are looked up.
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
        check_fields(self)
        for name in ("num_samples", "recent_capacity"):
            value = getattr(self, name)
            if value is not None and value < self.k:
                raise ValueError(
                    f"`{name}={value}` must be at least `k={self.k}`: there is no k-th "
                    f"nearest of fewer points. Raise `{name}`, or lower `k`."
                )

    @property
    def preset(self) -> IncrementalMode:
        """The settings of the mode."""
        return MODES[self.mode]

    def init(self, spec: EnvSpec, *, key: PRNGKeyArray) -> IncrementalState:
        del key
        size = descriptor_size(self.descriptor, spec)
        num_buckets = self.num_buckets(spec)
        recent_rows = self.recent_capacity
        if recent_rows is None:
            recent_rows = self.preset.num_recent_episodes
            if not self.per_timestep:
                recent_rows *= _max_steps(spec, "`recent_capacity=None`")
            # With fewer than k rows no distance could ever be measured.
            recent_rows = max(recent_rows, self.k)
        return IncrementalState(
            past=empty_set(num_buckets, self.past_capacity, size),
            recent=empty_set(num_buckets, recent_rows, size),
            scale=first_scale(),
        )

    def observe(
        self, state: IncrementalState, transitions: Transition[Extras]
    ) -> IncrementalState:
        features = self.features(transitions)
        num_buckets = state.recent.features.shape[0]
        # Each bucket is given all transitions and keeps its own, since their number is
        # not known while tracing.
        bucket = self._bucket(transitions.timestep, num_buckets)
        keep = jnp.arange(num_buckets)[:, None] == bucket[None]
        features = jnp.broadcast_to(features, (num_buckets, *features.shape))
        recent = add_points(state.recent, features, keep)
        return eqx.tree_at(lambda state: state.recent, state, recent)

    def reward(
        self,
        state: IncrementalState,
        batch: Transition[Extras],
        *,
        step: Int[Array, ""],
        key: PRNGKeyArray,
    ) -> Float[Array, "*batch"]:
        del step
        distances = self._distances(state, flatten_batch(batch), key=key)
        diversity, consistency = self._terms(state, *distances)
        return lax.stop_gradient(diversity + consistency).reshape(batch.timestep.shape)

    def update(
        self, state: IncrementalState, batch: Transition[Extras], *, key: PRNGKeyArray
    ) -> tuple[IncrementalState, Metrics]:
        rows = jax.tree.map(lambda x: x[:_NUM_MEASURED], flatten_batch(batch))
        diversity, consistency = self._distances(state, rows, key=key)
        terms = self._terms(state, diversity, consistency)
        scale = update_scale(state.scale, diversity, consistency, *map(jnp.mean, terms))
        state = eqx.tree_at(lambda state: state.scale, state, scale)
        return state, {"diversity": diversity.mean(), "consistency": consistency.mean()}

    def num_buckets(self, spec: EnvSpec) -> int:
        """The number of buckets of each set: one, or one for each timestep."""
        return _max_steps(spec, "`per_timestep`") if self.per_timestep else 1

    def features(
        self, transitions: Transition[Extras]
    ) -> Float[Array, "*batch descriptor"]:
        """Features of transitions with any leading axes."""
        reached = self.descriptors(transitions)
        if self.feature == "next_state":
            return reached
        return reached - self.descriptors(as_if_left(transitions))

    def descriptors(
        self, transitions: Transition[Extras]
    ) -> Float[Array, "*batch descriptor"]:
        """Descriptors of the states reached, with any leading axes."""
        return describe(self.descriptor, transitions)

    def without_past(self, state: IncrementalState) -> IncrementalState:
        """Removes all past features."""
        return eqx.tree_at(lambda state: state.past, state, clear(state.past))

    def with_past(
        self,
        state: IncrementalState,
        transitions: Transition[Extras],
        mask: Bool[Array, "episodes time"],
    ) -> IncrementalState:
        """Adds the features of a skill's episodes to the past.

        `transitions` and `mask` are as `eqrl.rollout` returns them.
        """
        features = self.features(transitions)
        # `add_points` takes buckets first: timesteps, or one for all transitions.
        if self.per_timestep:
            features, mask = jnp.swapaxes(features, 0, 1), jnp.swapaxes(mask, 0, 1)
        else:
            features = features.reshape(1, -1, features.shape[-1])
            mask = mask.reshape(1, -1)
        past = add_points(state.past, features, mask)
        return eqx.tree_at(lambda state: state.past, state, past)

    def begin_skill(
        self, state: IncrementalState, *, num_updates: FloatLike
    ) -> IncrementalState:
        """The state at the beginning of the next skill.

        **Arguments:**

        - `state`: at the end of the previous skill.
        - `num_updates`: number of updates of the next skill, as if without a warm-up.
        """
        scale = next_scale(
            state.scale, alpha=self.alpha, beta=self.beta, expected_calls=num_updates
        )
        recent = clear(state.recent) if self.preset.clear_recent else state.recent
        return IncrementalState(past=state.past, recent=recent, scale=scale)

    def _bucket(
        self, timestep: Int[Array, " batch"], num_buckets: int
    ) -> Int[Array, " batch"]:
        if not self.per_timestep:
            return jnp.zeros_like(timestep)
        # The environment may be another one, with longer episodes.
        return jnp.minimum(timestep, num_buckets - 1)

    def _distances(
        self, state: IncrementalState, batch: Transition[Extras], *, key: PRNGKeyArray
    ) -> tuple[Distances, Distances]:
        """The distances to the past and to the recent features."""
        features = self.features(batch)
        bucket = self._bucket(batch.timestep, state.past.features.shape[0])
        past_key, recent_key = jr.split(key)

        def measure(
            points: FeatureSet, *, default: float, key: PRNGKeyArray
        ) -> Distances:
            return distance_to(
                points,
                features,
                bucket,
                k=self.k,
                num_samples=self.num_samples,
                default=default,
                key=key,
            )

        return (
            measure(state.past, default=1.0, key=past_key),
            measure(state.recent, default=0.0, key=recent_key),
        )

    def _terms(
        self, state: IncrementalState, diversity: Distances, consistency: Distances
    ) -> tuple[Float[Array, " batch"], Float[Array, " batch"]]:
        """The two terms of the reward, with their signs."""
        diversity_factor, consistency_factor = factors(
            state.scale, self.normalization, diversity.mean(), consistency.mean()
        )
        # Without a past, diversity is 1, which only the released code scales.
        diversity_term = jnp.where(
            diversity.known | (self.normalization == "released"),
            diversity_factor * diversity.values,
            1,
        )
        consistency_term = consistency_factor * consistency.values
        return self.beta * diversity_term, -self.alpha * consistency_term


def _max_steps(spec: EnvSpec, what: str) -> int:
    if spec.max_steps is None:
        raise ValueError(
            f"{what} needs the length of an episode, but the environment has no time "
            "limit (`spec.max_steps` is None); put an `eqrl.envs.TimeLimit` around it."
        )
    return spec.max_steps
