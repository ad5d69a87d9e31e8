import dataclasses
from collections.abc import Sequence
from typing import Generic

import equinox as eqx
import jax
import jax.core
import jax.numpy as jnp
import jax.random as jr
import numpy as np
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from .._pytree.control_flow import filter_scan
from .._pytree.fields import (
    HOLDS_STACK,
    Count,
    checked,
    converted,
    is_key,
    static_integer,
)
from .._pytree.tree import take_element, tree_where
from .._types.custom_types import EnvState, Observation
from .._types.data import Action, Box, EnvSpec, Stacking
from ._base import AbstractEnv, AbstractEnvWrapper, AnyEnv, Outcome
from ._host import is_host, stepping_where


class AbstractStatelessWrapper(AbstractEnvWrapper[EnvState]):
    """A wrapper whose state is that of the environment inside.

    A subclass has the field `env`, and defines `spec`, `reset` and `step`, which is all
    that it takes to change rewards, actions or observations.
    """

    env: eqx.AbstractVar[AbstractEnv[EnvState]]
    """The environment inside."""

    @property
    def inner(self) -> AbstractEnv[EnvState]:
        return self.env

    def inner_state(self, state: EnvState) -> EnvState:
        return state


class ActionRepeat(AbstractStatelessWrapper[EnvState]):
    """An environment that takes each action several times.

    A step ends early if the episode does, so a time limit inside is respected. Its
    reward is the sum of the rewards, without a discount. An agent's `discount` applies
    to the whole step: an agent that has `discount` without repeats needs
    `discount**num_repeats` here.
    """

    env: AbstractEnv[EnvState]
    num_repeats: int = static_integer(least=1)

    @property
    def spec(self) -> EnvSpec:
        spec = self.env.spec
        if spec.max_steps is None:
            return spec
        # The last step may have fewer repeats.
        return dataclasses.replace(
            spec, max_steps=-(-spec.max_steps // self.num_repeats)
        )

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[EnvState, Observation[Array, " obs"]]:
        return self.env.reset(key=key)

    def step(
        self, state: EnvState, action: Action, *, key: PRNGKeyArray
    ) -> tuple[EnvState, Outcome]:
        def repeat(
            carry: tuple[EnvState, Outcome], index: Int[Array, ""]
        ) -> tuple[tuple[EnvState, Outcome], None]:
            state, so_far = carry
            # An episode that is over keeps its state and outcome: a loop of fixed
            # length computes the remaining repeats, but drops them.
            over = so_far.terminated | so_far.truncated
            env = stepping_where(self.env, ~over)
            after, outcome = env.step(state, action, key=jr.fold_in(key, index))
            total = so_far.reward + outcome.reward
            outcome = dataclasses.replace(outcome, reward=total)
            return tree_where(over, carry, (after, outcome)), None

        _, shapes = eqx.filter_eval_shape(self.env.step, state, action, key=key)
        # The outcome before any step, to which rewards are added; it ends no episode.
        nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        (state, outcome), _ = filter_scan(
            repeat, (state, nothing), jnp.arange(self.num_repeats)
        )
        return state, outcome


ActionRepeat.__init__.__doc__ = """**Arguments:**

- `env`: any environment.
- `num_repeats`: how often each action is taken, at least 1; fewer times if the episode
    ends.
"""


class DisabledActions(AbstractStatelessWrapper[EnvState]):
    """An environment in which some elements of the action have no effect.

    The environment sees 0 for them, whatever the agent chooses; transitions hold the
    agent's choice. The mask is a leaf, so changing it does not compile anything.
    """

    env: AbstractEnv[EnvState]
    disabled: Bool[Array, " act"]

    @checked
    def __init__(
        self,
        env: AbstractEnv[EnvState],
        disabled: Bool[Array | np.ndarray, " act"]
        | Int[Array | np.ndarray, " disabled"]
        | Sequence[int],
    ) -> None:
        """**Arguments:**

        - `env`: an environment whose actions are vectors.
        - `disabled`: a mask of the elements of the action, true for those that are
            disabled; or their indices, from 0, possibly none.
        """
        self.env = env
        if not isinstance(env.spec.action, Box):
            raise ValueError(
                f"`env` has the actions `{env.spec.action}`, which have no elements to "
                "disable; `DisabledActions` needs an `eqrl.spaces.Box`."
            )
        size = env.spec.action_size
        what = f"must be the indices of elements of the action, or {size} bools."
        given = converted("disabled", jnp.asarray, disabled, what)
        if given.size == 0:
            # JAX turns an empty sequence into floats.
            given = given.astype(int)
        is_mask = given.dtype == bool
        is_integer = jnp.issubdtype(given.dtype, jnp.integer)
        if given.ndim != 1 or not (given.shape == (size,) if is_mask else is_integer):
            raise ValueError(
                f"`disabled` has shape {given.shape} and type {given.dtype}, but the "
                f"environment's actions have {size} elements; give {size} bools, or "
                "indices of elements."
            )
        # Traced indices cannot be checked; JAX ignores one that is out of bounds.
        if not is_mask and not isinstance(given, jax.core.Tracer):
            wrong = [int(index) for index in given if not 0 <= index < size]
            if wrong:
                raise ValueError(
                    f"`disabled` names {wrong}, but the environment's actions have "
                    f"{size} elements, 0 to {size - 1}."
                )
        self.disabled = given if is_mask else jnp.zeros(size, bool).at[given].set(True)

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[EnvState, Observation[Array, " obs"]]:
        return self.env.reset(key=key)

    def step(
        self, state: EnvState, action: Float[Array, " act"], *, key: PRNGKeyArray
    ) -> tuple[EnvState, Outcome]:
        return self.env.step(state, jnp.where(self.disabled, 0.0, action), key=key)


class FrameStackState(eqx.Module, Generic[EnvState]):
    """State of `FrameStack`: that of its environment and the latest observations."""

    inner: EnvState
    # The oldest first.
    frames: Observation[Array, "frames obs"]


class FrameStack(AbstractEnvWrapper[FrameStackState[EnvState]]):
    """An environment that observes the latest of its observations together.

    This shows an agent without memory how things move. At the beginning of an episode
    the first observation takes the place of earlier ones.

    Vectors are concatenated, the oldest first. Images keep their height and width. If
    `spec.observation_shape` is `(height, width, channels)`, they have the channels of
    all; if it is `(height, width)`, each becomes a channel. A replay stores each
    observation of the environment about once, not `num_frames` times, if the stacked
    ones have at least 2,048 bytes.
    """

    env: AbstractEnv[EnvState]
    num_frames: int = static_integer(least=1)

    @property
    def inner(self) -> AbstractEnv[EnvState]:
        return self.env

    def inner_state(self, state: FrameStackState[EnvState]) -> EnvState:
        return state.inner

    @property
    def spec(self) -> EnvSpec:
        spec = self.env.spec
        shape = spec.observation_shape
        if shape is not None:
            channels = shape[-1] if len(shape) != 2 else 1
            space = shape[:-1] if len(shape) != 2 else shape
            shape = (*space, channels * self.num_frames)
        return dataclasses.replace(
            spec,
            observation_size=spec.observation_size * self.num_frames,
            observation_shape=shape,
        )

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[FrameStackState[EnvState], Observation[Array, " obs"]]:
        inner, observation = self.env.reset(key=key)
        frames = jnp.tile(observation[None], (self.num_frames, 1))
        return FrameStackState(inner=inner, frames=frames), self.stacking.together(
            frames
        )

    def step(
        self, state: FrameStackState[EnvState], action: Action, *, key: PRNGKeyArray
    ) -> tuple[FrameStackState[EnvState], Outcome]:
        inner, outcome = self.env.step(state.inner, action, key=key)
        frames = jnp.concatenate([state.frames[1:], outcome.observation[None]])
        outcome = dataclasses.replace(
            outcome, observation=self.stacking.together(frames)
        )
        return FrameStackState(inner=inner, frames=frames), outcome

    @property
    def stacking(self) -> Stacking:
        """The frames that its observations consist of."""
        spec = self.env.spec
        shape, size = spec.observation_shape, spec.observation_size
        if shape is None or len(shape) == 1:
            return Stacking(self.num_frames, 1, size)
        # After height and width, and before the channels if there are any.
        channels = 1 if len(shape) == 2 else shape[-1]
        return Stacking(self.num_frames, size // channels, channels)


FrameStack.__init__.__doc__ = """**Arguments:**

- `env`: any environment.
- `num_frames`: how many observations, the current one included, at least 1.
"""


class Masked(AbstractStatelessWrapper[EnvState]):
    """An environment in which some elements of the observations are hidden.

    They are left out, so observations are shorter, in the same order. Without
    velocities, for example, an agent has to remember. A masked image is no longer an
    image: `spec.observation_shape` is `None` if anything is hidden.
    """

    env: AbstractEnv[EnvState]
    hidden: tuple[int, ...] = eqx.field(static=True)

    @checked
    def __init__(
        self,
        env: AbstractEnv[EnvState],
        hidden: Int[Array | np.ndarray, " hidden"] | Sequence[int],
    ) -> None:
        """**Arguments:**

        - `env`: any environment.
        - `hidden`: the indices of the elements to hide, from 0, possibly none, but not
            all.
        """
        self.env = env
        size = env.spec.observation_size
        what = "must be the indices of elements of the observation, such as `(2, 3)`."
        given = converted("hidden", np.asarray, hidden, what)
        is_integer = given.size == 0 or np.issubdtype(given.dtype, np.integer)
        if given.ndim != 1 or not is_integer:
            raise ValueError(
                f"`hidden` has shape {given.shape} and type {given.dtype}; it {what}"
            )
        # Without repeats and in order, so that equal wrappers share compilations.
        self.hidden = tuple(np.unique(given).tolist())
        wrong = [index for index in self.hidden if not 0 <= index < size]
        if wrong:
            raise ValueError(
                f"`hidden` names {wrong}, but the environment's observations have "
                f"{size} elements, 0 to {size - 1}."
            )
        if len(self.hidden) == size:
            raise ValueError(
                f"`hidden` names all {size} elements of the observation; leave one to "
                "see."
            )

    @property
    def spec(self) -> EnvSpec:
        spec = self.env.spec
        if not self.hidden:
            return spec
        return dataclasses.replace(
            spec,
            observation_size=spec.observation_size - len(self.hidden),
            observation_shape=None,
        )

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[EnvState, Observation[Array, " obs"]]:
        state, observation = self.env.reset(key=key)
        return state, self._seen(observation)

    def step(
        self, state: EnvState, action: Action, *, key: PRNGKeyArray
    ) -> tuple[EnvState, Outcome]:
        state, outcome = self.env.step(state, action, key=key)
        seen = self._seen(outcome.observation)
        return state, dataclasses.replace(outcome, observation=seen)

    def _seen(
        self, observation: Observation[Array, " obs"]
    ) -> Observation[Array, " seen"]:
        return jnp.delete(observation, np.array(self.hidden, int))


class PooledReset(AbstractStatelessWrapper[EnvState]):
    """Begins every episode in one of a fixed number of initial states.

    For environments with an expensive reset, such as those of brax's `generalized` and
    `mjx` backends. Without a pool, fewer than 64 environments are all reset in each
    step in which any episode ends, and in every step if `vmap` maps over the training;
    of more, only those whose episodes have ended are.

    If the state holds a typed key for the randomness of steps, each episode gets a new
    one.
    """

    env: AbstractEnv[EnvState]
    _states: EnvState = eqx.field(metadata=HOLDS_STACK)
    _observations: Observation[Array, "states obs"]

    @checked
    def __init__(
        self, env: AbstractEnv[EnvState], num_states: Count, *, key: PRNGKeyArray
    ) -> None:
        """**Arguments:**

        - `env`: an environment in JAX.
        - `num_states`: number of initial states, at least 1. An agent does not see any
            others, so use many.
        - `key`: for the resets that compute them.
        """
        if is_host(env):
            raise ValueError(
                "`env` is a simulator outside JAX, whose states cannot be pooled; use "
                "it without `PooledReset`."
            )
        self.env = env
        self._states, self._observations = _reset_many(env, jr.split(key, num_states))

    @property
    def spec(self) -> EnvSpec:
        return self.env.spec

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[EnvState, Observation[Array, " obs"]]:
        # Drawn with replacement: environments and episodes may share a state.
        index = jr.randint(key, (), 0, self._observations.shape[0])
        state, observation = take_element((self._states, self._observations), index)

        def renewed(leaf: Array) -> Array:
            # Otherwise episodes from one state would share all later randomness.
            if not is_key(leaf):
                return leaf
            # `randint` draws from the keys folded with 0 and 1.
            bits = jr.bits(jr.fold_in(key, 2))
            keys = jax.vmap(lambda each: jr.fold_in(each, bits))(leaf.reshape(-1))
            return keys.reshape(leaf.shape)

        arrays, rest = eqx.partition(state, eqx.is_array)
        return eqx.combine(jax.tree.map(renewed, arrays), rest), observation

    def step(
        self, state: EnvState, action: Action, *, key: PRNGKeyArray
    ) -> tuple[EnvState, Outcome]:
        return self.env.step(state, action, key=key)


# One program for all resets. Run eagerly, each operation of a reset would be compiled
# and dispatched by itself.
@eqx.filter_jit
def _reset_many(
    env: AbstractEnv[EnvState], keys: Key[Array, " states"]
) -> tuple[EnvState, Observation[Array, "states obs"]]:
    return eqx.filter_vmap(lambda key: env.reset(key=key))(keys)


class TimeLimitState(eqx.Module, Generic[EnvState]):
    """State of `TimeLimit`: that of its environment and the steps since the reset."""

    inner: EnvState
    num_steps: Int[Array, ""]


class TimeLimit(AbstractEnvWrapper[TimeLimitState[EnvState]]):
    """Truncates the episodes of an environment after a number of steps.

    An episode that terminates at the limit is terminated, not truncated.
    """

    env: AbstractEnv[EnvState]
    max_steps: Count = static_integer(least=1)

    @property
    def inner(self) -> AbstractEnv[EnvState]:
        return self.env

    def inner_state(self, state: TimeLimitState[EnvState]) -> EnvState:
        return state.inner

    @property
    def spec(self) -> EnvSpec:
        spec = self.env.spec
        max_steps = self.max_steps
        if spec.max_steps is not None:
            max_steps = min(max_steps, spec.max_steps)
        return dataclasses.replace(spec, max_steps=max_steps)

    def reset(
        self, *, key: PRNGKeyArray
    ) -> tuple[TimeLimitState[EnvState], Observation[Array, " obs"]]:
        inner, observation = self.env.reset(key=key)
        num_steps = jnp.array(0, dtype=jnp.result_type(int))
        return TimeLimitState(inner=inner, num_steps=num_steps), observation

    def step(
        self, state: TimeLimitState[EnvState], action: Action, *, key: PRNGKeyArray
    ) -> tuple[TimeLimitState[EnvState], Outcome]:
        inner, outcome = self.env.step(state.inner, action, key=key)
        num_steps = state.num_steps + 1
        # The environment may truncate by itself, and earlier.
        limit_reached = outcome.truncated | (num_steps >= self.max_steps)
        truncated = limit_reached & ~outcome.terminated
        outcome = dataclasses.replace(outcome, truncated=truncated)
        return TimeLimitState(inner=inner, num_steps=num_steps), outcome


TimeLimit.__init__.__doc__ = """**Arguments:**

- `env`: any environment. If it has a time limit, too, the shorter one applies.
- `max_steps`: length of the longest episode, at least 1.
"""


def stacking_of(env: AnyEnv) -> Stacking:
    """The frames that observations of an environment consist of.

    If nothing is known, as inside a custom wrapper, each is one frame.
    """
    # These pass each observation on, and their episodes begin with those inside.
    while isinstance(env, DisabledActions | PooledReset | TimeLimit):
        env = env.env
    # A custom environment may use this name for something else.
    found = getattr(env, "stacking", None)
    if isinstance(found, Stacking):
        return found
    return Stacking(1, 1, env.spec.observation_size)
