from typing import Generic

import equinox as eqx
import jax
import jax.lax as lax
import jax.numpy as jnp
import jax.random as jr
from jaxtyping import Array, Bool, Float, Int, Key, PRNGKeyArray

from .._agents.base import AbstractAgent, AnyAgent, after_act
from .._pytree.control_flow import filter_cond, filter_while_loop
from .._pytree.fields import typed_key
from .._pytree.tree import tree_where
from .._types.custom_types import (
    EnvState,
    Extras,
    Memory,
    Mode,
    Observation,
    PyTree,
    State,
)
from .._types.data import AnyTransition, Transition
from ..envs import AbstractEnv
from ..envs._base import AnyEnv
from ..envs._host import beginning_where, is_host, stepping_where
from .fit import check_action_fits


# From `_MANY` environments on, only finished ones are reset, in `_GROUPS` groups.
_MANY, _GROUPS = 64, 8


class Actors(eqx.Module, Generic[EnvState, Memory]):
    """An agent in an environment, in mid-episode; usually a stack of them."""

    env_state: EnvState
    observation: Observation[Array, " obs"]
    memory: Memory
    timestep: Int[Array, ""]
    episode_return: Float[Array, ""] | Float[Array, " reward"]


Actors.__init__.__doc__ = """**Arguments:**

- `env_state`: the environment's state.
- `observation`: the observation of that state.
- `memory`: the agent's memory, for the next step.
- `timestep`: steps since the episode began.
- `episode_return`: rewards since then, summed without a discount.
"""


def step_keys(key: PRNGKeyArray, num_envs: int) -> Key[Array, "envs 2 2"]:
    """The keys of a step of every environment.

    For each environment, the first two are for acting and for its step, and the last
    two for the reset and the memory if an episode begins after the step.
    """
    pairs = jax.vmap(jr.split)(jr.split(typed_key(key), num_envs))
    return jax.vmap(jax.vmap(jr.split))(pairs)


def _begin(
    agent: AnyAgent,
    state: PyTree,
    env: AnyEnv,
    *,
    index: Int[Array, ""],
    keys: Key[Array, "2"],
) -> Actors:
    reset_key, memory_key = keys
    env_state, observation = env.reset(key=reset_key)
    reward_size = env.spec.reward_size
    return Actors(
        env_state=env_state,
        observation=observation,
        memory=agent.begin(state, env.spec, index=index, key=memory_key),
        timestep=jnp.zeros((), int),
        episode_return=jnp.zeros(() if reward_size is None else (reward_size,)),
    )


def advance(
    agent: AnyAgent,
    state: PyTree,
    env: AnyEnv,
    actor: Actors,
    *,
    mode: Mode,
    keys: Key[Array, "2"],
    active: Bool[Array, ""] | None = None,
) -> tuple[Actors, AnyTransition]:
    """One step of one environment; an episode that ends is left at its end.

    `keys` are for acting and for the step of the environment. Unless `active`, the step
    is not used, so no simulator takes it; `None` means active.
    """
    act_key, step_key = keys
    env = env if active is None else stepping_where(env, active)
    chosen = agent.act(state, actor.memory, actor.observation, mode=mode, key=act_key)
    action, memory, extras = after_act(agent, actor.memory, chosen)
    hint = "Is the agent's state that of another environment?"
    check_action_fits(action, env.spec, exact=False, hint=hint)
    env_state, outcome = env.step(actor.env_state, action, key=step_key)
    transition = Transition(
        observation=actor.observation,
        action=action,
        reward=outcome.reward,
        # The environment has not been reset yet, so this is the true successor.
        next_observation=outcome.observation,
        terminated=outcome.terminated,
        truncated=outcome.truncated,
        timestep=actor.timestep,
        state_descriptor=env.state_descriptor(actor.env_state),
        next_state_descriptor=env.state_descriptor(env_state),
        extras=extras,
        critic_observation=env.critic_observation(actor.env_state),
        next_critic_observation=env.critic_observation(env_state),
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
    """Begins an episode in each of `num_envs` environments.

    **Returns:**

    The actors, a stack of `num_envs`.
    """
    begin = lambda index, keys: _begin(agent, state, env, index=index, keys=keys)
    keys = jax.vmap(jr.split)(jr.split(typed_key(key), num_envs))
    return eqx.filter_vmap(begin)(jnp.arange(num_envs), keys)


def interact(
    agent: AbstractAgent[State, Memory, Extras],
    state: State,
    env: AbstractEnv[EnvState],
    actors: Actors[EnvState, Memory],
    *,
    mode: Mode,
    key: PRNGKeyArray,
) -> tuple[Actors[EnvState, Memory], Transition[Extras]]:
    """Steps every environment; where an episode ends, the next one begins.

    A simulator outside JAX that fails gives `nan` as its reward and observations; only
    `train`, `rollout` and evaluations raise its error.

    **Arguments:**

    - `agent`, `state`: the agent that acts, and its state.
    - `env`: the environment.
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
    # Beginning an episode costs as much as a step or more, and most steps end none.
    actors = filter_cond(
        jnp.any(over),
        lambda: begin_where(over, agent, state, env, actors, keys[:, 1]),
        lambda: actors,
    )
    return actors, transitions


def advance_with_keys(
    agent: AnyAgent,
    state: PyTree,
    env: AnyEnv,
    actors: Actors,
    keys: Key[Array, "envs 2"],
    *,
    mode: Mode,
    active: Bool[Array, " envs"] | None = None,
) -> tuple[Actors, AnyTransition]:
    """One step of every environment; an episode that ends is left at its end.

    `keys` are the first halves of those from `step_keys`, `active` as in `advance`.
    """

    def step(
        actor: Actors, keys: Key[Array, "2"], active: Bool[Array, ""] | None
    ) -> tuple[Actors, AnyTransition]:
        return advance(agent, state, env, actor, mode=mode, keys=keys, active=active)

    return eqx.filter_vmap(step)(actors, keys, active)


def begin_where(
    over: Bool[Array, " envs"],
    agent: AnyAgent,
    state: PyTree,
    env: AnyEnv,
    actors: Actors,
    keys: Key[Array, "envs 2"],
) -> Actors:
    """Begins an episode in each environment whose last one is over.

    `keys` are the second halves of those from `step_keys`.
    """
    num_envs = over.shape[0]
    if is_host(env):
        # A reset ends an episode, so only the environments that are over are reset.
        def rejoin(
            over: Bool[Array, ""], actor: Actors, index: Int[Array, ""], keys: Array
        ) -> Actors:
            own = beginning_where(env, over, actor.env_state)
            fresh = _begin(agent, state, own, index=index, keys=keys)
            return tree_where(over, fresh, actor)

        return eqx.filter_vmap(rejoin)(over, actors, jnp.arange(num_envs), keys)
    begin = lambda index, keys: _begin(agent, state, env, index=index, keys=keys)
    if num_envs < _MANY:
        # Resetting all and dropping most of the results is cheaper than a loop.
        fresh = eqx.filter_vmap(begin)(jnp.arange(num_envs), keys)
        return eqx.filter_vmap(tree_where)(over, fresh, actors)

    # With many environments, some are over at most steps, but few at a time: those that
    # are over begin in groups, one group after another.
    size = num_envs // _GROUPS
    first = jnp.nonzero(over, size=num_envs + size, fill_value=num_envs)[0]
    # The loop takes plain data: JAX would report that keys are used twice.
    words, implementation = jr.key_data(keys), jr.key_impl(keys)

    def begin_group(
        carry: tuple[Int[Array, ""], Actors],
    ) -> tuple[Int[Array, ""], Actors]:
        begun, actors = carry
        index = lax.dynamic_slice(first, (begun,), (size,))
        # A last group that is not full is padded with indices out of range: the last
        # environment begins in their place, and nothing is written.
        known = jnp.minimum(index, num_envs - 1)
        group_keys = jr.wrap_key_data(words[known], impl=implementation)
        fresh = eqx.filter_vmap(begin)(known, group_keys)
        put = lambda old, new: (
            old.at[index].set(new, mode="drop") if eqx.is_array(old) else old
        )
        return begun + size, jax.tree.map(put, actors, fresh)

    count = jnp.sum(over)
    _, actors = filter_while_loop(
        lambda carry: carry[0] < count, begin_group, (jnp.zeros((), int), actors)
    )
    return actors
