"""Plays whole episodes, each from its beginning to its end, and measures them."""

import functools
from collections.abc import Callable
from typing import Any, Generic

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, Shaped
from typing_extensions import TypeVar

from .._agents.base import AbstractAgent, AnyAgent
from .._pytree.control_flow import filter_scan, filter_while_loop
from .._pytree.fields import PositiveInt, checked, reusable_key
from .._types.custom_types import EnvState, Extras, Memory, Mode, PyTree, State
from .._types.data import AnyTransition, Transition
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from ..envs._host import checked_result, release
from .actors import Actors, advance, advance_with_keys, start
from .fit import explaining_misfits


Described = TypeVar("Described", default=Any)

# Without a `descriptor` to infer it from, it is `None`.
_Described = TypeVar("_Described", default=None)


class Evaluation(eqx.Module, Generic[Described]):
    """Returns, lengths and descriptors of episodes."""

    returns: Float[Array, " episodes"] | Float[Array, "episodes reward"]
    lengths: Int[Array, " episodes"]
    descriptors: Described


Evaluation.__init__.__doc__ = """**Arguments:**

- `returns`: undiscounted sum of the rewards of each episode; a vector each if the
    environment's reward is a vector.
- `lengths`: number of steps of each episode.
- `descriptors`: the descriptor of each episode, with a leading axis `episodes`; `None`
    without a `descriptor`.
"""

Descriptor = Callable[[AnyTransition, Bool[Array, " time"]], Described]


@checked
def evaluate(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    *,
    num_episodes: PositiveInt,
    key: PRNGKeyArray,
    mode: Mode = "greedy",
    max_steps: PositiveInt | None = None,
    descriptor: Descriptor[_Described] | None = None,
) -> Evaluation[_Described]:
    """Plays whole episodes side by side and measures them, without learning.

    **Arguments:**

    - `agent`, `state`: the agent that acts, and its state.
    - `env`: the environment.
    - `num_episodes`: at least 1.
    - `key`: for actions and environments.
    - `mode`: how actions are picked.
    - `max_steps`: the most steps of an episode; `None` takes `env.spec.max_steps`.
    - `descriptor`: a function of the transitions of one episode, with a leading axis
        `time`, and of a mask `(time,)` that is true within the episode, which returns
        any pytree of arrays. Pass a function defined once: each new lambda compiles
        again. All transitions of all episodes are then held in memory.

    **Returns:**

    The returns, the lengths and the descriptors of the episodes.

    Raises a `ValueError` if neither `max_steps` nor the environment sets a limit, or if
    the state is not one of this agent in such an environment, such as a stack of them.
    """
    limit, num_episodes = _limit(env, max_steps), int(num_episodes)
    key = reusable_key(key)
    play = functools.partial(
        _play, agent, state, env, num_episodes, limit, mode=mode, key=key
    )
    if descriptor is None:
        return checked_result(env, functools.partial(play, record=False))
    transitions, mask = checked_result(env, functools.partial(play, record=True))
    return _describe(transitions, mask, descriptor)


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
    limit, num_episodes = _limit(env, max_steps), int(num_episodes)
    key = reusable_key(key)
    play = functools.partial(
        _play, agent, state, env, num_episodes, limit, record=True, mode=mode, key=key
    )
    return checked_result(env, play)


def _limit(env: AnyEnv, max_steps: int | None) -> int:
    """The most steps of an episode."""
    max_steps = env.spec.max_steps if max_steps is None else max_steps
    if max_steps is None:
        raise ValueError(
            "This environment has no time limit (`spec.max_steps` is None), so an "
            "episode might never end; put an `eqrl.envs.TimeLimit` around it, declare "
            "`max_steps` in its `spec` if it ends episodes by itself, or give "
            "`max_steps`, the most steps to count, where that is an argument."
        )
    return int(max_steps)


@eqx.filter_jit
def _play(
    agent: AnyAgent,
    state: PyTree,
    env: AnyEnv,
    num_episodes: int,
    max_steps: int,
    *,
    record: bool,
    mode: Mode,
    key: PRNGKeyArray,
) -> PyTree:
    """Plays episodes: their `Evaluation`, or the result of `rollout` with `record`."""
    start_key, step_key = jr.split(key)
    with explaining_misfits(agent, state, env.spec):
        actors = start(agent, state, env, num_envs=num_episodes, key=start_key)
        if record:
            recorded = record_steps(
                agent,
                state,
                env,
                actors,
                max_steps=max_steps,
                mode=mode,
                key=step_key,
                record=lambda actors, transitions: transitions,
            )
            # A scan stacks time in front.
            return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), recorded)
        # Unlike a scan, this ends as soon as the last episode is over.
        episodes = play_until_over(
            agent, state, env, actors, max_steps=max_steps, mode=mode, key=step_key
        )
        release(episodes.actors.env_state)
    return Evaluation(
        returns=episodes.returns, lengths=episodes.lengths, descriptors=None
    )


# A separate program, so that `_play` is not compiled again for each descriptor.
@eqx.filter_jit
def _describe(
    transitions: AnyTransition,
    mask: Bool[Array, "episodes time"],
    descriptor: Descriptor[_Described],
) -> Evaluation[_Described]:
    return Evaluation(
        returns=jnp.sum(zero_outside(mask, transitions.reward), axis=1),
        lengths=jnp.sum(mask, axis=1),
        descriptors=jax.vmap(descriptor)(transitions, mask),
    )


class Episodes(eqx.Module):
    """One episode, or a stack of them, as far as they have been played.

    - `actors`: continue after the end of an episode, where nothing is counted.
    - `terminated`, `truncated`: how the episode ended, if it has.
    - `returns`, `lengths`: sum of rewards and number of steps.
    """

    actors: Actors
    terminated: Bool[Array, "*episodes"]
    truncated: Bool[Array, "*episodes"]
    returns: Float[Array, "*episodes"] | Float[Array, "*episodes reward"]
    lengths: Int[Array, "*episodes"]

    @property
    def alive(self) -> Bool[Array, "*episodes"]:
        return ~(self.terminated | self.truncated)


def _begun(actors: Actors) -> Episodes:
    no = jnp.zeros(actors.timestep.shape, bool)
    return Episodes(
        actors=actors,
        terminated=no,
        truncated=no,
        returns=actors.episode_return,
        lengths=jnp.zeros(no.shape, int),
    )


def _advance(
    agent: AnyAgent,
    state: PyTree,
    env: AnyEnv,
    episodes: Episodes,
    *,
    mode: Mode,
    key: PRNGKeyArray,
    going_on: Bool[Array, ""],
) -> tuple[Episodes, AnyTransition]:
    """One step of every episode, which is dropped unless the loop is `going_on`."""
    actors, alive = episodes.actors, episodes.alive
    active = alive & going_on
    if alive.ndim == 0:
        keys = jr.split(key)
        after, transitions = advance(
            agent, state, env, actors, mode=mode, keys=keys, active=active
        )
    else:
        keys = jax.vmap(jr.split)(jr.split(key, alive.shape[0]))
        after, transitions = advance_with_keys(
            agent, state, env, actors, keys, mode=mode, active=active
        )
    # An episode that is over is stepped along with the others, but no longer counted.
    episodes = Episodes(
        actors=after,
        terminated=episodes.terminated | (alive & transitions.terminated),
        truncated=episodes.truncated | (alive & transitions.truncated),
        returns=episodes.returns + zero_outside(alive, transitions.reward),
        lengths=episodes.lengths + alive.astype(int),
    )
    return episodes, transitions


def zero_outside(
    mask: Bool[Array, "*batch"], values: Shaped[Array, "..."]
) -> Shaped[Array, "..."]:
    """`values`, with the axes of `mask` and possibly more, set to zero outside it."""
    extra_axes = (1,) * (values.ndim - mask.ndim)
    return jnp.where(mask.reshape(mask.shape + extra_axes), values, 0)


def play_until_over(
    agent: AnyAgent,
    state: PyTree,
    env: AnyEnv,
    actors: Actors,
    *,
    max_steps: int,
    mode: Mode,
    key: PRNGKeyArray,
) -> Episodes:
    """Plays until every episode is over, for at most `max_steps` steps.

    `actors` are one or a stack; counting of the episodes begins with them.
    """

    def step(
        carry: tuple[Int[Array, ""], Episodes],
    ) -> tuple[Int[Array, ""], Episodes]:
        index, episodes = carry
        after, _ = _advance(
            agent,
            state,
            env,
            episodes,
            mode=mode,
            key=jr.fold_in(key, index),
            # Under `vmap`, a loop that has ended runs on, without any effect.
            going_on=index < max_steps,
        )
        return index + 1, after

    unfinished = lambda carry: (carry[0] < max_steps) & jnp.any(carry[1].alive)
    init = (jnp.zeros((), int), _begun(actors))
    return filter_while_loop(unfinished, step, init)[1]


def record_steps(
    agent: AnyAgent,
    state: PyTree,
    env: AnyEnv,
    actors: Actors,
    *,
    max_steps: int,
    mode: Mode,
    key: PRNGKeyArray,
    record: Callable[[Actors, AnyTransition], PyTree],
) -> tuple[PyTree, Bool[Array, "time episodes"]]:
    """Plays exactly `max_steps` steps and stacks the results of `record`.

    `record` takes the actors after a step and the step's transitions. The mask is true
    for steps within their episodes.
    """

    def step(
        episodes: Episodes, index: Int[Array, ""]
    ) -> tuple[Episodes, tuple[PyTree, Bool[Array, " episodes"]]]:
        after, transitions = _advance(
            agent,
            state,
            env,
            episodes,
            mode=mode,
            key=jr.fold_in(key, index),
            going_on=jnp.array(True),
        )
        # The step that ends an episode is within it, so the mask is that before it.
        return after, (record(after.actors, transitions), episodes.alive)

    played, recorded = filter_scan(step, _begun(actors), jnp.arange(max_steps))
    release(played.actors.env_state)
    return recorded
