from typing import Generic

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from .._agents.base import AbstractAgent, after_act
from .._pytree.control_flow import filter_cond, filter_while_loop
from .._pytree.tree import tree_where
from .._types.custom_types import EnvState, Extras, Memory, Mode, State
from .._types.data import Transition
from ..envs import AbstractEnv
from .fit import check_action_taken


# From `_MANY` environments on, only finished ones are reset, in `_GROUPS` groups.
_MANY, _GROUPS = 64, 8


class Actors(eqx.Module, Generic[EnvState, Memory]):
    """An agent in an environment, in mid-episode; mostly a stack of them."""

    env_state: EnvState
    observation: Float[Array, " obs"]
    memory: Memory
    timestep: Int[Array, ""]
    episode_return: Float[Array, ""] | Float[Array, " reward"]


Actors.__init__.__doc__ = """**Arguments:**

- `env_state`: the environment's state.
- `observation`: of that state.
- `memory`: the agent's, for the next step.
- `timestep`: steps since the episode began.
- `episode_return`: rewards since then, summed without a discount.
"""


def step_keys(key: PRNGKeyArray, num_envs: int) -> Key[Array, "envs 2 2"]:
    """The keys of a step of every environment.

    Of each, the first two are for acting and for the environment's step, the last two
    for the reset and the memory if an episode begins after it.
    """
    pairs = jax.vmap(jr.split)(jr.split(key, num_envs))
    return jax.vmap(jax.vmap(jr.split))(pairs)


def _begin(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    *,
    index: Int[Array, ""],
    keys: Key[Array, "2"],
) -> Actors[EnvState, Memory]:
    reset_key, memory_key = keys
    env_state, observation = env.reset(key=reset_key)
    memory = agent.begin(state, env.spec, index=index, key=memory_key)
    reward_size = env.spec.reward_size
    return Actors(
        env_state=env_state,
        observation=observation,
        memory=memory,
        timestep=jnp.zeros((), int),
        episode_return=jnp.zeros(() if reward_size is None else (reward_size,)),
    )


def _advance(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    actor: Actors[EnvState, Memory],
    *,
    mode: Mode,
    keys: Key[Array, "2"],
) -> tuple[Actors[EnvState, Memory], Transition[Extras]]:
    act_key, step_key = keys
    chosen = agent.act(state, actor.memory, actor.observation, mode=mode, key=act_key)
    action, memory, extras = after_act(agent, actor.memory, chosen)
    check_action_taken(action, env.spec)
    env_state, outcome = env.step(actor.env_state, action, key=step_key)
    transition = Transition(
        observation=actor.observation,
        action=action,
        reward=outcome.reward,
        next_observation=outcome.observation,
        terminated=outcome.terminated,
        truncated=outcome.truncated,
        timestep=actor.timestep,
        state_descriptor=env.state_descriptor(actor.env_state),
        next_state_descriptor=env.state_descriptor(env_state),
        extras=extras,
    )
    actor = Actors(
        env_state=env_state,
        observation=outcome.observation,
        memory=memory,
        timestep=actor.timestep + 1,
        episode_return=actor.episode_return + outcome.reward,
    )
    return actor, transition


def advance(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    actor: Actors[EnvState, Memory],
    *,
    mode: Mode,
    key: PRNGKeyArray,
) -> tuple[Actors[EnvState, Memory], Transition[Extras]]:
    """One step of one environment; where the episode ends, it is left at its end."""
    return _advance(agent, state, env, actor, mode=mode, keys=jr.split(key))


def start(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    *,
    num_envs: int,
    key: PRNGKeyArray,
) -> Actors[EnvState, Memory]:
    """Begins an episode in each of a number of environments.

    **Returns:**

    The actors, a stack of `num_envs`.
    """

    def begin(index: Int[Array, ""], key: PRNGKeyArray) -> Actors[EnvState, Memory]:
        return _begin(agent, state, env, index=index, keys=jr.split(key))

    return eqx.filter_vmap(begin)(jnp.arange(num_envs), jr.split(key, num_envs))


def interact(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    actors: Actors[EnvState, Memory],
    *,
    mode: Mode,
    key: PRNGKeyArray,
) -> tuple[Actors[EnvState, Memory], Transition[Extras]]:
    """One step of every environment; where an episode ends, the next one begins.

    **Arguments:**

    - `agent`, `state`: who acts.
    - `env`: where.
    - `actors`: from `start` or from the last step, a stack.
    - `mode`: how actions are picked.
    - `key`: for actions, environments and episodes that begin.

    **Returns:**

    The actors after the step, and the transitions, with a leading axis `envs`.
    """
    keys = step_keys(key, actors.timestep.shape[0])
    actors, transitions = advance_with_keys(
        agent, state, env, actors, keys[:, 0], mode=mode
    )
    over = transitions.terminated | transitions.truncated
    # To begin an episode costs as much as a step, or more, and most steps end none.
    actors = filter_cond(
        jnp.any(over),
        lambda: begin_where(over, agent, state, env, actors, keys[:, 1]),
        lambda: actors,
    )
    return actors, transitions


def advance_with_keys(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    actors: Actors[EnvState, Memory],
    keys: Key[Array, "envs 2"],
    *,
    mode: Mode,
) -> tuple[Actors[EnvState, Memory], Transition[Extras]]:
    """One step of every environment; where an episode ends, it is left at its end.

    `keys` are the first halves of those from `step_keys`.
    """

    def step(
        actor: Actors[EnvState, Memory], keys: Key[Array, "2"]
    ) -> tuple[Actors[EnvState, Memory], Transition[Extras]]:
        return _advance(agent, state, env, actor, mode=mode, keys=keys)

    return eqx.filter_vmap(step)(actors, keys)


def begin_where(
    over: Bool[Array, " envs"],
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    actors: Actors[EnvState, Memory],
    keys: Key[Array, "envs 2"],
) -> Actors[EnvState, Memory]:
    """Begins an episode in each environment whose last one is over.

    `keys` are the second halves of those from `step_keys`.
    """
    num_envs = over.shape[0]

    def begin(index: Int[Array, ""], keys: Key[Array, "2"]) -> Actors[EnvState, Memory]:
        return _begin(agent, state, env, index=index, keys=keys)

    if num_envs < _MANY:
        fresh = eqx.filter_vmap(begin)(jnp.arange(num_envs), keys)
        return eqx.filter_vmap(tree_where)(over, fresh, actors)

    # Of many environments some are over in most steps, but few at a time: groups of
    # those that are over begin, one after another.
    size = num_envs // _GROUPS
    first = jnp.nonzero(over, size=num_envs + size, fill_value=num_envs)[0]
    # In a loop they are numbers: as keys they would seem to be used twice.
    words, implementation = jr.key_data(keys), jr.key_impl(keys)

    def begin_group(
        carry: tuple[Int[Array, ""], Actors[EnvState, Memory]],
    ) -> tuple[Int[Array, ""], Actors[EnvState, Memory]]:
        begun, actors = carry
        index = lax.dynamic_slice(first, (begun,), (size,))
        # After the last one that is over some index is out of range: of these nothing
        # is written, and what begins is the last environment again.
        known = jnp.minimum(index, num_envs - 1)
        group_keys = jr.wrap_key_data(words[known], impl=implementation)
        fresh = eqx.filter_vmap(begin)(known, group_keys)
        actors = jax.tree.map(
            lambda old, new: (
                old.at[index].set(new, mode="drop") if eqx.is_array(old) else old
            ),
            actors,
            fresh,
        )
        return begun + size, actors

    count = jnp.sum(over)
    _, actors = filter_while_loop(
        lambda carry: carry[0] < count, begin_group, (jnp.zeros((), int), actors)
    )
    return actors


def advance_all(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    actors: Actors[EnvState, Memory],
    *,
    mode: Mode,
    key: PRNGKeyArray,
) -> tuple[Actors[EnvState, Memory], Transition[Extras]]:
    """One step of every environment; where an episode ends, it is left at its end."""

    keys = jax.vmap(jr.split)(jr.split(key, actors.timestep.shape[0]))
    return advance_with_keys(agent, state, env, actors, keys, mode=mode)
