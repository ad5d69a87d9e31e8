"""QDax's DIAYN on a point in the plane, set up as `skill_speed.py` sets up ours."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from brax.envs.base import Env, State
from brax.envs.wrappers.training import AutoResetWrapper, EpisodeWrapper, VmapWrapper
from jaxtyping import Array, Float, PRNGKeyArray, PyTree
from qdax.baselines.diayn import DIAYN, DiaynConfig
from qdax.core.neuroevolution.buffers.buffer import QDTransition, ReplayBuffer
from qdax.core.neuroevolution.sac_td3_utils import do_iteration_fn, warmstart_buffer


class Point(Env):
    """`eqrl.envs.Point`, for brax's wrappers."""

    def reset(self, rng: PRNGKeyArray) -> State:
        del rng
        return State(
            pipeline_state=None,
            obs=jnp.zeros(4),
            reward=jnp.zeros(()),
            done=jnp.zeros(()),
            info={"state_descriptor": jnp.zeros(2)},
        )

    def step(self, state: State, action: Float[Array, "2"]) -> State:
        position = state.info["state_descriptor"] + 0.1 * jnp.clip(action, -1, 1)
        return state.replace(
            obs=jnp.concatenate([position, action]),
            info=state.info | {"state_descriptor": position},
        )

    @property
    def observation_size(self) -> int:
        return 4

    @property
    def action_size(self) -> int:
        return 2

    @property
    def backend(self) -> str:
        return "none"


def make_run(
    *,
    num_skills: int,
    num_envs: int,
    capacity: int,
    warmup_steps: int,
    num_updates: int,
) -> Callable[[], PyTree]:
    """A function that makes `num_updates` steps and updates, resuming each time."""
    env = AutoResetWrapper(VmapWrapper(EpisodeWrapper(Point(), 50, 1), num_envs))
    config = DiaynConfig(batch_size=256, episode_length=50, num_skills=num_skills)
    agent = DIAYN(config, action_size=2)
    state = agent.init(
        jax.random.key(0), action_size=2, observation_size=4, descriptor_size=2
    )
    buffer = ReplayBuffer.init(
        buffer_size=capacity,
        transition=QDTransition.init_dummy(
            observation_dim=4 + num_skills, action_dim=2, descriptor_dim=2
        ),
    )
    skills = jax.nn.one_hot(jnp.arange(num_envs) % num_skills, num_skills)
    play = functools.partial(agent.play_step_fn, env=env, skills=skills)
    buffer, env_state, state = warmstart_buffer(
        replay_buffer=buffer,
        training_state=state,
        env_state=jax.jit(env.reset)(jax.random.PRNGKey(1)),
        play_step_fn=functools.partial(play, deterministic=False),
        num_warmstart_steps=warmup_steps,
        env_batch_size=num_envs,
    )
    iteration = functools.partial(
        do_iteration_fn,
        env_batch_size=num_envs,
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
        carry, metrics = jax.lax.scan(body, carry, None, length=num_updates // num_envs)
        return carry, jax.tree.map(jnp.mean, metrics)

    # Copied, because equal initial arrays share a buffer, which forbids donation.
    carry = jax.tree.map(jnp.array, (state, env_state, buffer))

    def run() -> PyTree:
        nonlocal carry
        carry, metrics = scan(carry)
        return metrics

    return run
