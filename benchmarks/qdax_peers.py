"""QDax's agents, set up as `speed.py` and `population_speed.py` set up ours."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from brax import envs
from jaxtyping import PyTree
from qdax.baselines.sac import SAC, SacConfig
from qdax.baselines.sac_pbt import PBTSAC, PBTSacConfig
from qdax.baselines.td3 import TD3, TD3Config
from qdax.baselines.td3_pbt import PBTTD3, PBTTD3Config
from qdax.core.neuroevolution.buffers.buffer import ReplayBuffer, Transition
from qdax.core.neuroevolution.sac_td3_utils import do_iteration_fn, warmstart_buffer


def _make_env(name: str) -> Any:
    return envs.create(name, batch_size=1, episode_length=1000, backend="spring")


def make_run(
    algorithm: str, env_name: str, *, capacity: int, warmup_steps: int, num_updates: int
) -> Callable[[], PyTree]:
    """A function that makes `num_updates` steps and updates, resuming each time."""
    env = _make_env(env_name)
    agent: Any
    if algorithm == "sac":
        agent = SAC(
            SacConfig(batch_size=256, episode_length=1000), action_size=env.action_size
        )
    else:
        agent = TD3(TD3Config(), action_size=env.action_size)
    key = jax.random.key(0)
    state = agent.init(
        key, action_size=env.action_size, observation_size=env.observation_size
    )
    buffer = ReplayBuffer.init(
        buffer_size=capacity,
        transition=Transition.init_dummy(env.observation_size, env.action_size),
    )
    env_state = jax.jit(env.reset)(jax.random.PRNGKey(1))
    play = functools.partial(agent.play_step_fn, env=env)
    buffer, env_state, state = warmstart_buffer(
        replay_buffer=buffer,
        training_state=state,
        env_state=env_state,
        play_step_fn=functools.partial(play, deterministic=False),
        num_warmstart_steps=warmup_steps,
        env_batch_size=1,
    )
    iteration = functools.partial(
        do_iteration_fn,
        env_batch_size=1,
        grad_updates_per_step=1.0,
        play_step_fn=play,
        update_fn=agent.update,
    )

    def body(carry: PyTree, unused: None) -> tuple[PyTree, PyTree]:
        del unused
        state, env_state, buffer, metrics = iteration(*carry)
        return (state, env_state, buffer), metrics

    @functools.partial(jax.jit, donate_argnums=0)
    def scan(carry: PyTree) -> tuple[PyTree, PyTree]:
        carry, metrics = jax.lax.scan(body, carry, None, length=num_updates)
        return carry, jax.tree.map(jnp.mean, metrics)

    # Copied, because equal initial arrays share a buffer, which forbids donation.
    carry = jax.tree.map(jnp.array, (state, env_state, buffer))

    def run() -> PyTree:
        nonlocal carry
        carry, metrics = scan(carry)
        return metrics

    return run


def make_population_run(
    algorithm: str, env_name: str, *, size: int, capacity: int, num_updates: int
) -> Callable[[], PyTree]:
    """As `make_run`, for `size` members together."""
    env = _make_env(env_name)
    agent: Any
    if algorithm == "sac":
        config = PBTSacConfig(batch_size=256, episode_length=1000)
        agent = PBTSAC(config, action_size=env.action_size)
    else:
        agent = PBTTD3(PBTTD3Config(), action_size=env.action_size)
    init = agent.get_init_fn(
        population_size=size,
        action_size=env.action_size,
        observation_size=env.observation_size,
        buffer_size=capacity,
    )
    states, buffers = init(jax.random.key(0))
    keys = jax.random.split(jax.random.PRNGKey(1), size)
    env_states = jax.jit(jax.vmap(env.reset))(keys)
    train = jax.jit(
        agent.get_train_fn(
            env=env,
            num_iterations=num_updates,
            env_batch_size=1,
            grad_updates_per_step=1.0,
        ),
        donate_argnums=(0, 1, 2),
    )
    carry = jax.tree.map(jnp.array, (states, env_states, buffers))

    def run() -> PyTree:
        nonlocal carry
        carry, metrics = train(*carry)
        return metrics

    return run
