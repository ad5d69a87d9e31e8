from typing import Generic

import equinox as eqx
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Float, Int, PRNGKeyArray

from .._agents import AbstractAgent
from .._pytree.tree import tree_where
from .._types.custom_types import EnvState, Extras, Memory, Mode, State
from .._types.data import Transition
from ..envs import AbstractEnv


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


def _begin(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    *,
    index: Int[Array, ""],
    key: PRNGKeyArray,
) -> Actors[EnvState, Memory]:
    reset_key, memory_key = jr.split(key)
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
    act_key, step_key = jr.split(key)
    action, memory, extras = agent.act(
        state, actor.memory, actor.observation, mode=mode, key=act_key
    )
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
        return _begin(agent, state, env, index=index, key=key)

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

    def step(
        actor: Actors[EnvState, Memory], index: Int[Array, ""], key: PRNGKeyArray
    ) -> tuple[Actors[EnvState, Memory], Transition[Extras]]:
        advance_key, begin_key = jr.split(key)
        actor, transition = advance(
            agent, state, env, actor, mode=mode, key=advance_key
        )
        fresh = _begin(agent, state, env, index=index, key=begin_key)
        done = transition.terminated | transition.truncated
        return tree_where(done, fresh, actor), transition

    num_envs = actors.timestep.shape[0]
    return eqx.filter_vmap(step)(actors, jnp.arange(num_envs), jr.split(key, num_envs))


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

    def step(
        actor: Actors[EnvState, Memory], key: PRNGKeyArray
    ) -> tuple[Actors[EnvState, Memory], Transition[Extras]]:
        return advance(agent, state, env, actor, mode=mode, key=key)

    return eqx.filter_vmap(step)(actors, jr.split(key, actors.timestep.shape[0]))
