"""QDax's DIAYN and DADS as in its notebooks, evaluated as ours are.

It runs with QDax's Python: `python -m benchmarks.papers.qdax_agents SETTINGS FILE`,
where SETTINGS is what `diayn.Settings` holds, in JSON, with the `seed` and a `label`.
After each evaluation its state is saved beside FILE, from where it is resumed.
"""

import functools
import json
import math
import os
import sys
import time
import types
from importlib import metadata
from pathlib import Path
from typing import Any

import jax
import jax._src.core
import jax.interpreters.xla
import jax.numpy as jnp
import numpy as np


# TensorFlow Probability, which DADS imports, finds it where JAX no longer has it.
jax.interpreters.xla.pytype_aval_mappings = jax._src.core.pytype_aval_mappings

import qdax.tasks.brax.v2 as environments  # noqa: E402
from qdax.baselines.dads import DADS, DadsConfig  # noqa: E402
from qdax.baselines.diayn import DIAYN, DiaynConfig  # noqa: E402
from qdax.core.neuroevolution.buffers.buffer import QDTransition, ReplayBuffer  # noqa: E402
from qdax.core.neuroevolution.sac_td3_utils import do_iteration_fn, generate_unroll  # noqa: E402
from qdax.tasks.brax.v2.wrappers import locomotion_wrappers  # noqa: E402


PACKAGES = ("qdax", "jax", "flax", "brax", "mujoco")


def clip(x: jax.Array, a_min: jax.Array, a_max: jax.Array) -> jax.Array:
    """`jnp.clip` with the names of arguments that JAX has removed."""
    return jnp.clip(x, a_min, a_max)


# Both calls of `clip` in this module are those of `XYPositionWrapper`.
locomotion_wrappers.jnp = types.SimpleNamespace(**{**vars(jnp), "clip": clip})


def train(
    *,
    algorithm: str,
    num_steps: int,
    evaluate_every: int,
    num_episodes: int,
    num_envs: int,
    updates_per_iteration: int,
    capacity: int,
    max_steps: int,
    num_skills: int,
    hidden_sizes: list[int],
    batch_size: int,
    lr: float,
    target_step_size: float,
    discount: float,
    initial_temperature: float,
    seed: int,
    label: str,
    unfinished: Path,
) -> dict[str, Any]:
    """Trains, from the state in `unfinished` if there is one.

    Returns columns, the skills at the end, and the processor minutes of processes that
    were stopped, up to the state that each had saved.
    """
    make = functools.partial(
        environments.create, "ant_omni", episode_length=max_steps, backend="spring"
    )
    env = make(batch_size=num_envs)
    # Without resets, after which the descriptor is no longer that of the state reached.
    evaluation_env = make(batch_size=num_skills * num_episodes, auto_reset=False)
    sizes = tuple(hidden_sizes)
    options: dict[str, Any] = dict(
        batch_size=batch_size,
        episode_length=max_steps,
        tau=target_step_size,
        learning_rate=lr,
        alpha_init=initial_temperature,
        discount=discount,
        critic_hidden_layer_size=sizes,
        policy_hidden_layer_size=sizes,
        num_skills=num_skills,
    )
    agent: Any
    if algorithm == "DADS":
        size = env.descriptor_length
        # The notebook omits all of the descriptor.
        dads = DadsConfig(**options, omit_input_dynamics_dim=size)
        agent = DADS(dads, action_size=env.action_size, descriptor_size=size)
    else:
        agent = DIAYN(DiaynConfig(**options), action_size=env.action_size)
    # Plain arrays of integers, which can be saved.
    key, env_key, evaluation_key = jax.random.split(jax.random.PRNGKey(seed), 3)
    env_state = jax.jit(env.reset)(rng=env_key)
    state = agent.init(
        key,
        action_size=env.action_size,
        observation_size=env.observation_size,
        descriptor_size=env.descriptor_length,
    )
    buffer = ReplayBuffer.init(
        buffer_size=capacity,
        transition=QDTransition.init_dummy(
            observation_dim=env.observation_size + num_skills,
            action_dim=env.action_size,
            descriptor_dim=env.descriptor_length,
        ),
    )
    iteration = functools.partial(
        do_iteration_fn,
        env_batch_size=num_envs,
        # Half an update more, since QDax rounds down.
        grad_updates_per_step=(updates_per_iteration + 0.5) / num_envs,
        play_step_fn=functools.partial(
            agent.play_step_fn,
            env=env,
            skills=jnp.eye(num_skills)[jnp.arange(num_envs) % num_skills],
        ),
        update_fn=agent.update,
    )

    @functools.partial(jax.jit, donate_argnums=0)
    def learn(carry: Any) -> Any:
        def body(carry: Any, unused: None) -> tuple[Any, None]:
            del unused
            state, env_state, buffer, _ = iteration(*carry)
            return (state, env_state, buffer), None

        return jax.lax.scan(body, carry, None, length=evaluate_every // num_envs)[0]

    measure = jax.jit(
        functools.partial(evaluate, agent, evaluation_env, num_skills, max_steps)
    )
    carry: Any = (state, env_state, buffer)
    rows: list[dict[str, float]] = []
    found: dict[str, Any] = {}
    minutes_before = 0.0
    if unfinished.exists():
        with np.load(unfinished) as saved:
            rows, minutes_before = json.loads(str(saved["notes"]))
            leaves, structure = jax.tree.flatten(carry)
            leaves = [saved[f"arr_{index}"] for index in range(len(leaves))]
        carry = jax.tree.unflatten(structure, leaves)
    # Copied, because equal initial arrays share a buffer, which forbids donation.
    carry = jax.tree.map(jnp.array, carry)
    first = evaluate_every * (len(rows) + 1)
    for step in range(first, num_steps + 1, evaluate_every):
        begin = time.process_time()
        carry = jax.block_until_ready(learn(carry))
        seconds = time.process_time() - begin
        found = measure(carry[0], jax.random.fold_in(evaluation_key, step))
        means = {name: float(x) for name, x in found.items() if x.ndim == 0}
        rows.append({"step": step, **means, "seconds": seconds})
        shown = f"{means['diversity_return']:.5g}, accuracy {means['accuracy']:.3g}"
        print(f"{label}: step {step}, diversity {shown}", flush=True)
        # The last row is not saved, since it comes with the skills' paths.
        if step + evaluate_every <= num_steps:
            minutes = minutes_before + time.process_time() / 60
            partial = unfinished.with_suffix(".partial.npz")
            notes = json.dumps([rows, minutes])
            np.savez(partial, *map(np.asarray, jax.tree.leaves(carry)), notes=notes)
            os.replace(partial, unfinished)
    shape = (num_skills, num_episodes, max_steps)
    return {
        **{f"column {name}": [row[name] for row in rows] for name in rows[0]},
        "minutes_before": minutes_before,
        "mask": found["mask"].T.reshape(shape),
        "descriptors": jnp.swapaxes(found["descriptors"], 0, 1).reshape(*shape, -1),
    }


def evaluate(
    agent: Any,
    env: Any,
    num_skills: int,
    max_steps: int,
    state: Any,
    key: jax.Array,
) -> dict[str, jax.Array]:
    """Greedy episodes of each skill: means, and descriptors with their mask."""
    first = env.reset(key)
    num_episodes = first.obs.shape[0] // num_skills
    skills = jnp.repeat(jnp.eye(num_skills), num_episodes, axis=0)
    play = functools.partial(
        agent.play_step_fn, env=env, skills=skills, deterministic=True
    )
    _, _, played = generate_unroll(first, state, max_steps, play)
    # A step counts if no earlier one has ended the episode.
    ended = jnp.cumsum(played.dones, axis=0) - played.dones
    mask = ended == 0
    if isinstance(agent, DADS):
        rows = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), played)
        reward = agent._compute_diversity_reward(rows, state).reshape(mask.shape)
        is_right = jnp.full(mask.shape, jnp.nan)
    else:
        logits = agent._discriminator.apply(
            state.discriminator_params, played.next_state_desc
        )
        log_probability = jnp.sum(jax.nn.log_softmax(logits) * skills, axis=-1)
        reward = log_probability + math.log(num_skills)
        is_right = jnp.argmax(logits, axis=-1) == jnp.argmax(skills, axis=-1)
    total = functools.partial(jnp.sum, axis=0, where=mask)
    return {
        "diversity_return": jnp.mean(total(reward)),
        "accuracy": jnp.mean(is_right, where=mask),
        "environment_return": jnp.mean(total(played.rewards)),
        "descriptors": played.next_state_desc,
        "mask": mask,
    }


if __name__ == "__main__":
    settings, file = json.loads(sys.argv[1]), Path(sys.argv[2])
    trained = train(**settings, unfinished=file.with_name("unfinished.npz"))
    versions = {name: metadata.version(name) for name in PACKAGES}
    np.savez(file, versions=json.dumps(versions), **trained)
