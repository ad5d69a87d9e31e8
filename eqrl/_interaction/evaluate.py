from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray, PyTree

from .._agents import AbstractAgent
from .._pytree.control_flow import filter_scan, filter_while_loop
from .._pytree.fields import check_integer
from .._types.custom_types import EnvState, Extras, Memory, Mode, State
from .._types.data import Transition
from ..envs import AbstractEnv
from .actors import advance_all, start


def _check_lengths(
    env: AbstractEnv[EnvState], num_episodes: int, max_steps: int | None
) -> tuple[int, int]:
    max_steps = env.spec.max_steps if max_steps is None else max_steps
    if max_steps is None:
        raise ValueError(
            "This environment has no time limit (`spec.max_steps` is None), so an "
            "episode might never end; give `max_steps`, the most steps to count."
        )
    check_integer("max_steps", max_steps, least=1)
    check_integer("num_episodes", num_episodes, least=1)
    return int(num_episodes), int(max_steps)


def rollout(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    *,
    num_episodes: int,
    key: PRNGKeyArray,
    mode: Mode = "greedy",
    max_steps: int | None = None,
) -> tuple[Transition[Extras], Bool[Array, "episodes time"]]:
    """Plays episodes side by side, each from its beginning and no further than its end.

    **Arguments:**

    - `agent`, `state`: who acts.
    - `env`: where.
    - `num_episodes`: at least 1.
    - `key`: for actions and environments.
    - `mode`: how actions are picked.
    - `max_steps`: the most steps of an episode; `None` takes `env.spec.max_steps`.

    **Returns:**

    The transitions, with leading axes `(episodes, time)`, and a mask of the same shape
    which is true within the episode. What the transitions hold elsewhere means nothing.

    Raises a `ValueError` where neither `max_steps` nor the environment sets a limit.
    """
    num_episodes, limit = _check_lengths(env, num_episodes, max_steps)
    return _rollout(agent, state, env, num_episodes, limit, mode=mode, key=key)


@eqx.filter_jit
def _rollout(
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
    actors = start(agent, state, env, num_envs=num_episodes, key=start_key)

    def step(
        carry: tuple[PyTree, Bool[Array, " episodes"]], index: Int[Array, ""]
    ) -> tuple[PyTree, PyTree]:
        actors, alive = carry
        actors, transitions = advance_all(
            agent, state, env, actors, mode=mode, key=jr.fold_in(step_key, index)
        )
        over = transitions.terminated | transitions.truncated
        return (actors, alive & ~over), (transitions, alive)

    alive = jnp.ones(num_episodes, bool)
    _, (transitions, mask) = filter_scan(step, (actors, alive), jnp.arange(max_steps))
    return jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), (transitions, mask))


class Evaluation(eqx.Module):
    """How episodes went."""

    returns: Float[Array, " episodes"] | Float[Array, "episodes reward"]
    lengths: Int[Array, " episodes"]
    descriptors: PyTree


Evaluation.__init__.__doc__ = """**Arguments:**

- `returns`: the rewards of each episode, summed without a discount; a vector each where
    the environment's reward is one.
- `lengths`: steps of each episode.
- `descriptors`: of each episode, with a leading axis `episodes`; `None` where no
    descriptor was asked for.
"""

Descriptor = Callable[[Transition[Any], Bool[Array, " time"]], PyTree]


def evaluate(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    *,
    num_episodes: int,
    key: PRNGKeyArray,
    mode: Mode = "greedy",
    max_steps: int | None = None,
    descriptor: Descriptor | None = None,
) -> Evaluation:
    """Plays episodes side by side and measures them; nothing is learnt from them.

    Each episode counts once, from its beginning to its end.

    **Arguments:**

    - `agent`, `state`: who acts.
    - `env`: where.
    - `num_episodes`: at least 1.
    - `key`: for actions and environments.
    - `mode`: how actions are picked.
    - `max_steps`: the most steps of an episode; `None` takes `env.spec.max_steps`.
    - `descriptor`: from the transitions of one episode, with a leading axis `time`, and
        a mask `(time,)` which is true within it, to anything made of arrays. Pass a
        function defined once: a fresh lambda compiles again. With it all transitions
        of all episodes are held in memory.

    **Returns:**

    The returns, the lengths and the descriptors of the episodes.

    Raises a `ValueError` where neither `max_steps` nor the environment sets a limit.
    """
    num_episodes, limit = _check_lengths(env, num_episodes, max_steps)
    if descriptor is None:
        returns, lengths = _play(
            agent, state, env, num_episodes, limit, mode=mode, key=key
        )
        return Evaluation(returns=returns, lengths=lengths, descriptors=None)
    transitions, mask = _rollout(
        agent, state, env, num_episodes, limit, mode=mode, key=key
    )
    return _describe(transitions, mask, descriptor)


@eqx.filter_jit
def _describe(
    transitions: Transition[Extras],
    mask: Bool[Array, "episodes time"],
    descriptor: Descriptor,
) -> Evaluation:
    counted = mask.reshape(mask.shape + (1,) * (transitions.reward.ndim - 2))
    return Evaluation(
        returns=jnp.sum(jnp.where(counted, transitions.reward, 0), axis=1),
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
) -> tuple[Array, Int[Array, " episodes"]]:
    # Stops when the last episode has ended, which `rollout` cannot.
    start_key, step_key = jr.split(key)
    actors = start(agent, state, env, num_envs=num_episodes, key=start_key)

    def going_on(carry: tuple[Any, Any, Any, Any]) -> Bool[Array, ""]:
        index, _, alive, _ = carry
        return (index < max_steps) & jnp.any(alive)

    def step(carry: tuple[Any, Any, Any, Any]) -> tuple[Any, Any, Any, Any]:
        index, actors, alive, (returns, lengths) = carry
        actors, transitions = advance_all(
            agent, state, env, actors, mode=mode, key=jr.fold_in(step_key, index)
        )
        counted = alive.reshape(alive.shape + (1,) * (returns.ndim - 1))
        returns = returns + jnp.where(counted, transitions.reward, 0)
        over = transitions.terminated | transitions.truncated
        return index + 1, actors, alive & ~over, (returns, lengths + alive.astype(int))

    alive = jnp.ones(num_episodes, bool)
    nothing = (actors.episode_return, jnp.zeros(num_episodes, int))
    init = (jnp.zeros((), int), actors, alive, nothing)
    *_, totals = filter_while_loop(going_on, step, init)
    return totals
