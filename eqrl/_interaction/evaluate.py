from collections.abc import Callable
from typing import Any, Generic, overload

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray
from typing_extensions import TypeVar

from .._agents.base import AbstractAgent
from .._pytree.arguments import checked
from .._pytree.fields import PositiveInt, reusable_key
from .._types.custom_types import EnvState, Extras, Memory, Mode, State
from .._types.data import Transition
from ..envs import AbstractEnv
from .actors import start
from .fit import explaining_misfits
from .rollout import jit_rollout, limit_of, play_until_over, zero_outside


Described = TypeVar("Described", default=Any)


class Evaluation(eqx.Module, Generic[Described]):
    """Returns, lengths and descriptors of episodes."""

    returns: Float[Array, " episodes"] | Float[Array, "episodes reward"]
    lengths: Int[Array, " episodes"]
    descriptors: Described


Evaluation.__init__.__doc__ = """**Arguments:**

- `returns`: undiscounted sum of the rewards of each episode; a vector each if the
    environment's reward is a vector.
- `lengths`: number of steps of each episode.
- `descriptors`: of each episode, with a leading axis `episodes`; `None` without a
    `descriptor`.
"""

Descriptor = Callable[[Transition[Any], Bool[Array, " time"]], Described]


@overload
def evaluate(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    *,
    num_episodes: int,
    key: PRNGKeyArray,
    mode: Mode = "greedy",
    max_steps: int | None = None,
    descriptor: None = None,
) -> Evaluation[None]: ...


@overload
def evaluate(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    *,
    num_episodes: int,
    key: PRNGKeyArray,
    mode: Mode = "greedy",
    max_steps: int | None = None,
    descriptor: Descriptor[Described],
) -> Evaluation[Described]: ...


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
    descriptor: Descriptor | None = None,
) -> Evaluation:
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
    limit, num_episodes = limit_of(env, max_steps), int(num_episodes)
    key = reusable_key(key)
    if descriptor is None:
        return _play(agent, state, env, num_episodes, limit, mode=mode, key=key)
    transitions, mask = jit_rollout(
        agent, state, env, num_episodes, limit, mode=mode, key=key
    )
    return _describe(transitions, mask, descriptor)


@eqx.filter_jit
def _describe(
    transitions: Transition[Extras],
    mask: Bool[Array, "episodes time"],
    descriptor: Descriptor[Described],
) -> Evaluation[Described]:
    return Evaluation(
        returns=jnp.sum(zero_outside(mask, transitions.reward), axis=1),
        lengths=jnp.sum(mask, axis=1),
        descriptors=jax.vmap(descriptor)(transitions, mask),
    )


@eqx.filter_jit
def _play(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    num_episodes: int,
    max_steps: int,
    *,
    mode: Mode,
    key: PRNGKeyArray,
) -> Evaluation[None]:
    # Stops when the last episode is over, which `rollout`, a scan, cannot.
    start_key, step_key = jr.split(key)
    with explaining_misfits(agent, state, env.spec):
        actors = start(agent, state, env, num_envs=num_episodes, key=start_key)
        episodes = play_until_over(
            agent, state, env, actors, max_steps=max_steps, mode=mode, key=step_key
        )
    return Evaluation(
        returns=episodes.returns, lengths=episodes.lengths, descriptors=None
    )
