"""Whole episodes, each from its beginning and no further than its end."""

from collections.abc import Callable
from typing import Any, Generic

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped

from .._agents.base import AbstractAgent
from .._pytree.arguments import checked
from .._pytree.control_flow import filter_scan, filter_while_loop
from .._pytree.fields import PositiveInt, reusable_key
from .._types.custom_types import EnvState, Extras, Memory, Mode, PyTree, State
from .._types.data import Transition
from ..envs import AbstractEnv
from .actors import Actors, advance, advance_all, start
from .fit import explaining_misfits


class Episodes(eqx.Module, Generic[EnvState, Memory]):
    """One episode, or a stack of them, as far as they have been played.

    - `actors`: continue after the end of an episode, where nothing is counted.
    - `terminated`, `truncated`: how the episode ended, if it has.
    - `returns`, `lengths`: sum of rewards and number of steps.
    """

    actors: Actors[EnvState, Memory]
    terminated: Bool[Array, "*episodes"]
    truncated: Bool[Array, "*episodes"]
    returns: Float[Array, "*episodes"] | Float[Array, "*episodes reward"]
    lengths: Int[Array, "*episodes"]

    @property
    def alive(self) -> Bool[Array, "*episodes"]:
        return ~(self.terminated | self.truncated)


def _episodes(actors: Actors[EnvState, Memory]) -> Episodes[EnvState, Memory]:
    no = jnp.zeros(actors.timestep.shape, bool)
    return Episodes(
        actors=actors,
        terminated=no,
        truncated=no,
        returns=actors.episode_return,
        lengths=jnp.zeros(no.shape, int),
    )


def _advance(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    episodes: Episodes[EnvState, Memory],
    *,
    mode: Mode,
    key: PRNGKeyArray,
) -> tuple[Episodes[EnvState, Memory], Transition[Extras]]:
    """One step of every episode."""
    alive = episodes.alive
    step = advance if alive.ndim == 0 else advance_all
    actors, transitions = step(agent, state, env, episodes.actors, mode=mode, key=key)
    after = Episodes(
        actors=actors,
        terminated=episodes.terminated | (alive & transitions.terminated),
        truncated=episodes.truncated | (alive & transitions.truncated),
        returns=episodes.returns + zero_outside(alive, transitions.reward),
        lengths=episodes.lengths + alive.astype(int),
    )
    return after, transitions


def zero_outside(
    mask: Bool[Array, "*batch"], values: Shaped[Array, "..."]
) -> Shaped[Array, "..."]:
    """`values`, which have the axes of `mask` and maybe more, with zeros outside it."""
    extra_axes = (1,) * (values.ndim - mask.ndim)
    return jnp.where(mask.reshape(mask.shape + extra_axes), values, 0)


def play_until_over(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    actors: Actors[EnvState, Memory],
    *,
    max_steps: int,
    mode: Mode,
    key: PRNGKeyArray,
) -> Episodes[EnvState, Memory]:
    """Plays until every episode is over, by at most `max_steps` steps.

    `actors` are one or a stack, at which the episodes begin to be counted.
    """

    def going_on(
        carry: tuple[Int[Array, ""], Episodes[EnvState, Memory]],
    ) -> Bool[Array, ""]:
        index, episodes = carry
        return (index < max_steps) & jnp.any(episodes.alive)

    def step(
        carry: tuple[Int[Array, ""], Episodes[EnvState, Memory]],
    ) -> tuple[Int[Array, ""], Episodes[EnvState, Memory]]:
        index, episodes = carry
        step_key = jr.fold_in(key, index)
        after, _ = _advance(agent, state, env, episodes, mode=mode, key=step_key)
        return index + 1, after

    init = (jnp.zeros((), int), _episodes(actors))
    return filter_while_loop(going_on, step, init)[1]


def record_steps(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    actors: Actors[EnvState, Memory],
    *,
    max_steps: int,
    mode: Mode,
    key: PRNGKeyArray,
    record: Callable[[Actors[EnvState, Memory], Transition[Extras]], PyTree],
) -> tuple[PyTree, Bool[Array, "time episodes"]]:
    """Plays exactly `max_steps` steps and records something of each.

    **Returns:**

    What `record` gives of the actors after each step and of the step's transitions,
    stacked along a leading axis `time`; and which steps are within their episodes.
    """

    def step(
        episodes: Episodes[EnvState, Memory], index: Int[Array, ""]
    ) -> tuple[Episodes[EnvState, Memory], tuple[PyTree, Bool[Array, " episodes"]]]:
        after, transitions = _advance(
            agent, state, env, episodes, mode=mode, key=jr.fold_in(key, index)
        )
        return after, (record(after.actors, transitions), episodes.alive)

    return filter_scan(step, _episodes(actors), jnp.arange(max_steps))[1]


@checked
def rollout(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    *,
    num_episodes: PositiveInt,
    key: PRNGKeyArray,
    mode: Mode = "greedy",
    max_steps: PositiveInt | None = None,
) -> tuple[Transition[Extras], Bool[Array, "episodes time"]]:
    """Plays whole episodes side by side and returns all of their transitions.

    **Arguments:**

    - `agent`, `state`: the agent that acts, and its state.
    - `env`: the environment.
    - `num_episodes`: at least 1.
    - `key`: for actions and environments.
    - `mode`: how actions are picked.
    - `max_steps`: the most steps of an episode; `None` takes `env.spec.max_steps`.

    **Returns:**

    The transitions, with leading axes `(episodes, time)`, and a mask of the same shape
    that is true within the episode. Transitions outside it have no meaning.

    Raises a `ValueError` if neither `max_steps` nor the environment sets a limit, or if
    the state is not one of this agent in such an environment, such as a stack of them.
    """
    limit = limit_of(env, max_steps)
    key = reusable_key(key)
    return jit_rollout(agent, state, env, int(num_episodes), limit, mode=mode, key=key)


def limit_of(env: AbstractEnv[EnvState], max_steps: int | None) -> int:
    """The most steps of an episode; a `ValueError` if nothing limits them."""
    max_steps = env.spec.max_steps if max_steps is None else max_steps
    if max_steps is None:
        raise ValueError(
            "This environment has no time limit (`spec.max_steps` is None), so an "
            "episode might never end; give `max_steps`, the most steps to count."
        )
    return int(max_steps)


@eqx.filter_jit
def jit_rollout(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    num_episodes: int,
    max_steps: int,
    *,
    mode: Mode,
    key: PRNGKeyArray,
) -> tuple[Transition[Extras], Bool[Array, "episodes time"]]:
    start_key, step_key = jr.split(key)

    def transitions_of(_: Any, transitions: Transition[Extras]) -> Transition[Extras]:
        return transitions

    with explaining_misfits(agent, state, env.spec):
        recorded = record_steps(
            agent,
            state,
            env,
            start(agent, state, env, num_envs=num_episodes, key=start_key),
            max_steps=max_steps,
            mode=mode,
            key=step_key,
            record=transitions_of,
        )
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), recorded)
